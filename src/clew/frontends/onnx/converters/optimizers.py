"""Training: gradients, and one step of an optimizer, which computes new values of tensors from
their gradients and the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.names import display
from clew.frontends.onnx.derivatives import gradients
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Expr
from clew.ir.types import is_float

TRAINING: Final = "ai.onnx.preview.training"
# From a tensor, its gradient and state to the new tensor and state.
Update: TypeAlias = "Callable[[Expr, Expr, Sequence[Expr]], list[Expr]]"


def _scaled(x: Expr, factor: float) -> Expr:
    return call("multiply", x, scalar(factor, x.tensor.dtype))


def _added(x: Expr, y: Expr) -> Expr:
    return call("add", x, y)


def _step(layer: Layer, carried: int, update: Callable[[Layer, str], Update]) -> Result:
    """Applies an update to each tensor: inputs hold all tensors, all gradients, then the state of
    all.
    """
    tensors = layer.present()[2:]
    count, rest = divmod(len(tensors), carried + 2)
    if rest or not count:
        raise layer.wrong(f"has {len(tensors)} tensors, expected {carried + 2} for each of some")
    found = []
    for n in range(count):
        x, gradient, *before = tensors[n::count]
        dtype = layer.type_of(x).dtype
        if any(layer.type_of(other) != x.type for other in (gradient, *before)):
            raise layer.wrong(f"has a {x.type} whose gradient is a {gradient.type}")
        decay = layer.real("norm_coefficient")
        found.append(update(layer, dtype)(x, _added(_scaled(x, decay), gradient), before))
    return [values[k] for k in range(carried + 1) for values in found]


def _rate(layer: Layer, dtype: str) -> Expr:
    return cast(reshaped(layer.input(0), ()), dtype)


def _count(layer: Layer, dtype: str) -> Expr:
    return cast(reshaped(layer.input(1), ()), dtype)


def _unless_first(layer: Layer, value: Expr, first: Expr) -> Expr:
    """Returns `first` in step 0, else `value`."""
    later = call("greater", reshaped(layer.input(1), ()), scalar(0, "i64"))
    return call("where", later, value, first)


@converter("Adagrad", domain=TRAINING)
def adagrad(layer: Layer) -> Result:
    """Each element has its own rate, from its squared gradients so far."""

    def update(layer: Layer, dtype: str) -> Update:
        one = scalar(1, dtype)
        slower = _added(one, _scaled(_count(layer, dtype), layer.real("decay_factor")))
        rate = call("divide", _rate(layer, dtype), slower)

        def step(x: Expr, gradient: Expr, before: Sequence[Expr]) -> list[Expr]:
            squares = _added(before[0], call("multiply", gradient, gradient))
            root = _added(call("sqrt", squares), scalar(layer.real("epsilon"), dtype))
            move = call("divide", call("multiply", rate, gradient), root)
            return [call("subtract", x, move), squares]

        return step

    return _step(layer, 1, update)


@converter("Adam", domain=TRAINING)
def adam(layer: Layer) -> Result:
    """Running means of gradients and their squares, with bias correction."""
    alpha, beta = layer.real("alpha"), layer.real("beta")

    def update(layer: Layer, dtype: str) -> Update:
        one, count, rate = scalar(1, dtype), _count(layer, dtype), _rate(layer, dtype)

        def missing(factor: float) -> Expr:
            return call("subtract", one, call("power", scalar(factor, dtype), count))

        corrected = call("divide", call("sqrt", missing(beta)), missing(alpha))
        adjusted = _unless_first(layer, call("multiply", rate, corrected), rate)

        def step(x: Expr, gradient: Expr, before: Sequence[Expr]) -> list[Expr]:
            mean = _added(_scaled(before[0], alpha), _scaled(gradient, 1 - alpha))
            squares = _scaled(call("multiply", gradient, gradient), 1 - beta)
            spread = _added(_scaled(before[1], beta), squares)
            root = _added(call("sqrt", spread), scalar(layer.real("epsilon"), dtype))
            moved = call("subtract", x, call("multiply", adjusted, call("divide", mean, root)))
            return [_scaled(moved, 1 - layer.real("norm_coefficient_post")), mean, spread]

        return step

    return _step(layer, 2, update)


@converter("Momentum", domain=TRAINING)
def momentum(layer: Layer) -> Result:
    """A running sum of gradients; Nesterov's form looks one step ahead."""
    mode = layer.text("mode")
    if mode not in ("standard", "nesterov"):
        raise layer.wrong(f"has the mode {mode!r}")
    alpha = layer.real("alpha")

    def update(layer: Layer, dtype: str) -> Update:
        weight = _unless_first(layer, scalar(layer.real("beta"), dtype), scalar(1, dtype))
        rate = _rate(layer, dtype)

        def step(x: Expr, gradient: Expr, before: Sequence[Expr]) -> list[Expr]:
            speed = _added(_scaled(before[0], alpha), call("multiply", weight, gradient))
            ahead = speed if mode == "standard" else _added(gradient, _scaled(speed, alpha))
            return [call("subtract", x, call("multiply", rate, ahead)), speed]

        return step

    return _step(layer, 1, update)


@converter("Gradient", domain=TRAINING)
def gradient(layer: Layer) -> Result:
    """Derivatives of the value named `y` by those named `xs`, at the inputs' values. The names are
    those of the surrounding graph; operators without a rule are rejected (`derivatives.py`).
    """
    xs, zs, y = layer.texts("xs"), layer.texts("zs"), layer.text("y")
    inputs = layer.present()
    if len(inputs) != len(xs) + len(zs):
        raise layer.wrong(f"has {len(inputs)} inputs for {len(xs)} of xs and {len(zs)} of zs")
    named = [layer.scope.lookup(name) for name in (*xs, *zs)]
    target = layer.scope.lookup(y)
    found = [expr for expr in named if expr is not None]
    if target is None or len(found) != len(named):
        unknown = [n for n, e in zip((*xs, *zs, y), (*named, target), strict=True) if e is None]
        raise layer.wrong(f"names {display(unknown[0])!r}, which is not a value before it")
    for name, expr, given in zip((*xs, *zs), found, inputs, strict=True):
        if layer.type_of(expr) != layer.type_of(given):
            raise layer.wrong(
                f"gives {display(name)!r}, a {expr.type}, the value of a {given.type}"
            )
    if not is_float(layer.type_of(target).dtype):
        raise layer.wrong(f"differentiates a {target.type}")
    values = {expr.id: given for expr, given in zip(found, inputs, strict=True)}
    sources = found[: len(xs)]
    results = gradients(target, sources, values)
    types = [layer.type_of(source) for source in sources]
    return [
        filled(0, type_.dtype, type_.shape) if result is None else result
        for result, type_ in zip(results, types, strict=True)
    ]
