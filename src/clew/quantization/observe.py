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
from clew.ops.registry import get_op
from clew.quantization.feeds import Feed, feeds_of
from clew.quantization.migration import Channels
from clew.quantization.parameters import Parameters
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


def results_of(model: CompiledModel, feed: Feed) -> list[Array]:
    """Returns the results of a call."""
    results = model(dict(feed))
    return [np.asarray(r) for r in (results if len(model.output_names) > 1 else (results,))]


def values_of(
    model: CompiledModel, feeds: Sequence[Feed], say: Callable[[str], None], what: str
) -> Iterator[list[Array]]:
    """Yields the results of each call."""
    for number, feed in enumerate(feeds):
        say(f"{what}: sample {number + 1} of {len(feeds)}")
        yield results_of(model, feed)


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
    """Runs a model that gives the values at points. `feeds` are the checked calibration data."""

    def __init__(
        self,
        module: Module,
        points: Sequence[Point],
        calibration: Any,
        options: CompileOptions,
        say: Callable[[str], None],
    ) -> None:
        self._points, self._say = points, say
        inside = [p.value for p in points if not isinstance(p.value, Var)]
        self._inside = {v.id for v in inside}
        self._runs = bool(inside)
        self._model = compiled(giving(module, inside) if inside else module, options)
        self.feeds = feeds_of(self._model, calibration)

    def _values(self, what: str) -> Iterator[list[Array]]:
        for number, feed in enumerate(self.feeds):
            values: Iterator[Array] = iter(())
            if self._runs:
                self._say(f"{what}: sample {number + 1} of {len(self.feeds)}")
                values = iter(results_of(self._model, feed))
            yield [
                next(values) if p.value.id in self._inside else np.asarray(feed[p.value.name])  # type: ignore[attr-defined]
                for p in self._points
            ]

    def channels(self) -> list[Channels]:
        """Returns the distribution of each point's channels over all samples. Where the axis is
        unknown, the whole value is one channel.

        Errors: I393 for a point that has NaN or infinite numbers.
        """
        found = [Channels(p.sites[0].inputs if p.axis is not None else 1) for p in self._points]
        for values in self._values("ranges"):
            for point, channels, value in zip(self._points, found, values, strict=True):
                if point.axis is None:
                    channels.add(value.reshape(1, -1), 0)
                else:
                    channels.add(value, point.axis)
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
        for values in self._values("products of channels"):
            for n, gram in zip(points, found, strict=True):
                gram.add(values[n])
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
        for values in self._values("distributions") if any(wanted) else ():
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
        return found


@dataclass(frozen=True)
class LocalError:
    """The error that quantization of one site causes in its own result, on exact inputs.

    `means` is the mean error per output channel; `error` and `signal` are mean squares of error and
    result. Each sample counts equally.
    """

    means: Array
    error: float
    signal: float

    @property
    def corrected(self) -> float:
        """The mean square of the error without its mean per channel."""
        return max(self.error - float(np.mean(self.means**2)), 0.0)


def local_errors(
    module: Module,
    parameters: Sequence[Parameters],
    feeds: Sequence[Feed],
    options: CompileOptions,
    say: Callable[[str], None],
) -> list[LocalError]:
    """Returns the local error of each site."""
    if not parameters:
        return []
    values: list[Expr] = []
    for p in parameters:
        call = p.site.call
        operands = [p.quantized_data(p.site.data), p.quantized_weight()]
        made = type(call)(call.op, operands, call.attrs)
        values += [get_op("subtract")(made, call), call]
    model = compiled(giving(module, values), options)
    means = [np.zeros(p.site.channels) for p in parameters]
    squares = np.zeros((len(parameters), 2))
    for found in values_of(model, feeds, say, "local errors"):
        for n, p in enumerate(parameters):
            error, result = found[2 * n], found[2 * n + 1]
            rows = np.moveaxis(error, p.site.channel_axis, 0).reshape(p.site.channels, -1)
            means[n] += rows.mean(axis=1, dtype=np.float64)
            squares[n] += [np.mean(np.square(x), dtype=np.float64) for x in (error, result)]
    count = len(feeds)
    return [
        LocalError(m / count, float(e) / count, float(s) / count)
        for m, (e, s) in zip(means, squares, strict=True)
    ]
