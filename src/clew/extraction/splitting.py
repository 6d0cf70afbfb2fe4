"""Assigns layers to the parts of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from clew.extraction.layers import LayerGraph
from clew.support.errors import InputError

Names: TypeAlias = str | Sequence[str]
Range: TypeAlias = tuple[Names, Names]
Piece: TypeAlias = tuple[str, frozenset[int]]


def split(layers: LayerGraph, at: Sequence[Names], ranges: Sequence[Range]) -> list[Piece]:
    """Returns all layers in named pieces, ordered so that each depends only on earlier ones.

    Errors: I130 to I132 (layers), I148 for cuts and ranges that contradict each other.
    """
    pieces = _at(layers, at) if at else _ranges(layers, ranges)
    assigned = frozenset(n for _, piece in pieces for n in piece)
    rest = frozenset(range(len(layers.names))) - assigned - layers.fixed
    if rest:
        pieces.append(("the rest", rest))
    return pieces


def _at(layers: LayerGraph, at: Sequence[Names]) -> list[Piece]:
    pieces: list[Piece] = []
    assigned = layers.fixed
    for entry in at:
        names = names_of(entry)
        ends = frozenset(n for name in names for n in layers.find(name))
        piece = layers.before(ends) - assigned
        if not ends - assigned:
            raise InputError(
                "I148",
                f"the part that ends with {', '.join(names)} is empty: it is in an earlier one",
                hint="name layers in the order of the graph",
            )
        pieces.append((f"up to {', '.join(names)}", piece))
        assigned |= piece
    return pieces


def _ranges(layers: LayerGraph, ranges: Sequence[Range]) -> list[Piece]:
    found: list[Piece] = []
    for start, end in ranges:
        begins, ends = names_of(start), names_of(end)
        name = " to ".join(", ".join(n) for n in (begins, ends) if n)
        units = layers.between(begins, ends) - layers.fixed
        for other, taken in found:
            if units & taken:
                shared = ", ".join(sorted(layers.names[n] for n in units & taken)[:3])
                raise InputError(
                    "I148",
                    f"the ranges {other} and {name} share layers: {shared}",
                    hint="end one before the other begins",
                )
        found.append((name, units))
    pieces: list[Piece] = []
    assigned = layers.fixed
    for name, units in _in_order(layers, found):
        before = layers.before(units) - units - assigned
        if before:
            pieces.append((f"before {name}", before))
        pieces.append((name, units))
        assigned |= before | units
    return pieces


def _in_order(layers: LayerGraph, pieces: Sequence[Piece]) -> list[Piece]:
    """Returns ranges in order of dependence."""
    waiting = [(name, units, layers.before(units) - units) for name, units in pieces]
    order: list[Piece] = []
    while waiting:
        for entry in waiting:
            name, units, below = entry
            if not any(below & other for _, other, _ in waiting if other is not units):
                order.append((name, units))
                waiting.remove(entry)
                break
        else:
            names = " and ".join(name for name, _, _ in waiting)
            raise InputError(
                "I148",
                f"the ranges {names} depend on each other",
                hint="values pass between them in both directions: split one of them, or join them",
            )
    return order


def names_of(names: Names) -> tuple[str, ...]:
    """Returns one name or several as a tuple."""
    return (names,) if isinstance(names, str) and names else tuple(names)
