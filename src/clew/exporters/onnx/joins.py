"""Joins: several calls that one ONNX operator computes.

```python
@joins("add")
def with_bias(call: Call) -> Join | None: ...
```

Only the last of the joined calls has readers outside. Each call can also be written alone, so
`can_write` ignores joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from clew.exporters.onnx.builder import GraphBuilder
from clew.exporters.onnx.registry import Writing
from clew.ir.expr import Call, Expr, TupleGetItem
from clew.ir.visit import post_order


@dataclass(frozen=True)
class Site:
    """The place where joined calls are written: the names of values, and a builder."""

    values: dict[int, tuple[str, ...]]
    builder: GraphBuilder
    label: str

    def at(self, call: Call) -> Writing:
        """Returns a call in the form that rules take. Values of joined calls have no name."""
        names = [self.name(arg) for arg in call.args]
        return Writing(call, names, self.builder, self.label)

    def name(self, value: Expr) -> str:
        """Returns the name of a value, "" for one that has none."""
        return self.values.get(value.id, ("",))[0]


@dataclass(frozen=True)
class Join:
    """`inner` are calls that are written with the one that reads them, in order. `write` returns
    the name of its result.
    """

    inner: tuple[Call, ...]
    write: Callable[[Site], str]


Joiner: TypeAlias = "Callable[[Call], Join | None]"

_JOINERS: Final[dict[str, list[Joiner]]] = {}


def joins(*names: str) -> Callable[[Joiner], Joiner]:
    """Decorator: registers a function that returns the join of a call with calls that it reads, or
    None. Of several for an operator, the first one registered that finds a join applies.
    """

    def register(joiner: Joiner) -> Joiner:
        for name in names:
            _JOINERS.setdefault(name, []).append(joiner)
        return joiner

    return register


def joins_in(body: Expr, writable: Callable[[Call], bool]) -> dict[int, Join]:
    """Returns the joins in a graph, by the id of the last call of each. `writable` says whether a
    call can be written alone; only such calls are joined.
    """
    nodes = post_order(body)
    readers: dict[int, int] = {body.id: 1}
    for node in nodes:
        for child in node.children:
            readers[child.id] = readers.get(child.id, 0) + 1
    taken: set[int] = set()
    found: dict[int, Join] = {}
    for node in reversed(nodes):
        if not isinstance(node, Call) or node.id in taken:
            continue
        for join in _of(node):
            free = all(readers[c.id] == 1 and c.id not in taken for c in join.inner)
            if free and all(map(writable, (node, *join.inner))):
                found[node.id] = join
                taken.update(c.id for c in join.inner)
                break
    return found


def _of(call: Call) -> Iterator[Join]:
    for joiner in _JOINERS.get(call.op_name, ()):
        join = joiner(call)
        if join is not None:
            yield join


def called(value: Expr, *names: str) -> Call | None:
    """Returns a value if it is a call of one of the operators, else None."""
    if isinstance(value, TupleGetItem) or not isinstance(value, Call):
        return None
    return value if value.op_name in names else None
