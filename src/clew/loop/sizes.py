"""A loop nest at given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clew.loop.ir import Buffer, For, If, Nest, Prefetch, Stmt, Store, transform
from clew.te.sizes import ExpressionsAt


def at_sizes(nest: Nest, sizes: Mapping[str, int]) -> Nest:
    """Returns the nest with the sizes of its buffers, loops and expressions replaced by numbers;
    sizes that are not given stay free.

    Loops that do not run at these sizes are kept. So are the facts of loops, which mark those whose
    iterations may compute an element again.
    """
    if not nest.sizes:
        return nest
    at = _AtSizes(sizes)
    inputs, outputs = (tuple(map(at.buffer, part)) for part in (nest.inputs, nest.outputs))
    body = transform(nest.body, at.statement)
    return replace(nest, inputs=inputs, outputs=outputs).with_body(body)


class _AtSizes:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._at = ExpressionsAt(sizes, self.buffer)
        # With what they replace, which keeps its id.
        self._buffers: dict[int, tuple[Buffer, Buffer]] = {}

    def buffer(self, buffer: Buffer) -> Buffer:
        """Returns a buffer at the given sizes."""
        found = self._buffers.get(id(buffer))
        if found is None:
            memory = None if buffer.memory is None else self.buffer(buffer.memory).root
            made = replace(buffer, shape=self._at.shape(buffer.shape), memory=memory)
            found = self._buffers[id(buffer)] = buffer, made
        return found[1]

    def statement(self, stmt: Stmt) -> Stmt | None:
        """Returns the statement, given one whose inner statements are already replaced."""
        of = self._at.of
        match stmt:
            case For():
                return replace(stmt, index=self._at.index(stmt.index))
            case Store():
                indices = tuple(map(of, stmt.indices))
                buffer, value = self.buffer(stmt.buffer), of(stmt.value)
                return replace(stmt, buffer=buffer, indices=indices, value=value)
            case Prefetch():
                indices = tuple(map(of, stmt.indices))
                return replace(stmt, buffer=self.buffer(stmt.buffer), indices=indices)
            case If():
                return replace(stmt, cond=of(stmt.cond))
        return None
