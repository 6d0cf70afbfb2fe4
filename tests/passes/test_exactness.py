"""What rules state about their results (`Exactness`), on special values of every dtype.

An example of each rule is computed before and after that rule alone: NaN, infinities, both zeros,
subnormal and extreme numbers, and integers that wrap. Where a rule states that it is exact, all
bits are equal, except payloads of NaN.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy, is_float, to_numpy
from clew.ops.registry import get_op
from clew.passes.base import PassContext
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from clew.passes.simplify.fold_constant import FoldConstant
from clew.passes.simplify.signs import never_negative
from clew.passes.simplify.simplify_expr import SimplifyExpr
from clew.passes.simplify.simplify_inference import identity
from clew.patterns import Rule, RuleRewriter

Array: TypeAlias = "np.ndarray[Any, Any]"
Build: TypeAlias = Callable[[Expr, Expr], Expr]

FLOATS: Final = ("f16", "bf16", "f32", "f64")
INTEGERS: Final = ("i8", "i32", "u8", "u32", "i64")
RULES: Final = {
    rule.name: rule
    for step in (SimplifyExpr(), CanonicalizeOps(), FoldScaleAxis())
    for rule in step.rules
} | {"identity": identity}


def special(dtype: str) -> Array:
    """Returns the values of a dtype that rules get wrong."""
    kind = to_numpy(dtype)
    if is_float(dtype):
        info = ml_dtypes.finfo(kind)
        sizes = [0, info.smallest_subnormal, info.tiny, 0.3, 0.5, 1, 1.5, 2, 3, 100, info.max]
        values = [*map(float, sizes), math.inf]
        return np.array([*values, *(-v for v in values), math.nan]).astype(kind)
    limits = np.iinfo(kind)
    low, high = int(limits.min), int(limits.max)
    near = {low, low + 1, -3, -2, -1, 0, 1, 2, 3, 7, high // 2, high - 1, high}
    return np.array(sorted(v for v in near if low <= v <= high), kind)


def differing(a: Array, b: Array) -> Array:
    """Returns where arrays differ: their bits, except those of NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype.kind in "biu":
        return np.flatnonzero(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (np.signbit(x) == np.signbit(y)) | np.isnan(x) & np.isnan(y)
    return np.flatnonzero(~same)


def splat(value: float, like: Expr, *, whole: bool = False) -> Constant:
    """Returns a constant of one element, or with all elements of a tensor equal."""
    one = np.array(value).astype(to_numpy(like.tensor.dtype))
    return Constant(np.broadcast_to(one, like.tensor.concrete) if whole else one)


def row(like: Expr, seed: int = 3) -> Constant:
    """Returns one number for each column."""
    count = like.tensor.concrete[-1]
    numbers = np.random.default_rng(seed).integers(1, 4, count)
    return Constant(numbers.astype(to_numpy(like.tensor.dtype)))


def call(name: str, *args: Expr, **attrs: Any) -> Call:
    return get_op(name)(*args, **attrs)


def module_of(inputs: list[Expr], *results: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    return Module({"main": Function(inputs, Tuple(results), {"outputs": names})})  # type: ignore[arg-type]


def variables(dtype: str) -> tuple[Var, Var, dict[str, Array]]:
    """Returns two inputs that hold all pairs of special values."""
    values = special(dtype)
    whole = TensorType((values.size, values.size), dtype)
    x, z = Var("x", whole), Var("z", whole)
    grid = np.broadcast_to(values[:, None], whole.concrete)
    return x, z, {"x": np.array(grid), "z": np.array(grid.T)}


# --- examples of rules ----------------------------------------------------------------------------


def _chain(*steps: tuple[str, dict[str, Any]]) -> Build:
    def build(x: Expr, z: Expr) -> Expr:
        for name, attrs in steps:
            x = call(name, x, **attrs)
        return x

    return build


def _size(x: Expr) -> int:
    return x.tensor.concrete[0]


def _flat(x: Expr) -> Expr:
    return call("reshape", x, shape=(_size(x) ** 2,))


def _erf(x: Expr, z: Expr) -> Expr:
    inner = call("erf", call("divide", x, splat(math.sqrt(2), x)))
    return call("multiply", call("multiply", x, call("add", inner, splat(1, x))), splat(0.5, x))


def _tanh(x: Expr, z: Expr) -> Expr:
    cube = call("multiply", call("multiply", call("multiply", x, x), x), splat(0.044715, x))
    inner = call("multiply", call("add", x, cube), splat(math.sqrt(2 / math.pi), x))
    factor = call("add", call("tanh", inner), splat(1, x))
    return call("multiply", call("multiply", x, factor), splat(0.5, x))


def _hard_swish(x: Expr, z: Expr) -> Expr:
    up = call("clip", call("add", x, splat(3, x)), min=0.0, max=6.0)
    return call("divide", call("multiply", x, up), splat(6, x))


def _softmax(x: Expr, z: Expr) -> Expr:
    shifted = call("subtract", x, call("max", x, axes=(1,), keepdims=True))
    power = call("exp", shifted)
    return call("divide", power, call("sum", power, axes=(1,), keepdims=True))


def _centered(x: Expr) -> tuple[Expr, Expr]:
    centered = call("subtract", x, call("mean", x, axes=(1,), keepdims=True))
    square = call("multiply", centered, centered)
    return centered, call("mean", square, axes=(1,), keepdims=True)


def _normal(x: Expr, z: Expr) -> Expr:
    centered, variance = _centered(x)
    deviation = call("sqrt", call("add", variance, splat(0.5, x)))
    return call("multiply", call("divide", centered, deviation), row(x))


def _with_beta(x: Expr, z: Expr) -> Expr:
    return call("add", call("nn.layer_norm", x, row(x), axis=-1, epsilon=0.5), row(x, 4))


def _rms(x: Expr, z: Expr) -> Expr:
    square = call("mean", call("multiply", x, x), axes=(1,), keepdims=True)
    deviation = call("sqrt", call("add", square, splat(0.5, x)))
    return call("multiply", call("divide", x, deviation), row(x))


def _channels(x: Expr, count: int = 4) -> Expr:
    """Returns images of four channels made of an input: `[1, 4, 2, 3]`."""
    part = call("slice", x, begin=(0, 0), end=(count, 6), axes=(0, 1))
    return call("reshape", part, shape=(1, count, 2, 3))


def _of_channels(x: Expr, *values: float) -> Constant:
    kind = to_numpy(x.tensor.dtype)
    return Constant(np.array(values).astype(kind).reshape(1, -1, 1, 1))


def _vector(x: Expr, *values: float) -> Constant:
    return Constant(np.array(values).astype(to_numpy(x.tensor.dtype)))


def _grouped(x: Expr) -> Expr:
    groups = call("reshape", _channels(x), shape=(1, 2, 12))
    norm = call("nn.instance_norm", groups, _vector(x, 1, 1), _vector(x, 0, 0), epsilon=0.5)
    return call("reshape", norm, shape=(1, 4, 2, 3))


def _group_norm(x: Expr, gamma: tuple[float, ...]) -> Expr:
    zeros = _vector(x, 0, 0, 0, 0)
    return call("nn.group_norm", _channels(x), _vector(x, *gamma), zeros, groups=2, epsilon=0.5)


def _matrix(x: Expr, units: int = 3) -> Constant:
    numbers = np.random.default_rng(5).integers(1, 4, (_size(x), units))
    return Constant(numbers.astype(to_numpy(x.tensor.dtype)))


def _dense(x: Expr) -> Expr:
    return call("nn.dense", x, _matrix(x), weight_layout="KN")


def _scatter(x: Expr, z: Expr) -> Expr:
    places = np.stack(np.meshgrid([1, 2], range(_size(x)), indexing="ij"), -1)
    updates = call("slice", z, begin=(0,), end=(2,), axes=(0,))
    return call("scatter_nd", x, Constant(places), updates)


def _selected(x: Expr, z: Expr) -> Expr:
    part = call("reshape", call("slice", x, begin=(3,), end=(4,), axes=(0,)), shape=(_size(x),))
    return call("slice", part, begin=(2,), end=(5,), axes=(0,))


def _swap(x: Expr, z: Expr) -> Expr:
    n = _size(x)
    merged = call("reshape", call("reshape", x, shape=(1, 1, n, n)), shape=(1, n, n))
    return call("reshape", call("transpose", merged, axes=(0, 2, 1)), shape=(1, 1, n, n))


def _positions(x: Expr, z: Expr) -> Expr:
    places = call("arange", start=0, stop=_size(x), step=1, dtype="i64")
    return call("where", call("less", places, Constant(np.int64(0))), x, z)


def _truth(x: Expr, z: Expr) -> Expr:
    return call("logical_and", call("less", x, z), Constant(np.array(True)))


EXAMPLES: Final[dict[str, list[Build]]] = {
    "neutral_factor": [
        lambda x, z: call("multiply", x, splat(1, x)),
        lambda x, z: call("divide", x, splat(1, x, whole=True)),
        lambda x, z: call("power", x, splat(1, x)),
    ],
    "plus_zero": [lambda x, z: call("add", splat(-0.0, x), x)],
    "minus_zero": [lambda x, z: call("subtract", x, splat(0, x))],
    "zero_of_unread_sign": [
        lambda x, z: call("nn.softmax", call("add", x, splat(0, x)), axis=1),
        lambda x, z: call("nn.log_softmax", call("add", x, splat(0, x)), axis=1),
        *(
            lambda x, z, name=name, c=c: call(name, call("add", x, splat(c, x)))
            for name in ("exp", "sigmoid", "abs", "cos", "cosh")
            for c in (0, 1)
        ),
    ],
    "same_type_again": [lambda x, z: call("cast", x, dtype=x.tensor.dtype)],
    "nothing_repeated": [lambda x, z: call("broadcast_to", x, shape=x.tensor.shape)],
    "nothing_added_or_left_out": [lambda x, z: call("pad", x, pads=(0, 0, 0, 0))],
    "transpose_that_moves_nothing": [
        lambda x, z: call("transpose", call("reshape", x, shape=(1, _size(x) ** 2)), axes=(1, 0))
    ],
    "reshape_of_reshape": [
        lambda x, z: call("reshape", _flat(x), shape=(1, 1, _size(x) ** 2)),
    ],
    "transpose_of_transpose": [_chain(*[("transpose", {"axes": (1, 0)})] * 2)],
    "swap_between_reshapes": [_swap],
    "slice_of_slice": [
        _chain(
            ("slice", {"begin": (1,), "end": (9,), "axes": (0,)}),
            ("slice", {"begin": (2,), "end": (5,), "axes": (0,)}),
        )
    ],
    "slice_of_selected": [_selected],
    "clip_of_clip": [
        _chain(("clip", {"min": a, "max": b}), ("clip", {"min": c, "max": d}))
        for a, b, c, d in (
            (0.0, 6.0, -0.0, 3.0),
            (-0.0, 6.0, 0.0, 3.0),
            (-1.0, 0.0, -0.0, 2.0),
            (-1.0, -0.0, -3.0, 0.0),
            (None, 2.0, 0.0, None),
            (0.0, math.inf, -math.inf, 1.0),
        )
    ],
    "relu_of_relu": [_chain(*[("nn.relu", {})] * 2)],
    "negative_of_negative": [_chain(*[("negative", {})] * 2)],
    "cast_of_cast": [
        _chain(("cast", {"dtype": wide}), ("cast", {"dtype": to}))
        for wide in ("f32", "f64", "i32", "i64", "i16", "u16")
        for to in ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "u32", "i64", "bool")
    ],
    "divide_by_power_of_two": [
        lambda x, z, c=c: call("divide", x, splat(c, x)) for c in (2, -4, 0.5, 1024, 2.0**-10, 3)
    ],
    "simple_power": [
        lambda x, z: call("power", x, splat(2, x)),
        lambda x, z: call("power", x, splat(-1, x)),
        lambda x, z: call("power", call("multiply", x, x), splat(0.5, x)),
        lambda x, z: call("power", call("maximum", x, splat(1e-3, x)), splat(0.5, x)),
    ],
    "inverse_root": [
        lambda x, z: call("power", call("add", call("abs", x), splat(1e-3, x)), splat(-0.5, x))
    ],
    "one_over": [lambda x, z: call("divide", splat(1, x), x)],
    "reciprocal_of_root": [_chain(("sqrt", {}), ("reciprocal", {}))],
    "one_of_the_sizes": [
        lambda x, z: call("slice", call("shape_of", x), begin=(1,), end=(2,), axes=(0,))
    ],
    "size_of_an_axis": [
        lambda x, z: call("gather", call("shape_of", x), Constant(np.int64(1)), axis=0)
    ],
    "where_of_constant": [
        lambda x, z, c=c: call("where", Constant(np.array(c)), x, z) for c in (True, False)
    ],
    "known_comparison": [_positions],
    "neutral_condition": [_truth],
    "gelu": [_erf],
    "gelu_by_tanh": [_tanh],
    "silu": [lambda x, z: call("multiply", x, call("sigmoid", x))],
    "hard_swish": [_hard_swish],
    "mish": [lambda x, z: call("multiply", x, call("tanh", call("nn.softplus", x)))],
    "softmax": [_softmax],
    "layer_norm": [_normal],
    "layer_norm_beta": [_with_beta],
    "rms_norm": [_rms],
    "group_norm": [lambda x, z: _grouped(x)],
    "group_norm_gamma": [
        lambda x, z: call("multiply", _group_norm(x, (1, 1, 1, 1)), _of_channels(x, 1, 2, 3, 1))
    ],
    "group_norm_beta": [
        lambda x, z: call("add", _group_norm(x, (1, 2, 3, 1)), _of_channels(x, 1, 2, 3, 1))
    ],
    "matmul_with_constant_matrix": [lambda x, z: call("nn.matmul", x, _matrix(x))],
    "constant_second": [
        *(
            lambda x, z, name=name: call(name, row(x), x)
            for name in ("add", "multiply", "equal", "not_equal")
        ),
        *(
            lambda x, z, name=name, c=c: call(name, splat(c, x), x)
            for name in ("maximum", "minimum", "add")
            for c in (0.0, -0.0, 1.0)
        ),
    ],
    "subtract_constant": [
        *(lambda x, z, c=c: call("subtract", x, splat(c, x)) for c in (0.0, -0.0, 3.0)),
        lambda x, z: call("subtract", x, Constant(special(x.tensor.dtype))),
    ],
    "mean_over_image": [lambda x, z: call("mean", _channels(x), axes=(2, 3))],
    "max_pool_of_long_windows": [
        lambda x, z: call(
            "nn.max_pool2d",
            call("reshape", x, shape=(1, 1, *x.tensor.shape)),
            kernel=(7, 7), strides=(1, 1), padding=(3, 3, 3, 3),
        )
    ],
    "part_of_split": [
        lambda x, z: TupleGetItem(call("split", x, axis=1, sizes=(2, _size(x) - 2)), 1)
    ],
    "reshape_of_dense": [
        lambda x, z: call(
            "reshape", call("add", _dense(x), _vector(x, 1, 2, 3)), shape=(1, _size(x), 3)
        )
    ],
    "scatter_to_a_box": [_scatter],
    "identity": [_chain(("identity", {}))],
    "scale_after": [lambda x, z: call("multiply", _dense(x), _vector(x, 1, 2, 3))],
    "scale_after_bias": [
        lambda x, z: call(
            "multiply", call("add", _dense(x), _vector(x, 3, 2, 1)), _vector(x, 1, 2, 3)
        )
    ],
    "merge_biases": [
        lambda x, z: call("add", call("add", _dense(x), _vector(x, 3, 2, 1)), _vector(x, 1, 2, 3))
    ],
    "scale_before": [lambda x, z: _dense(call("multiply", x, row(x)))],
    "scale_of_scale": [lambda x, z: call("multiply", call("multiply", x, row(x)), row(x, 4))],
    "scale_of_shifted": [
        lambda x, z: call(
            "multiply", call("add", call("multiply", x, row(x)), row(x, 5)), row(x, 4)
        )
    ],
    "merge_shifts": [
        lambda x, z: call("add", call("add", call("multiply", x, row(x)), row(x, 5)), row(x, 4))
    ],
}  # fmt: skip


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
                  _flat(call("abs", x)), call("clip", x, min=0.1),
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
    model = module_of([x], _hard_swish(x, x))
    inputs = {"x": np.linspace(-4, 4, 64)}
    found = clew.compile(model, threads=1, cache=False).run(inputs)["y0"]
    v = inputs["x"]
    np.testing.assert_allclose(found, v * np.clip(v + 3, 0, 6) / 6, rtol=1e-15, atol=1e-15)


# --- random chains --------------------------------------------------------------------------------

_CONSTANTS: Final = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, math.nan, math.inf, -math.inf)


def _drawn(rng: random.Random, dtype: str) -> tuple[Module, dict[str, Array]]:
    """Returns a chain of exact operators with constants that rules look for."""
    x, z, inputs = variables(dtype)
    values: list[Expr] = [x, z]
    for _ in range(rng.randint(2, 7)):
        a = rng.choice(values[-3:])
        constant = rng.choice(_CONSTANTS)
        if not is_float(dtype):
            constant = int(constant) if math.isfinite(constant) and constant >= 0 else 7
        b = rng.choice([splat(constant, x, whole=rng.random() < 0.3), rng.choice(values)])
        kind = rng.random()
        if kind < 0.6:
            op = rng.choice(["add", "subtract", "multiply", "divide", "maximum", "minimum"])
            if op in ("maximum", "minimum") and isinstance(b, Constant):
                b = splat(abs(constant) + 1, x)  # of two zeros, a kernel may return the number
            new = call(op, *rng.sample([a, b], 2))
        elif kind < 0.75:
            new = call(rng.choice(["negative", "abs", "nn.relu", "sign"]), a)
        elif kind < 0.85:
            compared = call(rng.choice(["less", "greater_equal", "equal"]), a, b)
            new = call("where", compared, a, rng.choice(values))
        elif kind < 0.95:
            between = rng.choice(["f32", "f64", "i64", "bool"])
            new = call("cast", call("cast", a, dtype=between), dtype=dtype)
        else:
            new = call("power", a, splat(rng.choice([2, 1]), x))
        if new.tensor.shape == x.tensor.shape:
            values.append(new)
    return module_of([x, z], *values[-2:]), inputs


def _check_chains(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        model, inputs = _drawn(rng, rng.choice(["f32", "f64", "i32", "u8", "i64"]))
        wanted = interpret(model, inputs)
        found = clew.compile(model, threads=1, cache=False).run(inputs)
        for name in wanted:
            wrong = differing(found[name], wanted[name])
            assert wrong.size == 0, f"seed {seed}\n{model}"


def test_chains_of_exact_operators() -> None:
    _check_chains(range(20))


@pytest.mark.exhaustive
def test_many_chains_of_exact_operators() -> None:
    _check_chains(range(1000))


# --- zeros of operators, as in PyTorch and ONNX Runtime -------------------------------------------


def _compiled(name: str, *arrays: Array, **attrs: Any) -> Array:
    inputs: list[Expr] = [
        Var(f"x{n}", TensorType(a.shape, from_numpy(a.dtype))) for n, a in enumerate(arrays)
    ]
    model = module_of(inputs, call(name, *inputs, **attrs))
    fed = {f"x{n}": a for n, a in enumerate(arrays)}
    found = clew.compile(model, threads=1, cache=False).run(fed)["y0"]
    assert differing(found, interpret(model, fed)["y0"]).size == 0
    return np.asarray(found)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_zero_remainders_have_the_sign_of_the_dividend(dtype: str) -> None:
    a, b = (np.array(v).astype(to_numpy(dtype)) for v in ([0.0, -0.0, 3, -3, 6], [-3.0] * 5))
    for name in ("floor_mod", "mod"):
        found = _compiled(name, a, b)
        assert np.signbit(found).tolist() == [False, True, False, True, False]


def test_zeros_that_a_scatter_does_not_reach_keep_their_sign() -> None:
    x, places = np.full((4, 3), -0.0, np.float32), np.array([[1, 1, 1]])
    found = _compiled("scatter_elements", x, places, np.ones((1, 3), np.float32), reduction="add")
    assert np.signbit(found).tolist() == [[True] * 3, [False] * 3, [True] * 3, [True] * 3]
    assert found[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_sums_of_minus_zero_are_zero(rows: int) -> None:
    x = np.full((rows, 5), -0.0, np.float32)
    for name in ("sum", "mean"):
        assert not np.signbit(_compiled(name, x, axes=(0,))).any()
    for name in ("max", "min"):
        assert np.signbit(_compiled(name, x, axes=(0,))).all()
    for name in ("nn.relu", "floor", "sqrt", "sin", "nn.leaky_relu"):
        assert np.signbit(_compiled(name, x)).all()


def test_limits_of_clips_of_integers_are_in_their_range() -> None:
    x = np.array([0, 1, 7, 255], np.uint8)
    assert _compiled("clip", x, min=-1.0, max=3.0).tolist() == [0, 1, 3, 3]
    assert _compiled("clip", x, min=2.0, max=math.inf).tolist() == [2, 2, 7, 255]
