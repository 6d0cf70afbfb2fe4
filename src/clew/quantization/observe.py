"""Runs a model over calibration data and collects the statistics for choosing parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.ir.expr import Expr, Tuple, Var
from clew.ir.module import Module
from clew.quantization.feeds import Feed, feeds_of
from clew.quantization.migration import Channels
from clew.quantization.progress import Progress
from clew.quantization.ranges import Histogram, Histograms
from clew.quantization.sequences import Sequences
from clew.quantization.sites import Site
from clew.quantization.threads import Threads
from clew.quantization.totals import channels_first, highest, lowest
from clew.quantization.weight_only import Gram
from clew.support.errors import InputError
from clew.tap.capture import Unkept, giving

Array = NDArray[Any]


def compiled(module: Module, options: CompileOptions) -> CompiledModel:
    """Returns a module compiled for use here: without a trace, and without an entry in the cache of
    whole builds.
    """
    return compile(module, **options.changed(trace=False, instruments=[Unkept()]))


def outputs_of(module: Module) -> tuple[Expr, ...]:
    """Returns the outputs of a module."""
    body = module.main.body
    return tuple(body.fields) if isinstance(body, Tuple) else (body,)


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
    """Runs the model in floats and returns its values at points. `feeds` are the checked
    calibration data.

    The `results` of layers are outputs of the program, too. Its kernels are therefore also those of
    the program that evaluates quantized layers, and are compiled only once.
    """

    def __init__(
        self,
        module: Module,
        points: Sequence[Point],
        results: Sequence[Expr],
        calibration: Any,
        options: CompileOptions,
        progress: Progress,
        threads: Threads,
    ) -> None:
        self._points, self._progress, self._threads = points, progress, threads
        self._results, self._outputs = results, outputs_of(module)
        inside = [p.value for p in points if not isinstance(p.value, Var)]
        self._runs = bool(inside)
        given = {v.id: v for v in (*inside, *results, *self._outputs)}
        self._places = {id_: n for n, id_ in enumerate(given)}
        self._model = compiled(giving(module, list(given.values())), options)
        self.feeds = feeds_of(self._model, calibration, Sequences(module))

    def _each(self, what: str, add: Callable[[list[Array]], None]) -> None:
        """Calls `add` with the values at points for each sample. They are freed before the next
        run, which reuses their memory.
        """
        for feed in self._progress.over(what, self.feeds) if self._runs else self.feeds:
            add(self._values(feed))

    def _values(self, feed: Feed) -> list[Array]:
        found = self._run(feed) if self._runs else []
        return [
            np.asarray(feed[p.value.name] if isinstance(p.value, Var) else self._of(p.value, found))
            for p in self._points
        ]

    def _run(self, feed: Feed) -> list[Any]:
        return list(self._model.run(dict(feed)).values())

    def _of(self, value: Expr, found: Sequence[Any]) -> Array:
        return np.asarray(found[self._places[value.id]])

    def exact(self, feed: Feed) -> tuple[list[Array], list[Array]]:
        """Returns the outputs of the model and the results of the layers for a sample."""
        found = self._run(feed)
        outputs, results = (
            [self._of(v, found) for v in values] for values in (self._outputs, self._results)
        )
        return outputs, results

    def grams(self, points: Sequence[int]) -> list[Gram]:
        """Returns the sums of products of channels of these points, by index, over all samples."""
        found = [Gram(self._points[n].sites[0].inputs) for n in points]

        def add(values: list[Array]) -> None:
            for n, gram in zip(points, found, strict=True):
                gram.add(values[n])

        self._each("products of channels", add)
        return found

    def distributions(
        self, by_channel: Sequence[bool], counted: Sequence[bool]
    ) -> list[Distribution]:
        """Returns the distribution of the value at each point over all samples: by channel if
        `by_channel` is set and the sites agree about the axis, otherwise of the whole value, with a
        histogram if `counted` is set.

        Errors: I393 for a value that is NaN or infinite.
        """
        found = [
            Distribution.of(point, by_channel=by, counted=has)
            for point, by, has in zip(self._points, by_channel, counted, strict=True)
        ]

        def add(values: list[Array]) -> None:
            def one(n: int) -> None:
                if values[n].size:
                    found[n].add(values[n])

            self._threads.map(one, [value.size for value in values])

        self._each("ranges", add)
        return found


@dataclass(eq=False)
class Distribution:
    """The distribution of the value at a point: its range, extended to 0, and either statistics of
    its channels or, if counted, a histogram of all elements.
    """

    point: Point
    channels: Channels | None
    whole: Histograms | None
    low: float = 0.0
    high: float = 0.0

    @staticmethod
    def of(point: Point, *, by_channel: bool, counted: bool) -> Distribution:
        """Returns an empty distribution."""
        if by_channel and point.axis is not None:
            return Distribution(point, Channels(point.sites[0].inputs), None)
        return Distribution(point, None, Histograms() if counted else None)

    def add(self, value: Array) -> None:
        """Adds the value of a sample, which has elements. Errors: I393."""
        axis = self.point.axis
        rows = channels_first(value.reshape(1, -1, 1) if axis is None else value, axis or -2)
        if self.channels is None:
            rows = rows.reshape(1, 1, -1)
        low, high = lowest(rows), highest(rows)
        _check(self.point, low, high)
        self.low, self.high = min(self.low, float(low.min())), max(self.high, float(high.max()))
        if self.channels is not None:
            self.channels.add(rows, low, high)
        elif self.whole is not None:
            self.whole.add(rows, low, high)

    def histogram(self, numbers: Array | None) -> Histogram:
        """Returns the histogram; with `numbers`, that of the channels divided by these. Empty if
        elements were not counted.
        """
        if self.channels is not None:
            return self.channels.histograms.merged(numbers)
        return (self.whole or Histograms()).merged()


def _check(point: Point, low: Any, high: Any) -> None:
    """Errors: I393 for extremes that are NaN or infinite."""
    if not np.isfinite([low, high]).all():
        raise InputError(
            "I393",
            "a value in the model is NaN or infinite on the calibration data",
            layer=", ".join(point.value.span.layers[:3]),
            hint="keep the layers that read it in floats, or fix the data",
        )
