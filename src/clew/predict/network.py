"""A network built one layer at a time, as an ONNX model with random weights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.frontends.onnx import ModelProto
from clew.frontends.onnx.file.writer import GraphWriter

Shape = tuple[int, ...]
# Weights are cut from this many random numbers: drawing hundreds of millions takes longer than
# compiling, and no kernel's time depends on them.
_DRAWN = 1 << 20


class Network:
    """Builds a network from layers. Values are named by strings; `shapes` maps each to its shape.

    Weights keep activations near 1 throughout, as in trained networks: products of infinities and
    of denormal numbers would take a different time.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.shapes: dict[str, Shape] = {}
        self.weight_elems = 0
        self._pool = np.random.default_rng(seed).standard_normal(_DRAWN).astype(np.float32)
        self._graph = GraphWriter(name)

    def input(self, name: str, shape: Sequence[int], integers: bool = False) -> str:
        """Adds an input: f32, or i64 such as tokens."""
        self._graph.input(name, shape, np.int64 if integers else np.float32)
        self.shapes[name] = tuple(shape)
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Adds a constant."""
        name = f"c{self._graph.constants}"
        array = np.asarray(value, dtype)
        self._graph.constant(name, array)
        self.shapes[name] = array.shape
        return name

    def weight(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        """Adds a constant of random numbers."""
        count = int(np.prod(shape))
        self.weight_elems += count
        start = self.random.randrange(_DRAWN)
        drawn = np.resize(np.roll(self._pool, -start), count).reshape(shape)
        return self.constant(drawn * np.float32(scale) + np.float32(mean))

    def add(self, op: str, inputs: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        """Adds a layer with one output, and returns that output."""
        name = f"{op.lower()}_{self._graph.nodes}"
        self._graph.node(op, name, inputs, [name], **attributes)
        self.shapes[name] = tuple(shape)
        return name

    def unary(self, op: str, x: str, **attributes: Any) -> str:
        """Adds a layer whose output has its input's shape."""
        return self.add(op, [x], self.shapes[x], **attributes)

    def binary(self, op: str, a: str, b: str) -> str:
        """Adds a layer with two operands that broadcast."""
        return self.add(op, [a, b], np.broadcast_shapes(self.shapes[a], self.shapes[b]))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Adds a Reshape."""
        return self.add("Reshape", [x, self.constant(shape, np.int64)], shape)

    def transpose(self, x: str, order: Sequence[int]) -> str:
        """Adds a Transpose."""
        shape = [self.shapes[x][axis] for axis in order]
        return self.add("Transpose", [x], shape, perm=list(order))

    def split(self, x: str, count: int, name: str) -> list[str]:
        """Adds a Split of the last axis into equal parts."""
        *outer, width = self.shapes[x]
        names = [f"{name}_{n}" for n in range(count)]
        self._graph.node("Split", name, [x], names, axis=-1, num_outputs=count)
        self.shapes.update(dict.fromkeys(names, (*outer, width // count)))
        return names

    def model(self, *outputs: str) -> ModelProto:
        """Returns the model."""
        return self._graph.model({name: self.shapes[name] for name in outputs})
