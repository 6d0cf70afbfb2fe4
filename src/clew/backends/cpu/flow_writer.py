"""What writers of a segment's table share: its order of steps, its arena, and copies in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clew.ir.dims import Dim
from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind

COUNTER_BYTES: Final = 8


class FlowWriter:
    """Writes the order of kernels (by number) and control flow steps. Sizes of copies that are
    dimensions are in `_copied`, by place.
    """

    def __init__(self) -> None:
        self._order: list[int | Flow] = []
        self._copied: dict[int, Dim] = {}
        self._arena: list[Dim] = []

    def _room(self, size_bytes: Dim) -> BufferRef:
        """Returns new memory of the arena."""
        self._arena.append(size_bytes)
        return BufferRef(BufferKind.ARENA, len(self._arena) - 1)

    def _flow(self, flow: Flow) -> int:
        """Writes a control flow step; returns its place."""
        self._order.append(flow)
        return len(self._order) - 1

    def _aim(self, place: int) -> None:
        """Makes the control flow step at a place jump to the next step to be written."""
        flow = self._order[place]
        assert isinstance(flow, Flow)
        self._order[place] = replace(flow, target=len(self._order))

    def _copy(self, to: BufferRef, source: BufferRef, size_bytes: Dim) -> None:
        """Writes a copy, unless there is nothing to copy."""
        if to != source and size_bytes != 0:
            self._set(to, source, size_bytes)

    def _set(self, to: BufferRef, source: BufferRef, size_bytes: Dim) -> None:
        """Writes a copy, even of no bytes: the lifetime of `to` begins here."""
        if isinstance(size_bytes, int):
            self._flow(Flow(FlowKind.COPY, (to, source), size_bytes=size_bytes))
        else:
            self._copied[self._flow(Flow(FlowKind.COPY, (to, source)))] = size_bytes
