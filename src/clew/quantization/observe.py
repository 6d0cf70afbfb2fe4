"""Runs a model over calibration data and collects what the choice of parameters needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.compiled import CompiledModel
from clew.compiler import compile
from clew.extraction.capture import Unkept
from clew.ir.expr import Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ops.registry import get_op
from clew.quantization.feeds import Feed
from clew.quantization.parameters import Parameters
from clew.quantization.ranges import BINS, Histogram
from clew.support.errors import InputError
from clew.trace.span import Span

Array = NDArray[Any]


def giving(module: Module, values: Sequence[Expr], params: Sequence[Var] = ()) -> Module:
    """Returns a module that gives these values instead of the model's outputs, and takes more
    parameters.
    """
    names = tuple(f"value{n}" for n in range(len(values)))
    body = Tuple(list(values), span=Span())
    main = Function([*module.main.params, *params], body, {"outputs": names}, span=Span())
    return module.with_functions({"main": main})


def compiled(module: Module, **options: Any) -> CompiledModel:
    """Returns a module compiled for use here: without a trace, and without an entry in the cache of
    whole builds.
    """
    return compile(module, **{**options, "trace": False, "instruments": [Unkept()]})


def values_of(
    model: CompiledModel, feeds: Iterable[Feed], say: Callable[[str], None], what: str
) -> Iterator[list[Array]]:
    """Yields the results of each call."""
    every = list(feeds)
    for number, feed in enumerate(every):
        say(f"{what}: sample {number + 1} of {len(every)}")
        results = model(dict(feed))
        yield [np.asarray(r) for r in (results if len(model.output_names) > 1 else (results,))]


def distributions(
    module: Module,
    points: Mapping[int, Expr],
    feeds: Sequence[Feed],
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[int, Histogram]:
    """Returns the distribution of each point (by node id) over all samples: extremes first, then
    counts.

    Errors: I393 for a point that has NaN or infinite numbers.
    """
    inside = {i: p for i, p in points.items() if not isinstance(p, Var)}
    given = {i: p.name for i, p in points.items() if isinstance(p, Var)}
    model = compiled(giving(module, list(inside.values())), **options) if inside else None
    low, high = dict.fromkeys(points, 0.0), dict.fromkeys(points, 0.0)

    def each(what: str) -> Iterator[dict[int, Array]]:
        runs = values_of(model, feeds, say, what) if model else iter([[] for _ in feeds])
        for feed, values in zip(feeds, runs, strict=True):
            found = dict(zip(inside, values, strict=True))
            yield found | {i: np.asarray(feed[name]) for i, name in given.items()}

    for found in each("ranges"):
        for i, value in found.items():
            if value.size:
                low[i] = min(low[i], float(value.min()))
                high[i] = max(high[i], float(value.max()))
    for i, point in points.items():
        if not np.isfinite([low[i], high[i]]).all():
            raise InputError(
                "I393",
                "a value in the model is NaN or infinite on the calibration data",
                layer=", ".join(point.span.layers[:3]),
                hint="keep the layers that read it in floats, or mend the data",
            )
    counted = {i: Histogram(low[i], high[i], np.zeros(BINS, np.int64)) for i in points}
    for found in each("distributions"):
        for i, value in found.items():
            counted[i].add(value)
    return counted


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
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[LocalError]:
    """Returns the local error of each site."""
    if not parameters:
        return []
    values: list[Expr] = []
    for p in parameters:
        call, rank = p.site.call, p.site.call.tensor.rank
        made = type(call)(
            call.op, [p.quantized_data(p.site.data), p.quantized_weight()], call.attrs
        )
        difference = get_op("subtract")(made, call)
        others = tuple(n for n in range(rank) if n != rank + p.site.result_axis)
        values.append(get_op("mean")(difference, axes=others, keepdims=False))
        for x in (difference, call):
            square = get_op("multiply")(x, x)
            values.append(get_op("mean")(square, axes=tuple(range(rank)), keepdims=False))
    model = compiled(giving(module, values), **options)
    sums: list[Any] = [np.float64(0)] * len(values)
    for found in values_of(model, feeds, say, "local errors"):
        sums = [a + np.asarray(b, np.float64) for a, b in zip(sums, found, strict=True)]
    means = [s / len(feeds) for s in sums]
    return [
        LocalError(means[n], float(means[n + 1]), float(means[n + 2]))
        for n in range(0, len(means), 3)
    ]
