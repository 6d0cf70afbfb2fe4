"""What WidenHalves computes in f32, what it rounds, and how far results are from exact ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.expr import Call, If, TupleGetItem
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.base import PassContext
from clew.passes.precision.widen_halves import WidenHalves

pytestmark = pytest.mark.usefixtures("shared_kernels")
HALVES = ("f16", "bf16")


def nodes(module: Module, op: str) -> list[Call]:
    found = post_order(module.main, into_functions=True)
    return [n for n in found if isinstance(n, Call) and n.op_name == op]


def dtypes(module: Module, op: str) -> set[str]:
    return {n.tensor.dtype for n in nodes(module, op)}


def weight(kit: Any, dtype: str, *shape: int, seed: int = 0) -> Any:
    data = kit.random(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:])))
    return kit.const(data.astype(to_numpy(dtype)))


def encoder(kit: Any, dtype: str) -> Module:
    """Residual blocks with norms and activations; the sums between them feed no product."""
    x = kit.var("x", 12, 64, dtype=dtype)
    one = kit.const(np.ones(64, to_numpy(dtype)))
    none = kit.const(np.zeros(64, to_numpy(dtype)))
    value: Any = x
    for block in range(4):
        normed = kit.layer("nn.layer_norm", value, one, none)
        hidden = kit.layer("nn.dense", normed, weight(kit, dtype, 64, 64, seed=2 * block))
        hidden = kit.layer("nn.gelu", kit.layer("multiply", hidden, one))
        hidden = kit.layer("nn.dense", hidden, weight(kit, dtype, 64, 64, seed=2 * block + 1))
        value = kit.layer("add", value, hidden)
    made: Module = kit.module([x], kit.layer("nn.layer_norm", value, one, none))
    return made


def f64_twin(module: Module, feed: dict[str, Any]) -> Any:
    """The exact outputs: every operator is computed in f64 by its reference."""
    values: dict[int, Any] = {p.id: feed[p.name].astype(np.float64) for p in module.main.params}
    for node in post_order(module.main.body):
        if isinstance(node, Call):
            args = [values[a.id] for a in node.args]
            values[node.id] = node.op.run_reference(args, node.attrs)  # type: ignore[union-attr]
        elif hasattr(node, "data"):
            values[node.id] = np.asarray(node.data, np.float64)
    return values[module.main.body.children[0].id]


@pytest.mark.parametrize("dtype", HALVES)
def test_chains_round_where_they_are_stored(kit: Any, dtype: str) -> None:
    given = encoder(kit, dtype)
    assert dtypes(kit.apply(given, WidenHalves()), "add") == {"f32"}
    feed = {"x": kit.random(12, 64, seed=9).astype(to_numpy(dtype))}
    exact = f64_twin(given, feed)
    error = {}
    for name, disabled in (("wide", []), ("narrow", ["WidenHalves"])):
        found = clew.compile(given, threads=1, passes=clew.Passes(disabled=disabled)).run(feed)[
            "y0"
        ]
        assert found.dtype == to_numpy(dtype)
        error[name] = float(np.sqrt(np.mean((found.astype(np.float64) - exact) ** 2)))
    # Rounding the result alone gives this much.
    rounded = exact.astype(to_numpy(dtype)).astype(np.float64)
    least = float(np.sqrt(np.mean((rounded - exact) ** 2)))
    assert error["wide"] < 0.75 * error["narrow"]
    assert error["wide"] < 4 * least


def test_products_are_narrow_where_instructions_multiply_them(kit: Any) -> None:
    x = kit.var("x", 1, 16, 6, 6, dtype="bf16")
    image = kit.layer("nn.conv2d", x, weight(kit, "bf16", 16, 16, 1, 1))
    rows = kit.layer("reshape", image, shape=(16, 36))
    scores = kit.layer("nn.dense", rows, weight(kit, "bf16", 8, 36))
    given = kit.module([x], kit.layer("nn.matmul", scores, weight(kit, "bf16", 8, 16)))
    operands = {
        target: {
            op: [a.tensor.dtype for a in nodes(after, op)[0].args]
            for op in ("nn.conv2d", "nn.dense", "nn.matmul")
        }
        for target, after in (
            ("dots", kit.apply(given, WidenHalves())),
            ("none", WidenHalves().run(given, PassContext(target=target_of("cpu-avx2")))),
        )
    }
    assert set(map(tuple, operands["dots"].values())) == {("bf16", "bf16")}
    assert operands["none"] == {
        "nn.conv2d": ["f32", "f32"],
        "nn.dense": ["f32", "bf16"],
        "nn.matmul": ["bf16", "bf16"],
    }


@pytest.mark.parametrize("dtype", HALVES)
def test_what_the_model_rounds_stays_rounded(kit: Any, dtype: str) -> None:
    """Also what it reads by its bits, and what branches take and return."""
    x = kit.var("x", 64, dtype="f32")
    rounded = kit.layer("cast", x, dtype=dtype)
    twice = kit.layer("multiply", rounded, rounded)
    bits = kit.layer("bitcast", twice, dtype="i16")
    a, b = kit.var("a", 64, dtype=dtype), kit.var("b", 64, dtype=dtype)
    chosen = If(
        kit.layer(
            "greater", kit.layer("max", x, axes=(0,), keepdims=False), kit.const(np.float32(0))
        ),
        kit.function([a], kit.layer("exp", a)),
        kit.function([b], kit.layer("negative", b)),
        [twice],
    )
    given = kit.module([x], kit.layer("cast", twice, dtype="f32"), bits, chosen)
    after = kit.apply(given, WidenHalves())
    assert dtypes(after, "multiply") == dtypes(after, "exp") == {"f32"}
    feed = {"x": kit.random(64, seed=3)}
    want, found = interpret(given, feed), interpret(after, feed)
    narrow = feed["x"].astype(to_numpy(dtype)).astype(np.float64)
    np.testing.assert_allclose(found["y0"], narrow**2, rtol=1e-6)  # not rounded any more
    np.testing.assert_array_equal(found["y1"], want["y1"])
    np.testing.assert_allclose(
        found["y2"].astype(np.float32), want["y2"].astype(np.float32), rtol=2e-2
    )
    ran = clew.compile(given, threads=1).run(feed)
    np.testing.assert_array_equal(ran["y1"], want["y1"])


def test_parts_and_moves(kit: Any) -> None:
    """Several results, a state that a step continues, and a table."""
    x, state = kit.var("x", 4, 6, dtype="f16"), kit.var("state", 8, 6, dtype="f16")
    ids = kit.var("ids", 4, dtype="i64")
    table = kit.const(kit.random(9, 6, seed=1).astype(np.float16))
    known = kit.layer("gather", table, ids)
    value = kit.layer("add", kit.layer("exp", x), known)
    halves = kit.layer("split", value, sizes=(2, 4), axis=1)
    joined = kit.layer("concatenate", state, value, axis=0)
    first, second = TupleGetItem(halves, 0), TupleGetItem(halves, 1)
    given = kit.module([x, state, ids], joined, kit.layer("tanh", first), second)
    after = kit.apply(given, WidenHalves())
    assert dtypes(after, "gather") == dtypes(after, "concatenate") == {"f16"}
    assert dtypes(after, "add") == {"f32"}
    feed = {"x": kit.random(4, 6, seed=2).astype(np.float16), "ids": np.array([0, 8, 3, 3]),
            "state": kit.random(8, 6, seed=3).astype(np.float16)}  # fmt: skip
    want, ran = interpret(given, feed), clew.compile(given, threads=1).run(feed)
    for name, expected in want.items():
        assert ran[name].dtype == expected.dtype
        np.testing.assert_allclose(
            ran[name].astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=1e-3
        )


def test_a_batch_norm_of_a_large_mean(kit: Any) -> None:
    """Its shift is the mean times the scale, which the same mean of the image cancels."""
    x = kit.var("x", 1, 8, 16, 16, dtype="f16")
    image = kit.layer("nn.conv2d", x, kit.const(np.eye(8, dtype=np.float16)[:, :, None, None]))
    params = [np.full(8, v, np.float16) for v in (1.7, 0.1, 300.3, 0.37)]  # gamma to variance
    given = kit.module([x], kit.layer("nn.batch_norm", image, *map(kit.const, params)))
    values = np.random.default_rng(0).uniform(299, 301, (1, 8, 16, 16)).astype(np.float16)
    gamma, beta, mean, var = (p.astype(np.float64)[:, None, None] for p in params)
    want = (values.astype(np.float64) - mean) * gamma / np.sqrt(var + 1e-5) + beta
    found = clew.compile(given, threads=1).run({"x": values})["y0"]
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=1e-3, atol=1e-3)


def test_operators_for_narrow_operands_alone_keep_them(kit: Any) -> None:
    """Such as products of parts, which are exact."""
    x = kit.var("x", 1, 1, 3, 16, 32, dtype="bf16")
    given = kit.module(
        [x],
        kit.layer("nn.dense", x, weight(kit, "f32", 3, 7), parts=3, rows=(5,), out_dtype="f32"),
    )
    for target in ("cpu-avx2", "cpu-avx512"):
        after = WidenHalves().run(given, PassContext(target=target_of(target)))
        assert [a.tensor.dtype for a in nodes(after, "nn.dense")[0].args] == ["bf16", "f32"]


def test_a_norm_that_a_residual_reads_is_stored_in_both_forms(kit: Any) -> None:
    """As ConvertPrecision does; what a convolution reads is stored once."""
    x = kit.var("x", 16, 32, dtype="bf16")
    norm = kit.layer("nn.rms_norm", kit.layer("exp", x), weight(kit, "bf16", 32))
    product = kit.layer("nn.dense", norm, weight(kit, "bf16", 32, 32))
    image = kit.var("image", 1, 16, 6, 6, dtype="bf16")
    root = kit.layer("exp", image)
    convolved = kit.layer("nn.conv2d", root, weight(kit, "bf16", 16, 16, 1, 1))
    ends = kit.layer("add", product, norm), kit.layer("add", convolved, root)
    after = kit.apply(kit.module([x, image], *ends), WidenHalves())
    sums = {n.tensor.rank: [getattr(a, "op_name", "") for a in n.args] for n in nodes(after, "add")}
    assert sums == {2: ["nn.dense", "nn.rms_norm"], 4: ["nn.conv2d", "cast"]}
