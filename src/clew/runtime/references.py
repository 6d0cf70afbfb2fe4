"""Checks that the steps of a segment refer to positions inside of its buffers."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence

from clew.runtime.plan import BufferKind, BufferRef, Flow, Step
from clew.support.calling import picker


class References:
    """The position in each buffer that is furthest from its start, among all that the steps of a
    segment and its control flow refer to.

    Buffers and positions are the same at all sizes; `check` compares them with given sizes.
    """

    def __init__(self, entries: Iterable[Step | Flow], counts: Mapping[BufferKind, int]) -> None:
        """Asserts that all buffers exist, of which `counts` has the number of each kind."""
        self._furthest: dict[BufferKind, dict[int, tuple[BufferRef, str]]] = {}
        self._sized: list[tuple[BufferRef, str]] = []
        for entry in entries:
            label = entry.kind.name if isinstance(entry, Flow) else entry.label
            if not isinstance(entry, Flow) and not entry.code.entries:
                raise AssertionError(f"{label}: no entry points")
            for ref in entry.args:
                exists = 0 <= ref.index < counts[ref.kind]
                if not exists:
                    raise AssertionError(f"{label}: no {ref.kind.value} {ref.index}")
                if ref.offset_bytes < 0:
                    raise AssertionError(f"{label}: {ref} is outside")
                if not isinstance(ref.sized_bytes, int):
                    self._sized.append((ref, label))
                    continue
                of_kind = self._furthest.setdefault(ref.kind, {})
                known = of_kind.get(ref.index)
                if known is None or known[0].offset_bytes < ref.offset_bytes:
                    of_kind[ref.index] = ref, label

        self._offsets = {
            kind: (picker(tuple(own)), [ref.offset_bytes for ref, _ in own.values()])
            for kind, own in self._furthest.items()
        }

    def check(
        self, kind: BufferKind, sizes_bytes: Sequence[int], distances: Sequence[int] = ()
    ) -> None:
        """Asserts that all positions in buffers of this kind and these sizes are inside.

        `distances` holds the bytes that sizes add to positions, in the order of the entries.
        """
        if kind in self._offsets:
            of_buffers, offsets = self._offsets[kind]
            if not all(map(operator.le, offsets, of_buffers(sizes_bytes))):
                self._refuse(kind, sizes_bytes)
        for number, (ref, label) in enumerate(self._sized):
            if ref.kind is kind:
                position = ref.offset_bytes + distances[number]
                if not 0 <= position <= sizes_bytes[ref.index]:
                    raise AssertionError(f"{label}: {ref} is outside")

    def _refuse(self, kind: BufferKind, sizes_bytes: Sequence[int]) -> None:
        """Asserts that the positions that do not depend on sizes are inside."""
        for index, (ref, label) in self._furthest[kind].items():
            if ref.offset_bytes > sizes_bytes[index]:
                raise AssertionError(f"{label}: {ref} is outside")
