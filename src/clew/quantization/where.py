"""Which layers a rule is about, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeAlias, TypeVar

from clew.editing import Selection, edit
from clew.extraction.layers import LayerGraph
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.patterns import read_pattern
from clew.support.errors import InputError


class Selectable(Protocol):
    """A call that rules are about, with its name."""

    @property
    def name(self) -> str: ...

    @property
    def call(self) -> Call: ...


T = TypeVar("T", bound=Selectable)


@dataclass(frozen=True)
class Where:
    """Selects layers with products; conditions that are given must all hold.

    `layers` are names or globs of layers, or names of single products (`fc#2`); `op` is an
    operator, such as `nn.conv2d`; `between` names two layers, either of which may be "" for the
    beginning or the end of the model, and selects those on paths between them, both included;
    `pattern` is the text of a pattern, which selects the layers with a part in a match. Of the
    remaining layers, in the order of the model, `first` and `last` take as many from either end.
    """

    layers: tuple[str, ...] = ()
    op: str = ""
    between: tuple[str, str] | None = None
    pattern: str = ""
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        """Checks the fields. Errors: I391."""
        if not any(getattr(self, f.name) for f in fields(self)):
            raise InputError(
                "I391", "the selection has no condition", hint="give layers=, op=, first= or others"
            )
        if self.first < 0 or self.last < 0:
            raise InputError("I391", "first and last count layers; they are not negative")

    def select(self, module: Module, sites: Sequence[T]) -> list[T]:
        """Returns the sites that are selected.

        Errors: I050 for an unknown layer, I130 to I132 for `between`, P of patterns.
        """
        found = list(sites)
        if self.layers:
            layers = {n for s in sites for n in s.call.span.layers}
            own = ({s.name for s in sites} - layers) & set(self.layers)
            others = [n for n in self.layers if n not in own]
            named = {p.name for p in edit(module).select(*others)} if others else set()
            found = [s for s in found if s.name in own or named & set(s.call.span.layers)]
        if self.op:
            found = [s for s in found if s.call.op_name == self.op]
        if self.between is not None:
            inside = _between(module, *self.between)
            found = [s for s in found if s.call.id in inside]
        if self.pattern:
            matched = edit(module).select(pattern=read_pattern(self.pattern))
            nodes = frozenset().union(*(p.nodes for p in matched))
            found = [s for s in found if s.call.id in nodes]
        if self.first or self.last:
            ends = {s.name for s in [*found[: self.first], *found[len(found) - self.last :]]}
            found = [s for s in found if s.name in ends]
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns plain data: the fields that are set."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items() if v}

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Where:
        """Returns the selection of plain data. Errors: I391."""
        known = {f.name for f in fields(Where)}
        for name in data:
            if name not in known:
                raise InputError(
                    "I391", f"a selection has no field {name!r}", hint=f"{', '.join(known)}"
                )
        given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in data.items()}
        return Where(**given)


Selects: TypeAlias = "str | Where | Selection"


def where_of(given: Selects) -> Where:
    """Returns a selection as data: a layer's name or glob, or the layers of an editor's
    selection.
    """
    if isinstance(given, Where):
        return given
    if isinstance(given, Selection):
        return Where(layers=given.names)
    if isinstance(given, str):
        return Where(layers=(given,))
    raise InputError(
        "I391",
        f"cannot select layers by a {type(given).__name__}",
        hint="give names, globs, clew.quantization.Where(...) or a selection of clew.edit",
    )


def all_where(given: Selects | Iterable[Selects]) -> tuple[Where, ...]:
    """Returns one or several selections as data."""
    if isinstance(given, (str, Where, Selection)) or not isinstance(given, Iterable):
        return (where_of(given),)
    return tuple(map(where_of, given))


def _between(module: Module, start: str, end: str) -> frozenset[int]:
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    number = {c.id: n for n, c in enumerate(calls)}
    reads = [frozenset(number[a.id] for a in c.children if a.id in number) for c in calls]
    names = [c.span.layers[0] if c.span.layers else "" for c in calls]
    graph = LayerGraph(names, reads)
    found = graph.between([start] if start else [], [end] if end else [])
    return frozenset(calls[n].id for n in found)
