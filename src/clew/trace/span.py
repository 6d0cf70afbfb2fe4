"""Sources name parts of the user's model; a span is the set of sources an expression serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A layer, parameter or input of the user's model, or an edit.

    `layer` is its name in the model, `op` its operator type (`Conv`; `""` for parameters and
    inputs) and `frontend` the frontend that read it. `output` is the number of the layer's output
    if the expression computes that output, else None. `kind` is `layer`, `parameter`, `input` or
    `edit` (added by the user through clew).
    """

    layer: str
    op: str = ""
    frontend: str = ""
    kind: str = "layer"
    output: int | None = None

    def without_output(self) -> Source:
        """Returns the source without the output mark: work for the layer, not its result."""
        if self.output is None:
            return self
        return Source(self.layer, self.op, self.frontend, self.kind)


class Span:
    """An ordered set of sources, interned: equal spans are the same object."""

    __slots__ = ("_unmarked", "sources")
    _interned: Final[dict[tuple[Source, ...], Span]] = {}
    _unions: Final[dict[tuple[Span, Span], Span]] = {}
    _marks: Final[dict[tuple[Span, Span], Span]] = {}

    sources: tuple[Source, ...]

    def __new__(cls, sources: Iterable[Source] = ()) -> Span:
        key = tuple(dict.fromkeys(sources))
        found = cls._interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.sources = key
            found._unmarked = None
            found = cls._interned.setdefault(key, found)
        return found

    _unmarked: Span | None

    def __or__(self, other: Span) -> Span:
        if other is self or not other.sources:
            return self
        if not self.sources:
            return other
        union = self._unions.get((self, other))
        if union is None:
            union = Span((*self.sources, *other.sources))
            self._unions[self, other] = union
        return union

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __repr__(self) -> str:
        return f"Span({', '.join(self.layers)})"

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the model's layers (not parameters or inputs) in order, each once."""
        return tuple(dict.fromkeys(s.layer for s in self.sources if s.kind in ("layer", "edit")))

    def marked_by(self, other: Span) -> Span:
        """Returns the span with the output marks of `other`, for a node that computes the same
        value.
        """
        if other is other.unmarked():
            return self
        marked = self._marks.get((self, other))
        if marked is None:
            marks = [s for s in other.sources if s.output is not None]
            bare = {m.without_output() for m in marks}
            marked = Span([*marks, *(s for s in self.sources if s not in bare)])
            self._marks[self, other] = marked
        return marked

    def unmarked(self) -> Span:
        """Returns the span without output marks, for intermediate work."""
        if self._unmarked is None:
            self._unmarked = Span(s.without_output() for s in self.sources)
        return self._unmarked


EMPTY: Final = Span()
