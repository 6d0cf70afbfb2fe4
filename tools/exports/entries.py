"""Entries of the list: how to make a network, and the form of its inputs."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zoo.entries import Array, Dims, Input

EXPORTERS = ("dynamo", "torchscript")


@dataclass(frozen=True)
class Entry:
    """One network.

    `make()` returns a torch module that takes the inputs in order, or by name where `by_name`.
    `inputs` may name dimensions: these are free with dynamic axes and have the sizes `dims`
    otherwise. A model with dynamic axes runs at the sizes `others` as well. `adjust(module, run)`
    changes weights after all were drawn; `run()` runs the module on a few examples.
    """

    name: str
    family: str
    make: Callable[[], Any]
    inputs: tuple[Input, ...]
    dims: Dims = field(default_factory=dict)
    others: Dims = field(default_factory=dict)
    by_name: bool = False
    adjust: Callable[[Any, Callable[[], Any]], None] | None = None
    exporters: tuple[str, ...] = EXPORTERS

    @property
    def is_free(self) -> bool:
        """Whether any dimension has a name, so that there is a model with dynamic axes."""
        return bool(self.dims)

    def draw(self, seed: int, dims: Dims | None = None) -> dict[str, Array]:
        """Returns values for the inputs by name, named dimensions taken from `dims` first."""
        rng = np.random.default_rng(seed)
        sizes = {**self.dims, **(dims or {})}
        drawn = {}
        for spec in self.inputs:
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)
            drawn[spec.name] = spec.draw(rng, shape)
        return drawn

    @property
    def description(self) -> str:
        """Text that changes when the network does: its code and what that is given."""
        parts = [_described(self.make), _described(self.adjust), str(self.by_name)]
        parts += [f"{i.name}{i.shape}{_described(i.draw)}" for i in self.inputs]
        return "\n".join([*parts, str(dict(self.dims))])


def _described(function: Any) -> str:
    """Returns a function's source, that of functions bound to it, and bound arguments."""
    if isinstance(function, functools.partial):
        bound = [*function.args, *(f"{k}={_described(v)}" for k, v in function.keywords.items())]
        return f"{_described(function.func)}({', '.join(map(_described, bound))})"
    if inspect.isfunction(function):
        cells = [_described(cell.cell_contents) for cell in function.__closure__ or ()]
        return f"{code_of(inspect.getsource(function))}{cells}"
    return repr(function)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def code_of(source: str) -> str:
    """Returns text that is the same for programs that differ in comments, docstrings and layout."""
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            node.body = body[1:]  # type: ignore[attr-defined]
    return ast.dump(tree)


# ------------------------------------------------------------------------------- values for inputs


def waveform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns f32[batch, samples] of sound: a few sine waves and noise."""
    time = np.arange(shape[-1]) / 16_000
    waves = sum(
        rng.uniform(0.1, 0.5, (*shape[:-1], 1))
        * np.sin(2 * np.pi * rng.uniform(80, 2_000, (*shape[:-1], 1)) * time)
        for _ in range(4)
    )
    return (waves + 0.05 * rng.standard_normal(shape)).astype(np.float32)


def photograph(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns f32 pixels in [0, 1] with coarse and fine structure, as inputs of detectors."""
    height, width = shape[-2:]
    coarse = rng.uniform(0.1, 0.9, (*shape[:-2], -(-height // 16), -(-width // 16)))
    coarse = coarse.repeat(16, axis=-2).repeat(16, axis=-1)[..., :height, :width]
    return np.clip(coarse + 0.1 * rng.standard_normal(shape), 0, 1).astype(np.float32)


def uniform(low: float, high: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Returns a drawer of f32 values in [low, high)."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.uniform(low, high, shape).astype(np.float32)

    return draw


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns i64 ones: a mask that hides nothing."""
    return np.ones(shape, np.int64)


def boxes(size: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Returns a drawer of i64[batch, n, 4] boxes (left, top, right, bottom) within [0, size)."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        corners = rng.integers(0, size, (*shape[:-1], 2, 2), dtype=np.int64)
        return np.sort(corners, axis=-2).reshape(shape)

    return draw


def edges(nodes: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Returns a drawer of i64[2, edges]: from which node to which."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.integers(0, nodes, shape, dtype=np.int64)

    return draw


def unique(entries: Iterator[Entry]) -> dict[str, Entry]:
    """Returns entries by name."""
    found: dict[str, Entry] = {}
    for entry in entries:
        assert entry.name not in found, f"two entries are named {entry.name}"
        found[entry.name] = entry
    return found
