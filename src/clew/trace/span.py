"""Sources name parts of the user's model; a span is the set of sources an expression serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """An ordered set of sources. Spans made of sources are interned: equal ones are one object."""

    __slots__ = ("_find", "_found", "_hash", "_unmarked")
    _interned: Final[dict[tuple[Source, ...], Span]] = {}
    _unions: Final[dict[tuple[Span, Span], Span]] = {}
    _marks: Final[dict[tuple[Span, Span], Span]] = {}

    _found: tuple[Source, ...] | None
    _find: Callable[[], Iterable[Source]] | None
    _hash: int | None
    _unmarked: Span | None

    def __new__(cls, sources: Iterable[Source] = ()) -> Span:
        key = tuple(dict.fromkeys(sources))
        found = cls._interned.get(key)
        if found is None:
            found = cls._interned.setdefault(key, cls._made(key, None))
        return found

    @classmethod
    def later(cls, find: Callable[[], Iterable[Source]]) -> Span:
        """Returns the span of the sources that `find` returns, which is called when they are first
        needed: a chain of operators that become one has a long span at every step.
        """
        return cls._made(None, find)

    @classmethod
    def _made(
        cls, found: tuple[Source, ...] | None, find: Callable[[], Iterable[Source]] | None
    ) -> Span:
        span = super().__new__(cls)
        span._found, span._find = found, find
        span._hash = span._unmarked = None
        return span

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources in order, each once."""
        found = self._found
        if found is None:
            assert self._find is not None
            found = self._found = Span(self._find()).sources
            self._find = None
        return found

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Span) and self.sources == other.sources)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.sources)
        return self._hash

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
        if self._found is None:
            return Span.later(lambda: self._marked_by(other))
        marked = self._marks.get((self, other))
        if marked is None:
            marked = self._marks[self, other] = Span(self._marked_by(other))
        return marked

    def _marked_by(self, other: Span) -> list[Source]:
        marks = [s for s in other.sources if s.output is not None]
        bare = {m.without_output() for m in marks}
        return [*marks, *(s for s in self.sources if s not in bare)]

    def unmarked(self) -> Span:
        """Returns the span without output marks, for intermediate work."""
        if self._unmarked is None:
            if any(s.output is not None for s in self.sources):
                self._unmarked = Span(s.without_output() for s in self.sources)
            else:
                self._unmarked = self
        return self._unmarked


EMPTY: Final = Span()
