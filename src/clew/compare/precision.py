"""Finds the layers that cause a narrow precision's error, and the fewest to keep in f32 for a
bound.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from clew import frontends
from clew.backends.compile_options import CompileOptions, Precision
from clew.build.inputs import module_for
from clew.compiling.compile import build_model
from clew.compiling.extensions import extensions_of
from clew.ir.module import Module
from clew.ir.rewrite import layer_names
from clew.ir.types import NARROW_FLOATS
from clew.machine.target import Target
from clew.passes.precision.convert_precision import ConvertPrecision, narrowed_products, products_of
from clew.support.difference import relative_error, relative_length
from clew.support.errors import InputError
from clew.support.shown import Shown


@dataclass(frozen=True)
class Deviation:
    """The deviation of outputs from those in f32.

    `worst` is the largest difference in any output and input set, relative to that output's largest
    magnitude, as in `clew bench`. `rms` is the Euclidean length of the differences relative to that
    of the output: the root mean square over the input sets, for the output where it is largest. It
    varies far less from input to input.
    """

    worst: float
    rms: float


@dataclass(frozen=True)
class LayerError:
    """A layer's effect on the error.

    `names` has several names if no single name is common to all products of a layer. `alone` is the
    error when only this layer is narrow; `share` is its part of the sum of all squared `alone.rms`.
    `without` is the error of the network when only this layer is not narrow, or None if not
    requested. It may exceed the error of the whole network, since rounding errors cancel by chance.
    """

    names: tuple[str, ...]
    alone: Deviation
    share: float
    without: Deviation | None = None


@dataclass(frozen=True)
class Kept:
    """The layers to keep in f32 for a bound, as `clew.Precision(keep_f32=...)` takes them, and the
    remaining error.

    `met` is False if keeping every named layer is not enough.
    """

    bound: float
    keep_f32: tuple[str, ...]
    left: Deviation
    met: bool


@dataclass(frozen=True, repr=False)
class PrecisionReport(Shown):
    """The error of a narrow precision, layer by layer, the largest `alone.rms` first.

    `error` is that of the whole network. `independent` is the `rms` that its layers would cause
    together if their errors were independent: the root of the sum of squares. `kept` is None
    without a bound.
    """

    precision: str
    inputs: int
    error: Deviation
    independent: float
    layers: tuple[LayerError, ...]
    kept: Kept | None = None

    def _about(self) -> str:
        worst = ", ".join(self.layers[0].names) if self.layers else "no layer"
        return f"{self.precision}: error {self.error.worst:.2g}, most of it from {worst}"

    def to_json(self) -> dict[str, Any]:
        """Returns the report as nested dicts and lists of numbers and strings."""
        return asdict(self)


def precision_report(
    model: Module | str | Path,
    inputs: Any,
    *,
    precision: str | Precision = "bf16",
    bound: float | None = None,
    savings: int = 10,
    target: str | Target = "cpu",
    threads: int | None = None,
    opt_level: int = 3,
    on_progress: Callable[[str], None] | None = None,
    **options: Any,
) -> PrecisionReport:
    """Returns which layers of a model cause the error of a narrow precision.

    The model is compiled once per layer, with all other layers in f32. For each of the `savings`
    layers that cause the most error, it is compiled again, with all other layers narrow.
    Variants share kernels through the disk cache. `inputs` are given by name, in order as a tuple,
    or as a list of several such sets; a single set says little about one layer, since rounding
    errors are random. With a `bound` on the network's `Deviation.worst`, bisection finds the fewest
    layers to keep in f32, taken in the order of the error they cause (`kept`). `options` takes the
    other arguments of `clew.compile`. Layers in `keep_f32` of `precision` stay in f32 throughout.

    Errors: I013 (not a narrow precision), I047 (no inputs, or no output of floats), and those of
    compiling and running.
    """
    given = CompileOptions.of(
        {
            **options,
            "target": target,
            "threads": threads,
            "precision": precision,
            "opt_level": opt_level,
        }
    )
    narrow = given.group(Precision).precision
    if narrow not in NARROW_FLOATS:
        known = ", ".join(NARROW_FLOATS)
        raise InputError("I013", f"precision {narrow!r} is not narrow", hint=f"one of {known}")
    feeds = list(inputs) if isinstance(inputs, list) else [inputs]
    if not feeds:
        raise InputError("I047", "no inputs to compare outputs on", hint="arrays by name")
    loaded = model if isinstance(model, Module) else frontends.load_or_defer(model)
    module = module_for(loaded, feeds[0])
    say = on_progress or (lambda text: None)
    given = given.changed(extend=extensions_of(given.extend))
    variants = _Variants(module, feeds, narrow, given, say)
    whole = variants.error("the whole network", ())
    layers = _ranked(variants)
    most = min(savings, len(layers))
    layers = [
        replace(layer, without=variants.error(_nth("all but layer", n, most), layer.names))
        if n < most
        else layer
        for n, layer in enumerate(layers)
    ]
    independent = math.hypot(*(layer.alone.rms for layer in layers))
    kept = None if bound is None else _keep(variants, layers, bound)
    return PrecisionReport(narrow, len(feeds), whole, independent, tuple(layers), kept)


@dataclass
class _Narrowed:
    """An instrument that records the layers of products that become narrow.

    The disk cache keeps the kernels of a model built with an instrument but not the whole build,
    which would hold a copy of all weights per layer.
    """

    layers: list[tuple[str, ...]] = field(default_factory=list)
    _before: Module | None = None

    def before_pass(self, name: str, module: Module) -> None:
        self._before = module

    def after_pass(self, name: str, module: Module) -> None:
        if name == ConvertPrecision.__name__ and self._before is not None:
            found = narrowed_products(self._before, module)
            self.layers += [layer_names(call) for call in found]


class _Variants:
    """Variants of the model with some layers in f32. Each is compiled and measured once."""

    def __init__(
        self,
        module: Module,
        feeds: Sequence[Any],
        precision: str,
        options: CompileOptions,
        say: Callable[[str], None],
    ) -> None:
        self._module, self._feeds, self._precision, self._say = module, feeds, precision, say
        self._options = options
        self._exact, _ = self._outputs("all in f32", "f32", ())
        if not all(self._exact):
            raise InputError("I047", "no output has floats", hint="use outputs before the argmax")
        found, seen = self._outputs(f"all in {precision}", precision, ())
        self._errors: dict[tuple[str, ...], Deviation] = {(): self._error(found)}
        self.layers = _layers(seen.layers, _product_names(module))

    def error(self, what: str, keep: Iterable[str]) -> Deviation:
        """Returns the error with the layers `keep` in f32; `what` is shown as progress."""
        names = tuple(sorted(keep))
        if names not in self._errors:
            found, _ = self._outputs(what, self._precision, names)
            self._errors[names] = self._error(found)
        return self._errors[names]

    def _outputs(
        self, what: str, precision: str, names: Sequence[str]
    ) -> tuple[list[dict[str, Any]], _Narrowed]:
        """Returns the float outputs for each input set, and the layers that were narrow."""
        self._say(what)
        seen = _Narrowed()
        kept = self._options.group(Precision).keep_f32
        changed = self._options.changed(
            precision=precision,
            keep_f32=(*kept, *map(glob.escape, names)),
            instruments=[seen],
            trace=False,
        )
        compiled = build_model(self._module, changed)
        runs = [compiled.run(compiled.named_inputs(feed)) for feed in self._feeds]
        return [{n: np.array(v) for n, v in run.items() if _is_float(v)} for run in runs], seen

    def _error(self, found: Sequence[Mapping[str, Any]]) -> Deviation:
        worst, rms = 0.0, 0.0
        for name in self._exact[0]:
            pairs = [(f[name], exact[name]) for f, exact in zip(found, self._exact, strict=True)]
            worst = max(worst, *(relative_error(value, exact) for value, exact in pairs))
            squares = [relative_length(value, exact) ** 2 for value, exact in pairs]
            rms = max(rms, math.sqrt(float(np.mean(squares))))
        return Deviation(worst, rms)


def _ranked(variants: _Variants) -> list[LayerError]:
    """Returns the layers, sorted by the error each causes alone, the largest first."""
    every = [name for names in variants.layers for name in names]
    found = []
    for number, names in enumerate(variants.layers):
        what = _nth("only layer", number, len(variants.layers))
        error = variants.error(what, [n for n in every if n not in names])
        found.append(LayerError(names, error, 0.0))
    total = sum(layer.alone.rms**2 for layer in found) or 1.0
    found = [replace(layer, share=layer.alone.rms**2 / total) for layer in found]
    return sorted(found, key=lambda layer: -layer.alone.rms)


def _keep(variants: _Variants, layers: Sequence[LayerError], bound: float) -> Kept:
    """Returns the fewest layers to keep, taken in the given order."""

    def first(count: int) -> tuple[str, ...]:
        return tuple(name for layer in layers[:count] for name in layer.names)

    def left(count: int) -> Deviation:
        return variants.error(f"the first {count} of {len(layers)} layers in f32", first(count))

    low, high = 0, len(layers)  # `low` may be too few, `high` is enough
    while low < high:
        middle = (low + high) // 2
        if left(middle).worst <= bound:
            high = middle
        else:
            low = middle + 1
    patterns = tuple(map(glob.escape, first(high)))
    return Kept(bound, patterns, left(high), left(high).worst <= bound)


def _layers(
    products: Iterable[tuple[str, ...]], preferred: frozenset[str]
) -> list[tuple[str, ...]]:
    """Returns names that identify layers: products with a name in common form one layer.

    The name of an operator that is a product in the model takes precedence.
    """
    groups: list[list[tuple[str, ...]]] = []
    for names in products:
        if not names:
            continue
        joined = [g for g in groups if any(set(names) & set(other) for other in g)]
        groups = [g for g in groups if g not in joined]
        groups.append([*(other for g in joined for other in g), names])
    found: list[tuple[str, ...]] = []
    for group in groups:
        common = [n for n in group[0] if all(n in names for names in group)]
        if common:
            found.append((min(common, key=lambda n: n not in preferred),))
        else:
            found.append(tuple(dict.fromkeys(names[0] for names in group)))
    return found


def _product_names(module: Module) -> frozenset[str]:
    """Returns the names of layers that are products in the imported model."""
    return frozenset(name for call in products_of(module) for name in layer_names(call))


def _nth(text: str, number: int, count: int) -> str:
    return f"{text} {number + 1} of {count}"


def _is_float(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and dtype.kind in "fV"  # V: bfloat16 and similar types
