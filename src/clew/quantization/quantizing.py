"""`clew.quantize`: from a model and calibration data to a quantized model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew import frontends
from clew.backends.compile_options import CompileOptions, Sizes
from clew.build.sizes import sized
from clew.compiling.extensions import extensions_of
from clew.compiling.loading import loaded_or_deferred
from clew.ir.deferred import DeferredModule
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import get_op
from clew.quantization.divergence import Divergence, logits_of
from clew.quantization.feeds import Feed
from clew.quantization.layer_rows import Measured, layer_rows, sum_rows, with_errors
from clew.quantization.migration import migrated
from clew.quantization.norms import fold_norms
from clew.quantization.observe import Observer, Point
from clew.quantization.parameters import Parameters, parameters_of
from clew.quantization.progress import Progress
from clew.quantization.ranges import Grid, Histogram, chosen_grid
from clew.quantization.recipe import (
    Recipe,
    recorded,
    recorded_sums,
    replayed,
    replayed_sums,
    rounded_weights,
)
from clew.quantization.result import Quantized
from clew.quantization.scheme import Rule, Scheme
from clew.quantization.search import (
    FloatSet,
    Judge,
    Sensitivity,
    Step,
    by_local_errors,
    frontier,
    sensitivity,
    smallest_floats,
)
from clew.quantization.simulate import LocalError, Simulation
from clew.quantization.sites import Site, sites_of
from clew.quantization.sums import Addend, Sum, active, addends_of, sums_of, with_grids
from clew.quantization.threads import Threads
from clew.quantization.weight_only import by_operand, by_weights, needs_gram, why_not
from clew.quantization.weights import settled_weights
from clew.quantization.where import Selects, all_where
from clew.runtime.threads import thread_count
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion

Array = NDArray[Any]
Metric: TypeAlias = "Callable[[list[dict[str, Array]]], float]"
_ASKED = "asked for"
_GRAM_BYTES = 1 << 30  # of products of channels that are held at once


@coded_exhaustion
def quantize(
    model: Module | DeferredModule | frontends.ModelSource,
    calibration: Any = None,
    *,
    scheme: Scheme | None = None,
    keep: Selects | Iterable[Selects] = (),
    rules: Sequence[Rule] = (),
    max_error: float | None = None,
    metric: Metric | None = None,
    max_drop: float | None = None,
    recipe: Recipe | str | Path | None = None,
    sensitivities: bool = False,
    logits: str | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    target: str | Target = "cpu",
    threads: int | None = None,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Quantized:
    """Returns a model whose products compute on integers, or whose weights are integers.

    `calibration` are inputs of calls: an iterable of them (mappings, tuples, or the only input); an
    array, or a mapping of arrays, with samples along the first axis; a folder of `.npz` files, one
    per call; or the text `drawn`. `scheme` is how layers are quantized, and `rules` are changes for
    some of them. Layers that `keep` selects (by name, glob, `clew.quantization.Where` or a
    selection of `clew.edit`) stay in floats.

    With `max_error`, a bound on the relative error of the outputs, or with `metric`, any function
    of the outputs by name for all samples, whose value may be `max_drop` less than in floats, the
    smallest set of layers is kept in floats for which the bound holds: `floats` proves that none of
    them can be left out. `sensitivities` measures each layer's effect on the outputs in any case,
    and on the distributions of an output of logits: the one with the name `logits` or `lm_logits`,
    or with the name that the argument `logits` gives.

    `recipe` applies the decisions of an earlier call, without calibration data, which bounds and
    `sensitivities` need; with them, only its scheme and rules count. `options` takes the other
    arguments of `clew.compile`, for the runs that are made here.

    Errors: I047 (`max_error` needs an output of floats), I390 to I399, I400 (a bound that
    cannot be kept), I401 (a metric that fails), I402 (no layer can be quantized), I403 (the
    graph depends on values of inputs), I408 (`logits`), and those of loading and compiling.
    """
    say = on_progress or (lambda text: None)
    bounded = max_error is not None or metric is not None or sensitivities
    source = None if isinstance(model, (Module, DeferredModule)) else model
    _check_bounds(max_error, metric, max_drop)
    how = CompileOptions.of({**options, "target": target, "threads": threads})
    module, how = _loaded(model, how.changed(inputs=inputs))
    folded = fold_norms(settled_weights(module))
    sites = sites_of(folded.module)
    if not sites:
        raise _nothing(folded.module)
    how = how.changed(extend=extensions_of(how.extend))
    if isinstance(recipe, (str, Path)):
        recipe = Recipe.load(recipe)
    scheme = scheme or (recipe.scheme if recipe else Scheme())
    all_rules = [*(recipe.rules if recipe else ()), *rules]
    all_rules += [Rule(where, keep=True) for where in all_where(keep)]
    schemes = _schemes(folded.module, sites, scheme, all_rules)
    kept = {s.name: _ASKED for s in sites if schemes[s.name] is None}
    for site in sites:
        own = schemes[site.name]
        reason = "" if own is None else why_not(site, own)
        if reason:
            kept[site.name], schemes[site.name] = reason, None
    only = [s for s in sites if (own := schemes[s.name]) is not None and own.is_weight_only]
    original = in_rows(folded.module, only)
    sites = sites if original is folded.module else sites_of(original)
    addends = addends_of(original, sites, schemes, all_rules)
    if calibration is None:
        parameters = _without_calibration(recipe, sites, schemes, bounded, say)
        if recipe is not None:
            addends = replayed_sums(recipe, original, sites, schemes, all_rules, addends)
        addends = active(addends, parameters)
        kept = {**(recipe.kept if recipe else {}), **kept}
        samples = recipe.samples if recipe else 0
        layers, of_sums = recorded(parameters), recorded_sums(addends)
        same = recipe is not None and (recipe.layers, recipe.sums) == (layers, of_sums)
        known = recipe.errors if recipe is not None and same else {}
        weights = rounded_weights(parameters)
        made = Recipe(scheme, tuple(all_rules), layers, kept, samples, known, weights, of_sums)
        return Quantized(
            original,
            made,
            with_errors(layer_rows(sites, parameters, kept), known),
            parameters,
            parameters,
            folded.into,
            source=source,
            sums=with_errors(sum_rows(addends), known),
            addends=addends,
        )
    work = _Work(original, sites, schemes, addends, how, say)
    work.logits = logits_of(original.output_names, logits)
    work.calibrate(calibration)
    floats: FloatSet | None = None
    if max_error is not None or metric is not None:
        floats = work.search(max_error, metric, max_drop)
        kept |= dict.fromkeys(floats.layers, f"needed for the bound of {floats.bound:g}")
    elif sensitivities:
        work.explore()
    chosen = [p for p in work.parameters if p.site.name not in kept]
    addends = active(work.addends, chosen)
    errors = work.simulation.accumulated([p.site.name for p in chosen], whole=bounded)
    named = {*(s.name for s in sites), *(a.sum.name for a in addends)}
    by_layer = {name: e for name, e in errors.layers.items() if name in named}
    made = Recipe(
        scheme,
        tuple(all_rules),
        recorded(chosen),
        kept,
        len(work.feeds),
        by_layer,
        rounded_weights(chosen),
        recorded_sums(addends),
    )
    measured = work.measured()
    rows = with_errors(layer_rows(sites, work.parameters, kept, measured), by_layer)
    return Quantized(
        original,
        made,
        rows,
        chosen,
        work.parameters,
        folded.into,
        error=errors.outputs,
        floats=floats,
        source=source,
        frontier=work.steps,
        sample=work.feeds[0],
        sums=with_errors(sum_rows(addends, measured), by_layer),
        addends=work.addends,
        divergence=work.divergence([p.site.name for p in chosen]),
    )


def _without_calibration(
    recipe: Recipe | None,
    sites: Sequence[Site],
    schemes: Mapping[str, Scheme | None],
    bounded: bool,
    say: Callable[[str], None],
) -> list[Parameters]:
    """Returns the parameters by a recipe, or by the weights if no operand needs a range that is
    known before a call.

    Errors: I392 if data are needed, and those of `replayed`.
    """
    used = [(site, own) for site in sites if (own := schemes[site.name]) is not None]
    if bounded or (recipe is None and any(_needs_data(own) for _, own in used)):
        raise InputError(
            "I392",
            "there are no calibration data",
            hint="give inputs of calls, or recipe=; 'drawn' calibrates on random data",
        )
    if recipe is not None:
        return replayed(recipe, sites, schemes)
    found = []
    for site, own in used:
        say(f"rounding {site.name}")
        make = by_weights if own.is_weight_only else partial(parameters_of, grid=None)
        found.append(make(site, own))
    return found


def _needs_data(scheme: Scheme) -> bool:
    if scheme.is_weight_only:
        return scheme.rounding == "gptq"
    return not scheme.is_dynamic


def _loaded(
    model: Module | DeferredModule | frontends.ModelSource, how: CompileOptions
) -> tuple[Module, CompileOptions]:
    """Returns the graph, and the options for its runs. Errors: I403 if it depends on values of
    inputs, or on sizes that the options do not fix.
    """
    if isinstance(model, DeferredModule):
        found, ranges = sized(model, how.group(Sizes).sizes)
        how = how.loaded.changed(sizes=ranges)
    else:
        found, how = loaded_or_deferred(model, how)
    if isinstance(found, DeferredModule):
        raise _depends(found)
    return found, how


def _depends(model: DeferredModule) -> InputError:
    names = ", ".join(model.deciding or [i.name for i in model.inputs])
    return InputError(
        "I403",
        f"the graph depends on values or shapes that are unknown before a run, of {names}",
        hint="clew.load(model, constants={NAME: value}), or sizes={NAME: size} fixes them",
    )


def _nothing(module: Module) -> InputError:
    calls = (n for n in post_order(module.main.body) if isinstance(n, Call))
    if any(c.op_name == "dequantize" for c in calls):
        return InputError(
            "I402",
            "the model has no layer that can be quantized, and is quantized already",
            hint="give the model in floats; or compile this one unchanged",
        )
    return InputError(
        "I402",
        "the model has no layer that can be quantized",
        hint="convolutions and matrix products with constant f32 weights, outside of branches "
        "and loops, can be",
    )


def _check_bounds(max_error: float | None, metric: Metric | None, max_drop: float | None) -> None:
    if (metric is None) != (max_drop is None):
        raise InputError("I390", "metric= and max_drop= belong together", hint="give both")
    if metric is not None and max_error is not None:
        raise InputError("I390", "max_error= and metric= are two bounds", hint="give one")
    for name, value in (("max_error", max_error), ("max_drop", max_drop)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(
                "I390", f"{name} is {value}", hint="give a number that is not negative"
            )


def _schemes(
    module: Module, sites: Sequence[Site], scheme: Scheme, rules: Sequence[Rule]
) -> dict[str, Scheme | None]:
    found: dict[str, Scheme | None] = {s.name: scheme for s in sites}
    for rule in rules:
        for site in rule.where.select(module, sites):
            found[site.name] = rule.over(found[site.name])
    return found


class _Work:
    """The steps of a quantization, each of which uses the results of earlier ones. `simulation`
    evaluates choices after `calibrate`.
    """

    simulation: Simulation
    _observer: Observer

    def __init__(
        self,
        module: Module,
        sites: Sequence[Site],
        schemes: Mapping[str, Scheme | None],
        addends: Sequence[Addend],
        options: CompileOptions,
        say: Callable[[str], None],
    ) -> None:
        self._module, self._options, self._say = module, options, say
        self._progress, self._threads = Progress(say), Threads(thread_count(options.threads))
        rounded = {a.sum.name for a in addends}
        sums = sums_of(module, sites) if rounded else []
        self._results: list[Site | Sum] = [*sites, *(s for s in sums if s.name in rounded)]
        self.feeds: Sequence[Feed] = []
        self._sites = [s for s in sites if schemes[s.name] is not None]
        self._schemes = schemes
        self.parameters: list[Parameters] = []
        self.addends = addends
        self.histograms: dict[str, Histogram] = {}
        self.by_value: dict[int, Histogram] = {}
        self.extremes: dict[str, tuple[float, float]] = {}
        self.local: dict[str, LocalError] = {}
        self.alone: dict[str, float] = {}
        self.logits: int | None = None
        self.divergences: dict[str, float] = {}
        self.steps: tuple[Step, ...] = ()

    def calibrate(self, calibration: Any) -> None:
        """Chooses the parameters of all sites that are to be quantized, and the grids of sums."""
        self._observe(calibration)
        self._simulate()

    def _observe(self, calibration: Any) -> None:
        """Chooses them from the distributions of the operands."""
        by_value: dict[tuple[int, Scheme, bool], list[Site]] = {}
        for site in self._sites:
            scheme = self._schemes[site.name]
            assert scheme is not None
            by_value.setdefault((site.data.id, scheme, site.is_matrix), []).append(site)
        points = [Point(sites[0].data, tuple(sites)) for sites in by_value.values()]
        schemes = [scheme for _, scheme, _ in by_value]
        products = len(points)
        for value, scheme in self._alone(schemes, points):
            points.append(Point(value, ()))
            schemes.append(scheme)
        self._say("compiling the model in floats")
        results = [r.result for r in self._results]
        self._observer = observer = Observer(
            self._module,
            points,
            results,
            calibration,
            self._options,
            self._progress,
            self._threads,
        )
        self.feeds = observer.feeds
        integers = [not (s.is_dynamic or s.is_weight_only) for s in schemes]
        distributions = observer.distributions(
            [
                bool(p.sites) and s.migration and i
                for p, s, i in zip(points, schemes, integers, strict=True)
            ],
            [not s.is_weight_only for s in schemes],
        )
        made = self._by_operands(observer, points[:products], schemes)

        def chosen(n: int) -> tuple[Histogram, Grid | None, Array | None, list[Parameters]]:
            point, scheme, distribution = points[n], schemes[n], distributions[n]
            channels = distribution.channels
            by = None if channels is None else migrated(channels, point.sites, scheme)
            grid, found = None, distribution.histogram(by)
            if integers[n]:
                grid = chosen_grid(
                    found,
                    scheme.activations,
                    scheme.range,
                    scheme.percentile,
                    shifts=scheme.shifts,
                )
            return (
                found,
                grid,
                by,
                [
                    parameters_of(site, scheme, grid, by)
                    if not scheme.is_weight_only
                    else made.get(site.name) or by_weights(site, scheme)
                    for site in point.sites
                ],
            )

        grids: dict[tuple[int, Scheme], Grid] = {}
        sizes = [sum(s.weight.data.size for s in p.sites) for p in points]
        choices = self._threads.map(chosen, sizes)
        for point, scheme, distribution, choice in zip(
            points, schemes, distributions, choices, strict=True
        ):
            found, grid, by, parameters = choice
            if grid is not None and by is None:
                self.by_value.setdefault(point.value.id, found)
                grids.setdefault((point.value.id, scheme), grid)
            for site, each in zip(point.sites, parameters, strict=True):
                self.histograms[site.name] = found
                self.extremes[site.name] = distribution.low, distribution.high
                made[site.name] = each
        self.parameters = [made[s.name] for s in self._sites]
        self.addends = with_grids(self.addends, self.parameters, grids)

    def _simulate(self) -> None:
        """Measures the errors of all sites on exact operands, and corrects their biases."""
        self._say("compiling both forms of each layer")
        self.simulation = Simulation(
            self._module,
            self._results,
            self.parameters,
            self.addends,
            self._observer,
            self._options,
            self._progress,
            self._threads,
        )
        errors = self.simulation.local() if self.parameters else []
        self.local = {p.site.name: e for p, e in zip(self.parameters, errors, strict=True)}
        self.parameters = [
            p.corrected(-self.local[p.site.name].means) if p.scheme.bias_correction else p
            for p in self.parameters
        ]
        self.simulation.correct(self.parameters)

    def _alone(
        self, schemes: Sequence[Scheme], points: Sequence[Point]
    ) -> list[tuple[Expr, Scheme]]:
        """Returns the operands of sums for which no product needs the distribution without
        `numbers` for its channels, each with its scheme.
        """
        found: dict[tuple[int, Scheme], Expr] = {}
        whole = {
            p.value.id
            for p, s in zip(points, schemes, strict=True)
            if not (s.migration or s.is_dynamic or s.is_weight_only)
        }
        for a in self.addends:
            if a.value.id not in whole:
                found[a.value.id, a.scheme] = a.value
        return [(value, scheme) for (_, scheme), value in found.items()]

    def measured(self) -> Measured:
        """Returns the figures that the table shows."""
        return Measured(
            self.histograms, self.extremes, self.local, self.alone, self.by_value, self.divergences
        )

    def _by_operands(
        self, observer: Observer, points: Sequence[Point], schemes: Sequence[Scheme]
    ) -> dict[str, Parameters]:
        """Returns the parameters of sites whose weights are rounded by products of the channels of
        their operands. As many of these products as fit are held at once.
        """
        left = [n for n, p in enumerate(points) if needs_gram(p.sites[0], schemes[n])]
        made: dict[str, Parameters] = {}
        while left:
            sizes = np.cumsum([4 * points[n].sites[0].inputs ** 2 for n in left])
            count = max(1, int(np.searchsorted(sizes, _GRAM_BYTES, side="right")))
            batch, left = left[:count], left[count:]
            for n, gram in zip(batch, observer.grams(batch), strict=True):
                self._say(f"rounding {points[n].sites[0].name}")
                for p in by_operand(points[n].sites, schemes[n], gram, self._say):
                    made[p.site.name] = p
        return made

    def sensitive(self) -> Sensitivity:
        """Measures each layer's effect on the outputs; of outputs without floats, estimates it from
        the errors of the layers' own results.
        """
        if not self.simulation.has_floats:
            names = tuple(p.site.name for p in self.parameters)
            return by_local_errors(names, [self._noise(name) for name in names])
        found = sensitivity(self.simulation, self._progress, self.logits)
        self.alone, self.divergences = found.alone(), found.divergence()
        return found

    def divergence(self, names: Collection[str]) -> float | None:
        """Returns the divergence of the logits over all samples with these layers quantized; None
        if it was not measured by layer.
        """
        if self.logits is None or not self.divergences:
            return None
        made = Divergence()
        for exact, found in zip(self.simulation.exact, self.simulation.runs(names), strict=True):
            made.add(exact[self.logits], found[self.logits])
        return made.mean

    def explore(self) -> None:
        """Measures each layer's effect on the outputs, and estimates the frontier from it."""
        found = self.sensitive()
        if self.simulation.has_floats:
            judge = Judge(self.simulation, math.inf, self.simulation.error)
            judge.of(())
            self.steps = frontier(judge, found)

    def _noise(self, name: str) -> float:
        local = self.local[name]
        return math.sqrt(local.corrected / local.signal) if local.signal > 0 else 0.0

    def search(
        self, max_error: float | None, metric: Metric | None, max_drop: float | None
    ) -> FloatSet:
        """Returns the smallest set of layers in floats.

        Errors: I400 if the bound cannot be kept.
        """
        simulation = self.simulation
        if metric is None:
            assert max_error is not None
            if not simulation.has_floats:
                raise InputError(
                    "I047",
                    "no output has floats",
                    hint="use outputs before the argmax, or bound a metric",
                )
            judge = Judge(simulation, max_error, simulation.error)
        else:
            assert max_drop is not None
            exact = _measured(metric, simulation, simulation.exact)

            def drop(names: Collection[str]) -> float:
                return exact - _measured(metric, simulation, list(simulation.runs(names)))

            judge = Judge(simulation, max_drop, drop)
        sensitivity_ = self.sensitive()
        found = smallest_floats(judge, sensitivity_, self._say)
        self.steps = frontier(judge, sensitivity_)
        if not found.met:
            raise InputError(
                "I400",
                f"the bound of {found.bound:g} cannot be kept: with all layers in floats, the "
                f"figure is {found.figure:g}",
                hint="a metric that varies from run to run cannot be bounded",
            )
        return found


def _measured(metric: Metric, simulation: Simulation, runs: Sequence[Sequence[Array]]) -> float:
    """Returns the value of a metric. Errors: I401 if it fails or is not a number."""
    named = [dict(zip(simulation.output_names, run, strict=True)) for run in runs]
    try:
        value = float(metric(named))
    except Exception as error:
        raise InputError(
            "I401",
            f"the metric failed: {type(error).__name__}: {error}",
            hint="it gets a list with a dict of outputs for each sample, and returns a number",
        ) from error
    if not math.isfinite(value):
        raise InputError("I401", f"the metric returned {value}", hint="it must be a finite number")
    return value


def in_rows(module: Module, sites: Collection[Site]) -> Module:
    """Returns a module in which the weights of these products that are matrices are `[N, K]`."""
    turned = {s.call.id: s for s in sites if s.is_matrix and s.channel != 0}
    return _Rows(turned).rewrite_module(module) if turned else module


class _Rows(Rewriter):
    def __init__(self, sites: dict[int, Site]) -> None:
        super().__init__()
        self._sites = sites

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        site = self._sites.get(old.id)
        if site is None:
            return new
        weight = site.weight
        with self.covers(old):
            rows = Constant(np.ascontiguousarray(weight.data.T), name=weight.name)
            dtype = str(new.attrs.get("out_dtype", ""))
            return get_op("nn.dense")(new.args[0], rows, weight_layout="NK", out_dtype=dtype)
