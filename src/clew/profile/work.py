"""The work of layers in the imported model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from clew.build.result import Build
from clew.ir.expr import Call
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.work import call_flops


class LayerWork:
    """FLOPs and types of a model's layers, computed on first use."""

    def __init__(self, build: Build) -> None:
        self.types: dict[str, str] = {}
        self._calls: dict[str, list[Call]] = {}
        self._flops: dict[str, float] = {}
        self.build = build
        for node in _nodes(build):
            if isinstance(node, Call):
                for source in node.span.sources:
                    self.types.setdefault(source.layer, source.op)
                for layer in node.span.layers:
                    self._calls.setdefault(layer, []).append(node)

    def calls(self, layer: str) -> Sequence[Call]:
        """Returns the calls of a layer's operators in the model."""
        return self._calls.get(layer, ())

    def weigh(self, layers: Sequence[str]) -> list[float]:
        """Returns the FLOPs of layers, for use as weights."""
        return [self._of(layer) for layer in layers]

    def _of(self, layer: str) -> float:
        found = self._flops.get(layer)
        if found is None:
            counts = [self.flops(call) for call in self._calls.get(layer, ())]
            found = self._flops[layer] = math.fsum(counts)
        return found

    def flops(self, call: Call) -> float:
        """Returns the FLOPs of an operator call; 0 for other calls and for unknown sizes."""
        return float(self.build.known(call_flops(call)) or 0)


def _nodes(build: Build) -> list[Any]:
    """Returns the nodes of the first stage whose inputs have known sizes."""
    for stage in build.stages:
        params = [p.type for p in stage.module.main.params]
        sizes = [d for t in params if isinstance(t, TensorType) for d in t.shape]
        if all(build.known(d) is not None for d in sizes):
            roots = [function for _, function in stage.module]
            return post_order(roots, into_functions=True)
    return []
