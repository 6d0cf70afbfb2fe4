"""One program that evaluates every choice of quantized layers: each site has a switch.

It gives the float and the quantized result of each layer besides the outputs, so that the errors of
layers, on exact operands and in the quantized model, come from runs of it as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.backends.compile_options import CompileOptions, Precision
from clew.compiling.compile import passes_for
from clew.ir.dims import is_unknown
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, is_float
from clew.ops.registry import get_op
from clew.passes.base import Pass
from clew.passes.fusion.fuse_ops import FuseOps
from clew.quantization.feeds import Feed
from clew.quantization.observe import Observer, compiled, outputs_of
from clew.quantization.parameters import Parameters
from clew.quantization.progress import Progress
from clew.quantization.settled import Means, Ratios
from clew.quantization.sites import Site
from clew.quantization.sums import Addend, Sum, active
from clew.quantization.threads import Threads
from clew.quantization.totals import channels_first, squared, total, totals
from clew.trace.span import Span

Array = NDArray[Any]
Outputs = list[Array]


@dataclass(frozen=True)
class LocalError:
    """The error that quantization of one site causes in its own result, on exact inputs.

    `means` is the mean error per output channel; `error` and `signal` are mean squares of the error
    and of the product without its bias. Each sample that was measured counts equally.
    """

    means: Array
    error: float
    signal: float

    @property
    def corrected(self) -> float:
        """The mean square of the error without its mean per channel."""
        return max(self.error - float(np.mean(self.means**2)), 0.0)


@dataclass(frozen=True)
class Accumulated:
    """Errors over calibration data, each the root of the sum of squared differences over that of
    squares: of the results of layers by name, without those that cannot be compared, and of the
    output where it is largest, None if no output has floats.
    """

    layers: Mapping[str, float] = field(default_factory=dict)
    outputs: float | None = None


class Simulation:
    """A model in which each site computes both its float and its quantized result and gives either,
    by an input. It is compiled once; biases are inputs, too, so that they can be corrected. The
    operands of a sum have the switch of the product that it belongs to. Max pools are left
    unchanged: they compute the same on rounded operands. `results` are the layers whose errors
    `accumulated` returns; `observer` computes these results and the outputs in floats.

    Integers are multiplied as floats, by the kernels of the float results; only the rounding of
    sums differs from the quantized model. With products in fewer bits than `f32`, which could not
    hold them, and for weights alone, quantized results come from the kernels of the quantized
    model.
    """

    def __init__(
        self,
        module: Module,
        results: Sequence[Site | Sum],
        parameters: Sequence[Parameters],
        addends: Sequence[Addend],
        observer: Observer,
        options: CompileOptions,
        progress: Progress,
        threads: Threads,
    ) -> None:
        self._threads = threads
        self.output_names = module.output_names
        self.names = [p.site.name for p in parameters]
        self._parameters, self._results = list(parameters), results
        self._biases = [p.bias_numbers(rounded=False) for p in parameters]
        self._observer, self._feeds, self._progress = observer, observer.feeds, progress
        exact = options.group(Precision).precision == "f32"
        switched = _Switched(parameters, addends, floats=exact)
        changed = switched.rewrite_module(module)
        main = changed.main
        outputs = outputs_of(changed)
        self._count = len(outputs)
        self._kept = [n for n, f in enumerate(outputs) if _is_comparable(f)]
        self.has_floats = bool(self._kept)
        exacts = [switched.exact.get(r.result.id) or switched.memo[r.result.id] for r in results]
        quantized = [switched.quantized[p.site.result.id] for p in parameters]
        fields = [*outputs, *exacts, *quantized]
        names = tuple(f"output{n}" for n in range(len(fields)))
        inputs = [*main.params, *switched.inputs.values()]
        body = Tuple(fields, span=Span())
        function = Function(inputs, body, {"outputs": names}, span=Span())
        simulated = options.changed(passes=_passes(options))
        self._model = compiled(changed.with_functions({"main": function}), simulated)
        self._exact: list[Outputs] | None = None

    def correct(self, parameters: Sequence[Parameters]) -> None:
        """Adds the biases of these parameters of the same sites from now on, in their integers.
        Before, biases are not rounded, so that no correction depends on their rounding.
        """
        self._parameters = list(parameters)
        self._biases = [p.bias_numbers(rounded=True) for p in parameters]

    def _run(self, feed: Feed, quantized: Collection[str]) -> list[Any]:
        given: dict[str, Any] = dict(feed)
        for n, p in enumerate(self._parameters):
            given[f"switch:{n}"] = np.bool_(p.site.name in quantized)
            given[f"bias:{n}"] = self._biases[n]
        return list(self._model.run(given).values())

    def runs(self, quantized: Collection[str], count: int | None = None) -> Iterator[Outputs]:
        """Yields the outputs for each sample (or the first `count`), given the sites that are
        quantized.
        """
        for feed in self._feeds[:count]:
            yield [np.asarray(r) for r in self._run(feed, quantized)[: self._count]]

    @property
    def exact(self) -> list[Outputs]:
        """The outputs for each sample without quantized sites, computed by this program. Searches
        compare choices of sites, and the empty choice must have an error of exactly 0.
        """
        if self._exact is None:
            self._progress.say("float outputs")
            self._exact = list(self.runs(()))
        return self._exact

    def floats(self, outputs: Outputs) -> Outputs:
        """Returns the outputs of floats."""
        return [outputs[n].astype(np.float64) for n in self._kept]

    def error(self, quantized: Collection[str]) -> float:
        """Returns the error of the outputs over all samples: the root of the sum of squared
        differences divided by the sum of squares, for the output where it is largest.
        """
        sums = Ratios(len(self._kept), len(self._feeds))
        for found, exact in zip(self.runs(quantized), self.exact, strict=True):
            self._add(sums, [found[n] for n in self._kept], [exact[n] for n in self._kept])
        return float(max(sums.values))

    def local(self) -> list[LocalError]:
        """Returns the local error of each site, from as many samples as precise bias corrections
        require; errors alone need at most `SHOWN_SAMPLES`.
        """
        samples = len(self._feeds)
        means = [Means(p.site.channels, samples) for p in self._parameters]
        squares = Ratios(len(self._parameters), samples)
        signals = np.zeros(len(self._parameters))
        for feed in self._progress.over("local errors", self._feeds.spread, at_most=True):
            found = self._local_sums(means, self._run(feed, ())[self._count :])
            squares.add(*found.T)
            signals += found[:, 1]
            if squares.is_enough and all(m.is_settled for m in means):
                break
        signal = signals / max(len(squares), 1)
        return [LocalError(m.values, m.error, float(s)) for m, s in zip(means, signal, strict=True)]

    def _local_sums(self, means: list[Means], found: list[Any]) -> Array:
        """Adds the errors of a sample to `means`; returns the mean squares of the error and of the
        product for each site, `f64[N, 2]`.
        """
        places = {r.name: n for n, r in enumerate(self._results)}
        exacts, quantized = found[: len(places)], found[len(places) :]
        squares = np.zeros((len(means), 2))

        def add(n: int) -> None:
            site = self._parameters[n].site
            exact = channels_first(exacts[places[site.name]], site.channel_axis)
            error = channels_first(quantized[n], site.channel_axis) - exact
            if not error.size:
                return
            constant = site.bias_constant
            if constant is not None:
                exact = exact - constant.data.reshape(-1, 1)
            squares[n] = [total(squared(x)) / x.size for x in (error, exact)]
            means[n].add(totals(error) / (error.size // error.shape[1]), float(squares[n, 0]))

        self._threads.map(add, [value.size for value in quantized])
        return squares

    def accumulated(self, quantized: Collection[str], *, whole: bool) -> Accumulated:
        """Returns the errors of the results of layers, quantized or not, and of the outputs in a
        model with these sites quantized: over all samples if `whole`, otherwise over enough samples
        for a report. Results whose number of elements depends on data are left out.
        """
        of_site = {name: n for n, name in enumerate(self.names) if name in quantized}
        first, last = self._count, self._count + len(self._results)
        compared = [n for n, r in enumerate(self._results) if _is_comparable(r.result)]
        names = [self._results[n].name for n in compared]
        places = [
            last + of_site[name]
            if isinstance(self._results[n], Site) and name in of_site
            else first + n
            for n, name in zip(compared, names, strict=True)
        ]
        samples = len(self._feeds)
        layers, outputs = Ratios(len(places), samples), Ratios(len(self._kept), samples)
        feeds = self._feeds.spread
        for feed in self._progress.over("accumulated errors", feeds, at_most=not whole):
            exact, results = self._observer.exact(feed)
            found = self._run(feed, quantized)
            self._add(outputs, [found[n] for n in self._kept], [exact[n] for n in self._kept])
            self._add(layers, [found[n] for n in places], [results[n] for n in compared])
            del exact, results, found  # the next run reuses their memory
            if not whole and layers.is_enough and outputs.is_enough:
                break
        errors = map(float, layers.values)
        named = dict(zip(names, errors, strict=True))
        return Accumulated(named, max(map(float, outputs.values), default=None))

    def _add(self, sums: Ratios, found: Sequence[Any], exact: Sequence[Any]) -> None:
        """Adds the values of a sample."""
        squares = np.zeros((len(exact), 2))

        def add(n: int) -> None:
            rows = channels_first(exact[n], -1)
            squares[n, 0] = total(squared(channels_first(found[n], -1) - rows))
            squares[n, 1] = total(squared(rows))

        self._threads.map(add, [value.size for value in exact])
        sums.add(*squares.T)


def _passes(options: CompileOptions) -> list[Pass]:
    """Returns the passes, with rounded operands in kernels of their own: those of the products that
    read them are then the same as in the float model.
    """
    return [
        replace(p, stored=frozenset(("dequantize", "where"))) if isinstance(p, FuseOps) else p
        for p in passes_for(options)
    ]


def _is_comparable(value: Expr) -> bool:
    """Whether a value has floats, and as many as without quantization: not one for each detected
    box, for example.
    """
    if not isinstance(value.type, TensorType) or not is_float(value.tensor.dtype):
        return False
    return not any(is_unknown(dim) for dim in value.tensor.shape)


class _Switched(Rewriter):
    """Adds the switches. `exact` and `quantized` have the results of sites in either form, and
    `inputs` the added parameters by name.
    """

    def __init__(
        self, parameters: Sequence[Parameters], addends: Sequence[Addend], *, floats: bool
    ) -> None:
        super().__init__()
        self._floats = floats
        self._addends: dict[int, list[Addend]] = {}
        for a in active(addends, parameters):
            self._addends.setdefault(a.sum.call.id, []).append(a)
        self._by_result = {p.site.result.id: (n, p) for n, p in enumerate(parameters)}
        self.exact: dict[int, Expr] = {}
        self.quantized: dict[int, Expr] = {}
        self.inputs: dict[str, Var] = {}
        self._switches: dict[int, Var] = {}
        for n, p in enumerate(parameters):
            self._switches[p.site.result.id] = self._input(f"switch:{n}", TensorType((), "bool"))

    def _input(self, name: str, type_: TensorType) -> Var:
        found = self.inputs[name] = Var(name, type_, span=Span())
        return found

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old.id in self._addends:
            return self._sum(old, new)
        if old.id not in self._by_result:
            return new
        n, p = self._by_result[old.id]
        product = self.memo[p.site.call.id] if p.site.bias is not None else new
        assert isinstance(product, Call)
        with self.covers(old):
            operands = [p.quantized_data(product.args[0]), self._weight(p)]
            made: Expr = Call(product.op, operands, product.attrs)
            bias = self._input(f"bias:{n}", TensorType(p.bias_numbers().shape, "f32"))
            made = get_op("add")(made, bias)
            self.exact[old.id], self.quantized[old.id] = new, made
            return get_op("where")(self._switches[old.id], made, new)

    def _weight(self, p: Parameters) -> Expr:
        if p.scheme.is_weight_only or not self._floats:
            return p.quantized_weight()
        return Constant(p.weight_values)

    def _sum(self, old: Call, new: Call) -> Expr:
        with self.covers(old):
            operands = list(new.args)
            for a in self._addends[old.id]:
                place = [operand.id for operand in old.args].index(a.value.id)
                value = operands[place]
                switch = self._switches[a.product.result.id]
                operands[place] = get_op("where")(switch, a.quantized(value), value)
            return Call(new.op, operands, new.attrs)
