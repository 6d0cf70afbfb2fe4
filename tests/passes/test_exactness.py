"""What rules state about their results (`Exactness`), on special values of every dtype.

An example of each rule is computed before and after that rule alone: NaN, infinities, both zeros,
subnormal and extreme numbers, and integers that wrap. Where a rule states that it is exact, all
bits are equal, except payloads of NaN.
"""

from __future__ import annotations

import math
from typing import Final

import ml_dtypes
import numpy as np
import pytest
from rule_examples import EXAMPLES, flat, hard_swish
from special_values import (
    FLOATS,
    INTEGERS,
    Array,
    call,
    differing,
    module_of,
    splat,
    variables,
)

import clew
from clew.ir.expr import Constant, Expr, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, is_float
from clew.passes.base import PassContext
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from clew.passes.simplify.fold_constant import FoldConstant
from clew.passes.simplify.signs import never_negative
from clew.passes.simplify.simplify_expr import SimplifyExpr
from clew.passes.simplify.simplify_inference import identity
from clew.patterns import Rule, RuleRewriter
from clew.pipelines import pipeline

RULES: Final = {rule.name: rule for step in pipeline(3) for rule in step.rules} | {
    "identity": identity
}


def test_every_rule_has_an_example() -> None:
    assert EXAMPLES.keys() == RULES.keys()


def _fired(name: str, dtype: str) -> list[tuple[Module, Module, dict[str, Array]]]:
    """Returns the examples of a rule in a dtype that it rewrites, before and after, with inputs."""
    found = []
    for build in EXAMPLES[name]:
        x, z, inputs = variables(dtype)
        try:
            before = module_of([x, z], build(x, z))
        except (clew.ClewError, OverflowError, ValueError):  # no such operator or constant
            continue
        after = RuleRewriter([RULES[name]]).rewrite_module(before)
        if after is not before:
            found.append((before, after, inputs))
    return found


def _is_exact(rule: Rule, dtype: str) -> bool:
    assert rule.exactness is not None
    stated = rule.exactness.exact_for
    if stated.startswith("integers"):
        return not is_float(dtype)
    return not rule.exactness.differs or (stated == "f32 and f64" and dtype in ("f32", "f64"))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("name", RULES)
def test_rules_keep_what_they_state(name: str, dtype: str) -> None:
    for before, after, inputs in _fired(name, dtype):
        exact = _is_exact(RULES[name], dtype)
        if not exact:
            inputs = {name: _moderate(array) for name, array in inputs.items()}
        (a,), (b,) = (list(interpret(m, inputs).values()) for m in (before, after))
        if exact:
            assert differing(a, b).size == 0, f"{before}\n{after}"
        else:
            _check_close(a, b)


def _moderate(values: Array) -> Array:
    """Returns values without those whose squares and sums overflow or are subnormal; NaN stays."""
    wide = np.abs(values.astype(np.float64))
    fits = np.isnan(wide) | (wide == 0) | (wide >= 0.1) & (wide <= 100)
    return np.where(fits, values, np.ones_like(values))


def _check_close(a: Array, b: Array) -> None:
    """Asserts that results are equal up to rounding, and NaN at the same places."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    unit = float(ml_dtypes.finfo(a.dtype).eps)
    size = np.max(np.abs(x), initial=1.0, where=np.isfinite(x))
    np.testing.assert_allclose(x, y, rtol=8 * unit, atol=8 * unit * size)
    assert np.isfinite(x).any()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_tried(name: str) -> None:
    assert any(_fired(name, dtype) for dtype in ("f32", "i32"))


@pytest.mark.parametrize(
    "dtype",
    ["f32", "i32", *(pytest.param(d, marks=pytest.mark.exhaustive) for d in ("f64", "u8"))],
)
def test_kernels_of_exact_rules(dtype: str) -> None:
    """All examples are one model: optimized, it gives the bits of the model as it is written."""
    x, z, inputs = variables(dtype)
    results = []
    for name, builds in EXAMPLES.items():
        if not _is_exact(RULES[name], dtype) or name in _FUNCTIONS:
            continue
        for build in builds:
            try:
                results.append(build(x, z))
            except (clew.ClewError, OverflowError, ValueError):
                continue
    assert len(results) > 30
    model = module_of([x, z], *results)
    wanted = interpret(model, inputs)
    found = clew.compile(model, threads=1, cache=False).run(inputs)
    for n, name in enumerate(wanted):
        wrong = differing(found[name], wanted[name])
        assert wrong.size == 0, (str(results[n]), found[name].flat[wrong[0]],
                                 wanted[name].flat[wrong[0]])  # fmt: skip


# Their kernels are within two units of NumPy's functions, or sum in another order.
_FUNCTIONS: Final = ("zero_of_unread_sign", "silu", "mish", "reshape_of_dense")


# --- what must stay -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("op", "number"), [("add", 0.0), ("subtract", -0.0), ("multiply", 0.0), ("multiply", -1.0)]
)
def test_what_is_no_identity_of_floats_stays(op: str, number: float, dtype: str) -> None:
    x, z, inputs = variables(dtype)
    for args in ([x, splat(number, x)], [x, splat(number, x, whole=True)]):
        model = module_of([x, z], call(op, *args))
        after = RuleRewriter(SimplifyExpr().rules).rewrite_module(model)
        assert after is model
        found = clew.compile(model, threads=1, cache=False).run(inputs)["y0"]
        wanted = interpret(model, inputs)["y0"]
        if dtype == "bf16":  # processors may round subnormal numbers to 0
            normal = np.abs(wanted.astype(np.float32)) >= 2.0**-126
            normal |= (inputs["x"] == 0) | np.isnan(wanted.astype(np.float32))
            found, wanted = found[normal], wanted[normal]
        assert differing(found, wanted).size == 0


@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, -1.0, 3.0, 0.0])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers_are_those_of_c(exponent: float, dtype: str) -> None:
    """Also in kernels: the power 0.5 of -0 is 0, and that of minus infinity infinite."""
    x, z, inputs = variables(dtype)
    model = module_of([x, z], call("power", x, splat(exponent, x)))
    found = clew.compile(model, threads=1, cache=False).run(inputs)["y0"][:, 0]
    with np.errstate(all="ignore"):
        dense = np.full(inputs["x"].shape, exponent, inputs["x"].dtype)  # NumPy's fast way is not
        wanted = np.power(inputs["x"], dense)[:, 0]
    for values in (found, interpret(model, inputs)["y0"][:, 0]):
        apart = differing(values, wanted)
        finite = np.isfinite(wanted[apart]) & np.isfinite(values[apart]) & (wanted[apart] != 0)
        assert finite.all()
        close = 4 * np.finfo(values.dtype).eps
        np.testing.assert_allclose(values[apart], wanted[apart], rtol=close)


def test_values_that_are_never_negative() -> None:
    x, z, _ = variables("f32")
    square = call("multiply", x, x)
    mean = call("mean", square, axes=(1,))
    for value in (square, mean, call("add", mean, splat(1e-5, x)), call("exp", z),
                  flat(call("abs", x)), call("clip", x, min=0.1),
                  call("pad", square, pads=(1, 0, 0, 0))):  # fmt: skip
        assert never_negative(value), value
    for value in (x, call("multiply", x, z), call("nn.relu", x), call("add", square, x),
                  call("add", mean, splat(-1e-5, x)), call("clip", x, min=0.0),
                  call("subtract", square, mean), call("add", call("abs", x), splat(-0.0, x)),
                  call("pad", square, pads=(1, 0, 0, 0), value=-1.0)):  # fmt: skip
        assert not never_negative(value), value


def test_clips_of_nan_bounds_stay() -> None:
    x, z, _ = variables("f32")
    inner = call("clip", x, min=math.nan)
    model = module_of([x, z], call("clip", inner, min=0.0))
    assert RuleRewriter(SimplifyExpr().rules).rewrite_module(model) is model


def test_equal_subexpressions_have_zeros_of_one_sign() -> None:
    x, z, inputs = variables("f32")
    zero = call("clip", x, min=0.0), call("clip", x, min=-0.0)
    extremes = call("maximum", x, z), call("maximum", z, x)
    sums = call("add", x, z), call("add", z, x)
    model = module_of([x, z], *zero, *extremes, *sums)
    after = EliminateCommonSubexpr().run(model, PassContext())
    a, b, c, d, e, f = after.main.body.fields  # type: ignore[attr-defined]
    assert a is not b
    assert c is not d
    assert e is f
    wanted = interpret(model, inputs)
    found = clew.compile(model, threads=1, cache=False).run(inputs)
    assert all(differing(found[name], wanted[name]).size == 0 for name in wanted)


def test_folded_constants_have_zeros_of_their_sign() -> None:
    minus = Constant(np.broadcast_to(np.float32(-0.0), (2, 2)))
    padded = call("pad", minus, pads=(1, 0, 0, 0))
    bounded = call("clip", minus, min=0.0)
    root = call("power", minus, Constant(np.float32(0.5)))
    folded = FoldConstant().run(module_of([], padded, bounded, root), PassContext())
    values = [f.data for f in folded.main.body.fields]  # type: ignore[attr-defined]
    assert np.signbit(values[0]).tolist() == [[False, False], [True, True], [True, True]]
    assert np.signbit(values[1]).all()
    assert not np.signbit(values[2]).any()


@pytest.mark.parametrize("kind", ["weight", "bias", "sum"])
def test_layers_do_not_overflow_by_folded_scales(kind: str) -> None:
    """`x w s` is finite where `w s` is not; the bias likewise."""
    x = Var("x", TensorType((2, 4), "f32"))
    large = 3e30 if kind == "weight" else 1.0
    weight = Constant(np.full((4, 3), large, np.float32))
    bias = Constant(np.full(3, 3e38 if kind == "sum" else 3e30, np.float32))
    layer: Expr = call("nn.dense", x, weight, weight_layout="KN")
    if kind != "weight":
        layer = call("add", layer, bias)
    more = bias if kind == "sum" else Constant(np.full(3, 1e30, np.float32))
    result = call("add" if kind == "sum" else "multiply", layer, more)
    model = module_of([x], result)
    assert FoldScaleAxis().run(model, PassContext()) is model


@pytest.mark.parametrize("constant", [1.4142, 1.41421356])
def test_constants_of_blocks_have_all_digits(constant: float) -> None:
    """A GELU's root of 2 has the digits of its dtype."""
    for dtype, fits in (("f32", constant != 1.4142), ("f64", False)):
        x = Var("x", TensorType((8,), dtype))
        inner = call("erf", call("divide", x, splat(constant, x)))
        scaled = call("multiply", x, call("add", inner, splat(1, x)))
        model = module_of([x], call("multiply", scaled, splat(0.5, x)))
        after = RuleRewriter(CanonicalizeOps().rules).rewrite_module(model)
        assert ("nn.gelu" in str(after)) == fits


def test_hard_swish_of_f64_keeps_its_sixth() -> None:
    x = Var("x", TensorType((64,), "f64"))
    model = module_of([x], hard_swish(x, x))
    inputs = {"x": np.linspace(-4, 4, 64)}
    found = clew.compile(model, threads=1, cache=False).run(inputs)["y0"]
    v = inputs["x"]
    np.testing.assert_allclose(found, v * np.clip(v + 3, 0, 6) / 6, rtol=1e-15, atol=1e-15)
