"""Sizes drawn for models with symbolic dimensions, and the figures of a model at these sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any, Final

import numpy as np

import zoo

Dims = dict[str, int]
FIRST_ALLOWANCE_S: Final = 2e-3
TOLERANCE: Final = 1e-4
_UNMATCHED, _UNMATCHED_ROWS = 0.02, 2  # by rounding near a threshold: a share, or this few
_WIDE = 8  # Ranges whose ends have a larger ratio are drawn log-uniformly
_TRIES = 200  # for a size that was not drawn before


@dataclass(frozen=True)
class Range:
    """Sizes of a dimension, both ends included: uniform, or log-uniform if the range is wide.

    Half of the sizes are a multiple of `often`. `grows`: the sizes are low, low + 1, ... instead.
    """

    low: int
    high: int
    often: int = 1
    grows: bool = False

    def draw(self, rng: np.random.Generator) -> int:
        """Returns one size."""
        if self.high > _WIDE * self.low:
            low, high = math.log(self.low), math.log(self.high + 1)
            size = min(self.high, int(math.exp(rng.uniform(low, high))))
        else:
            size = int(rng.integers(self.low, self.high, endpoint=True))
        if self.often > 1 and rng.random() < 0.5:
            size = max(self.often, round(size / self.often) * self.often)
        return size


_SENTENCES: Final = {"batch": Range(1, 8), "sequence": Range(1, 512)}
_PIXELS: Final = Range(64, 512, often=32)
RANGES: Final[Mapping[str, Mapping[str, Range]]] = {
    "encoder_free": _SENTENCES,
    "encoder_small_free": _SENTENCES,
    "detector_free": {"height": _PIXELS, "width": _PIXELS},
    "speech_free": {"samples": Range(400, 160_000)},
    "decoder_free": {"past": Range(0, 999, grows=True)},
}

ROWS: Final = {"detector_free": frozenset({"detections"})}
"""Outputs whose rows are compared in any order: near a threshold, rounding decides about a row."""


def ranges_of(model: str) -> Mapping[str, Range]:
    """Returns the ranges of a model's dimensions; by default up to four times the usual size."""
    usual = {name: Range(1, 4 * size) for name, size in zoo.dims(model).items()}
    return RANGES.get(model, usual)


def drawn(ranges: Mapping[str, Range], count: int, seed: int) -> list[Dims]:
    """Returns up to `count` different sizes; fewer if the ranges hold no more."""
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], Dims] = {}
    for number in range(count):
        for _ in range(_TRIES):
            dims = {name: r.low + number if r.grows else r.draw(rng) for name, r in ranges.items()}
            within = all(dims[name] <= r.high for name, r in ranges.items())
            if within and tuple(dims.values()) not in found:
                found[tuple(dims.values())] = dims
                break
    return list(found.values())


def elements(dims: Mapping[str, int]) -> int:
    """Returns the product of the sizes: the order from small to large."""
    return math.prod(dims.values())


def spread(sizes: Sequence[Dims], count: int) -> list[int]:
    """Returns positions of up to `count` sizes, evenly spaced from the smallest to the largest."""
    order = sorted(range(len(sizes)), key=lambda n: elements(sizes[n]))
    if count >= len(order):
        return sorted(order)
    places = np.linspace(0, len(order) - 1, count) if count > 1 else np.array([len(order) // 2])
    return sorted({order[round(place)] for place in places[:count]})


@dataclass
class AtSize:
    """The figures at one size. Seconds are medians, except for the only first call.

    `builds` counts those of the first call and the calls after it. `first_s`, `again_s`, and the
    memory come from a process in which only clew has run so far; `free_s`, `peer_s`, and `static_s`
    from calls in turns. `static_ratio` and `peer_ratio` are the times of the static build and of
    ONNX Runtime ÷ the free build's: medians over rounds, because a shared machine's speed drifts
    from round to round. `error` is relative to the largest value of an output. Of the `rows` of
    outputs that are compared by rows (see `ROWS`), `unmatched` are in only one engine's.
    """

    dims: Dims
    builds: int = 0
    first_s: float | None = None
    again_s: float | None = None
    before_bytes: int = 0
    after_bytes: int = 0
    free_s: float | None = None
    peer_s: float | None = None
    static_s: float | None = None
    static_ratio: float | None = None
    peer_ratio: float | None = None
    error: float | None = None
    rows: int = 0
    unmatched: int = 0
    failure: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether this size failed, or outputs disagree."""
        allowed = max(_UNMATCHED_ROWS, _UNMATCHED * self.rows)
        return bool(self.failure) or (self.error or 0.0) > TOLERANCE or self.unmatched > allowed

    @property
    def first_ratio(self) -> float | None:
        """(first call − 2 ms) ÷ a later call at the same size."""
        if self.first_s is None or self.again_s is None:
            return None
        return max(0.0, self.first_s - FIRST_ALLOWANCE_S) / self.again_s


@dataclass
class Served:
    """The figures of one process that compiled a model and ran it at all sizes.

    Memory is the resident set size after a garbage collection.
    """

    compile_s: float = 0.0
    builds: int = 0
    compiled_bytes: int = 0
    sizes: list[AtSize] = field(default_factory=list)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Served:
        """Returns the figures that a child process printed."""
        sizes = [AtSize(**each) for each in data["sizes"]]
        return cls(**{**data, "sizes": sizes})

    @property
    def growth(self) -> float:
        """Growth of the process from the first size to the last, as a share."""
        return self._growth_after(self.sizes[0])

    @property
    def growth_after_largest(self) -> float:
        """Growth since the largest size had run, whose activations need the most memory."""
        return self._growth_after(max(self.sizes, key=lambda s: elements(s.dims)))

    def _growth_after(self, size: AtSize) -> float:
        return self.sizes[-1].after_bytes / size.after_bytes - 1 if size.after_bytes else 0.0


@dataclass(frozen=True)
class Spread:
    """A figure over all sizes that have it: geometric mean, and the worst with its size."""

    mean: float
    worst: float
    dims: Dims


def summary(figures: Iterable[tuple[Dims, float | None]], *, low: bool) -> Spread | None:
    """Returns the spread of figures; the worst is the lowest if `low`, else the highest."""
    known = list(_known(figures))
    if not known:
        return None
    dims, worst = (min if low else max)(known, key=lambda pair: pair[1])
    positive = [value for _, value in known if value > 0]
    return Spread(geometric_mean(positive) if positive else 0.0, worst, dims)


def _known(figures: Iterable[tuple[Dims, float | None]]) -> Iterator[tuple[Dims, float]]:
    return ((dims, value) for dims, value in figures if value is not None)
