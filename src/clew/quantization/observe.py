"""Runs a model over calibration data and collects the statistics that the choice of parameters
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
from clew.quantization.ranges import BINS, Histogram
from clew.quantization.sites import Site
from clew.quantization.weight_only import Gram
from clew.support.errors import InputError
from clew.tap.capture import Unkept, giving

Array = NDArray[Any]


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

    def channels(self) -> list[Channels]:
        """Returns the distribution of each point's channels over all samples. Where the axis is
        unknown, the whole value is one channel.

        Errors: I393 for a point that has NaN or infinite numbers.
        """
        found = [Channels(p.sites[0].inputs if p.axis is not None else 1) for p in self._points]

        def add(values: list[Array]) -> None:
            for point, channels, value in zip(self._points, found, values, strict=True):
                if point.axis is None:
                    channels.add(value.reshape(1, -1), -2)
                else:
                    channels.add(value, point.axis)

        self._each("ranges", add)
        for point, channels in zip(self._points, found, strict=True):
            if not np.isfinite([channels.low, channels.high]).all():
                raise InputError(
                    "I393",
                    "a value in the model is NaN or infinite on the calibration data",
                    layer=", ".join(point.value.span.layers[:3]),
                    hint="keep the layers that read it in floats, or mend the data",
                )
        return found

    def grams(self, points: Sequence[int]) -> list[Gram]:
        """Returns the products of the channels of these points, by index, over all samples."""
        found = [Gram(self._points[n].sites[0].inputs) for n in points]

        def add(values: list[Array]) -> None:
            for n, gram in zip(points, found, strict=True):
                gram.add(values[n])

        self._each("products of channels", add)
        return found

    def histograms(
        self, channels: Sequence[Channels], numbers: Sequence[Array | None], wanted: Sequence[bool]
    ) -> list[Histogram]:
        """Returns the distribution of each point over all samples, after the division of its
        channels by `numbers`; of points that are not `wanted`, only the extremes.
        """
        found = []
        for c, n in zip(channels, numbers, strict=True):
            ones = np.ones(1) if n is None else n.astype(np.float64)
            low, high = float(np.min(c.low / ones)), float(np.max(c.high / ones))
            found.append(Histogram(low, high, np.zeros(BINS, np.int64)))

        def add(values: list[Array]) -> None:
            for point, histogram, by, value, is_wanted in zip(
                self._points, found, numbers, values, wanted, strict=True
            ):
                if not is_wanted:
                    continue
                if by is not None and point.axis is not None:
                    along = [1] * value.ndim
                    along[point.axis] = -1
                    value = value / by.reshape(along)
                histogram.add(value)

        if any(wanted):
            self._each("distributions", add)
        return found
