"""Runs a model over calibration data and collects the statistics that the choice of parameters
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.ir.expr import Expr, Var
from clew.ir.module import Module
from clew.quantization.feeds import Feed, feeds_of
from clew.quantization.migration import Channels
from clew.quantization.progress import Progress
from clew.quantization.ranges import Histogram
from clew.quantization.sites import Site
from clew.quantization.weight_only import Gram
from clew.support.errors import InputError
from clew.tap.capture import Unkept, giving

Array = NDArray[Any]
Extremes: TypeAlias = tuple[float, float]


def compiled(module: Module, options: CompileOptions) -> CompiledModel:
    """Returns a module compiled for use here: without a trace, and without an entry in the cache of
    whole builds.
    """
    return compile(module, **options.changed(trace=False, instruments=[Unkept()]))


@dataclass(frozen=True, eq=False)
class Point:
    """A value that is quantized, and the sites that read it. `axis` is that of its channels, None
    if the sites disagree about it.
    """

    value: Expr
    sites: tuple[Site, ...]

    @property
    def axis(self) -> int | None:
        """The axis of channels."""
        found = {s.channel_axis for s in self.sites}
        return found.pop() if len(found) == 1 else None


class Observer:
    """Runs a model that gives the values at points. `feeds` are the checked calibration data.

    The model gives these `results` of layers, too, and ignores them: its kernels are then those of
    the program that evaluates quantized layers, and are compiled once.
    """

    def __init__(
        self,
        module: Module,
        points: Sequence[Point],
        results: Sequence[Expr],
        calibration: Any,
        options: CompileOptions,
        progress: Progress,
    ) -> None:
        self._points, self._progress = points, progress
        inside = [p.value for p in points if not isinstance(p.value, Var)]
        self._inside = {v.id for v in inside}
        self._runs = bool(inside)
        given = giving(module, [*inside, *results]) if inside else module
        self._model = compiled(given, options)
        self.feeds = feeds_of(self._model, calibration)

    def _each(self, what: str, add: Callable[[list[Array]], None]) -> None:
        """Calls `add` with the values at points for each sample. They are let go before the next
        run, which then reuses their memory.
        """
        for feed in self._progress.over(what, self.feeds) if self._runs else self.feeds:
            add(self._values(feed))

    def _values(self, feed: Feed) -> list[Array]:
        values: Iterator[Any] = iter(self._model.run(dict(feed)).values() if self._runs else ())
        return [
            np.asarray(
                next(values) if p.value.id in self._inside else feed[p.value.name]  # type: ignore[attr-defined]
            )
            for p in self._points
        ]

    def channels(self, wanted: Sequence[bool]) -> list[Channels | None]:
        """Returns the channel distributions of the points that are `wanted`, over all samples.

        Errors: I393 for a point that has NaN or infinite numbers.
        """
        found = [
            Channels(p.sites[0].inputs) if w and p.axis is not None else None
            for p, w in zip(self._points, wanted, strict=True)
        ]

        def add(values: list[Array]) -> None:
            for point, channels, value in zip(self._points, found, values, strict=True):
                if channels is not None:
                    assert point.axis is not None
                    channels.add(value, point.axis)
                    _check(point, channels.low, channels.high)

        if any(c is not None for c in found):
            self._each("channels", add)
        return found

    def grams(self, points: Sequence[int]) -> list[Gram]:
        """Returns the products of the channels of these points, by index, over all samples."""
        found = [Gram(self._points[n].sites[0].inputs) for n in points]

        def add(values: list[Array]) -> None:
            for n, gram in zip(points, found, strict=True):
                gram.add(values[n])

        self._each("products of channels", add)
        return found

    def ranges(
        self, numbers: Sequence[Array | None], wanted: Sequence[bool]
    ) -> list[tuple[Extremes, Histogram]]:
        """Returns the extremes of each point over all samples, which include 0, and its histogram
        after the division of its channels by `numbers`. Histograms of points that are not `wanted`
        are empty.

        Errors: I393 for a point that has NaN or infinite numbers.
        """
        extremes = [(0.0, 0.0)] * len(self._points)
        found = [Histogram() for _ in self._points]

        def add(values: list[Array]) -> None:
            for n, (point, value) in enumerate(zip(self._points, values, strict=True)):
                if not value.size:
                    continue
                low, high = float(value.min()), float(value.max())
                _check(point, low, high)
                extremes[n] = min(extremes[n][0], low), max(extremes[n][1], high)
                by = numbers[n]
                if not wanted[n]:
                    continue
                if by is None:
                    found[n].add(value, (low, high))
                else:
                    found[n].add(_divided(value, by, point.axis))

        self._each("ranges", add)
        return list(zip(extremes, found, strict=True))


def _divided(value: Array, numbers: Array, axis: int | None) -> Array:
    """Returns a value whose channels are divided by numbers."""
    assert axis is not None
    along = [1] * value.ndim
    along[axis] = -1
    found: Array = value / numbers.reshape(along)
    return found


def _check(point: Point, low: Any, high: Any) -> None:
    """Errors: I393 for extremes that are NaN or infinite."""
    if not np.isfinite([low, high]).all():
        raise InputError(
            "I393",
            "a value in the model is NaN or infinite on the calibration data",
            layer=", ".join(point.value.span.layers[:3]),
            hint="keep the layers that read it in floats, or fix the data",
        )
