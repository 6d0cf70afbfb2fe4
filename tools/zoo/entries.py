"""Entries of the zoo: how a model is built, and the form of its inputs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Array = np.ndarray
Dims = Mapping[str, int]


@dataclass(frozen=True)
class Input:
    """One graph input.

    `shape` may name symbolic dimensions. `draw(rng, shape)` returns a realistic value.
    """

    name: str
    shape: tuple[int | str, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]


@dataclass(frozen=True)
class Entry:
    """One model.

    `build(path)` writes a self-contained ONNX file. `groups` are the selections it belongs to;
    `dims` has the default size of each symbolic dimension; `sources` are the files whose change
    makes a cached model stale, and `libraries` further packages whose version does.
    """

    name: str
    groups: frozenset[str]
    build: Callable[[Path], None]
    inputs: tuple[Input, ...]
    sources: tuple[Path, ...]
    dims: Dims = field(default_factory=dict)
    libraries: tuple[str, ...] = ()

    def draw(self, rng: np.random.Generator, dims: Dims) -> Iterator[tuple[str, Array]]:
        """Yields (name, value) for each input, symbolic dimensions taken from `dims`."""
        unknown = dims.keys() - self.dims.keys()
        if unknown:
            raise KeyError(f"{self.name} has no dimension named {', '.join(sorted(unknown))}")
        sizes = {**self.dims, **dims}
        for spec in self.inputs:
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)
            yield spec.name, spec.draw(rng, shape)


def image(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns f32 pixels, normalized, coarse and fine in space as photographs are."""
    height, width = shape[-2:]
    coarse = rng.standard_normal((*shape[:-2], -(-height // 8), -(-width // 8)))
    coarse = coarse.repeat(8, axis=-2).repeat(8, axis=-1)[..., :height, :width]
    fine = rng.standard_normal(shape)
    return (0.9 * coarse + 0.4 * fine).astype(np.float32)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns f32 values of a standard normal distribution."""
    return rng.standard_normal(shape).astype(np.float32)


def tokens(vocabulary: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Returns a drawer of i64 token ids below `vocabulary`."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.integers(0, vocabulary, shape, dtype=np.int64)

    return draw


def padding_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns an i64[batch, sequence] mask: ones, at each row's end up to a quarter of zeros."""
    batch, sequence = shape
    lengths = sequence - rng.integers(0, sequence // 4 + 1, (batch, 1))
    return (np.arange(sequence) < lengths).astype(np.int64)


def scalar(low: int, high: int) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Returns a drawer of an i64 tensor with values in [low, high]."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.asarray(rng.integers(low, high, shape, dtype=np.int64, endpoint=True))

    return draw
