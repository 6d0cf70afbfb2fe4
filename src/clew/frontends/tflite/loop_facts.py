"""Facts about loops that an import collects before and after it has imported their bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clew.frontends.tflite.file.model import File, OperatorInfo
from clew.frontends.tflite.variables import Variable

_DEEP: Final = 32  # loops in loops that are looked into


class LoopFacts:
    """Facts about the loops of a file.

    `changing_sizes` lists the sizes of states that change between iterations, as state and axis, by
    layer. `assigned` lists the variables that a loop's body assigns, by layer.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._passed_on: dict[int, frozenset[int]] = {}
        self.changing_sizes: Final[dict[str, set[tuple[int, int]]]] = {}
        self.assigned: Final[dict[str, list[Variable]]] = {}

    def passed_on(self, body: int, depth: int = 0) -> frozenset[int]:
        """Returns the states that a loop's body passes on unchanged, also through nested loops."""
        if body not in self._passed_on:
            self._passed_on[body] = frozenset()  # for bodies that run themselves, which is an error
            graph = self._file.graphs[body]
            loops = {
                index: operator
                for operator in graph.operators
                if operator.op == "WHILE" and depth < _DEEP
                for index in operator.outputs
            }
            self._passed_on[body] = frozenset(
                n
                for n, (given, result) in enumerate(zip(graph.inputs, graph.outputs, strict=False))
                if self._origin(loops, result, depth) == given
            )
        return self._passed_on[body]

    def _origin(self, loops: Mapping[int, OperatorInfo], index: int, depth: int) -> int:
        """Returns the tensor that a result is, once loops that pass it on unchanged are skipped."""
        for _ in range(len(loops) + 1):
            loop = loops.get(index)
            inner = -1 if loop is None else int(loop.options.get("body_subgraph_index", 0))
            if loop is None or not 0 <= inner < len(self._file.graphs):
                return index
            state = loop.outputs.index(index)
            if state not in self.passed_on(inner, depth + 1) or state >= len(loop.inputs):
                return index
            index = loop.inputs[state]
        return index
