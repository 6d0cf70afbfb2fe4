"""Walks structures with shared parts without recursion, since expressions may be very deep."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def post_order(
    roots: Iterable[T], below: Callable[[T], Sequence[T]], known: Container[int] = ()
) -> list[T]:
    """Returns everything reachable from `roots`, each object once, after its successors by `below`.

    Skips objects whose `id` is in `known`, and everything reachable only through them.
    """
    order: list[T] = []
    done: set[int] = set()
    # `None` on the stack: everything below the object opened last is listed.
    opened: list[T] = []
    stack: list[T | None] = [*roots]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:
            order.append(opened.pop())
            continue
        key = id(node)
        if key in done or key in known:
            continue
        done.add(key)
        children = below(node)
        if children:
            opened.append(node)
            stack.append(None)
            stack += children[::-1]
        else:
            order.append(node)
    return order
