"""The error of each layer's result in the quantized model, against the same value in floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clew.backends.compile_options import CompileOptions
from clew.ir.expr import Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.types import TensorType, is_float
from clew.quantization.apply import quantized_module
from clew.quantization.feeds import Feed
from clew.quantization.observe import compiled, values_of
from clew.quantization.parameters import Parameters
from clew.quantization.sites import Site
from clew.quantization.sums import Addend, Sum
from clew.tap.capture import giving
from clew.trace.span import Span

_TINY: Final = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Accumulated:
    """Errors over all calibration data, each the root of the sum of squared differences over that
    of squares: of the results of layers by name, and of the output where it is largest, None if no
    output has floats.
    """

    layers: Mapping[str, float] = field(default_factory=dict)
    outputs: float | None = None


def accumulated_errors(
    module: Module,
    layers: Sequence[Site | Sum],
    parameters: Sequence[Parameters],
    addends: Sequence[Addend],
    feeds: Sequence[Feed],
    options: CompileOptions,
    say: Callable[[str], None],
) -> Accumulated:
    """Returns the errors of the results of layers, quantized or not, in a model that has these
    sites and sums quantized.
    """
    body = module.main.body
    outputs = [v for v in (body.fields if isinstance(body, Tuple) else (body,)) if _is_float(v)]
    values: list[Expr] = [*(n.result for n in layers), *outputs]
    say("compiling the quantized model")
    model = compiled(_both(giving(module, values), parameters, addends), options)
    squares, lengths = np.zeros(len(values)), np.full(len(values), _TINY)
    for found in values_of(model, feeds, say, "accumulated errors"):
        wide = [v.astype(np.float64) for v in found]
        pairs = list(zip(wide[: len(values)], wide[len(values) :], strict=True))
        squares += [np.sum((a - b) ** 2) for a, b in pairs]
        lengths += [np.sum(a**2) for a, _ in pairs]
    errors = [math.sqrt(e) for e in squares / lengths]
    own = dict(zip((n.name for n in layers), errors[: len(layers)], strict=True))
    return Accumulated(own, max(errors[len(layers) :], default=None))


def _both(module: Module, parameters: Sequence[Parameters], addends: Sequence[Addend]) -> Module:
    """Returns a module that gives the outputs of a model, and then those of its quantized form."""
    quantized = quantized_module(module, parameters, addends)
    results = [r for m in (module, quantized) for r in m.main.body.children]
    names = tuple(f"v{n}" for n in range(len(results)))
    body = Tuple(results, span=Span())
    main = Function(module.main.params, body, {"outputs": names}, span=Span())
    return quantized.with_functions({"main": main})


def _is_float(value: Expr) -> bool:
    return isinstance(value.type, TensorType) and is_float(value.tensor.dtype)
