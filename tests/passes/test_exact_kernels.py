"""Kernels give the bits of the references: random chains of exact operators, and the signs of zeros
as in PyTorch and ONNX Runtime.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

import numpy as np
import pytest
from special_values import Array, call, differing, module_of, splat, variables

import clew
from clew.ir.expr import Constant, Expr, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy, is_float, to_numpy

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


# --- zeros of operators ---------------------------------------------------------------------------


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
