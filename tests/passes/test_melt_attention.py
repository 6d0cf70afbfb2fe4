from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Expr
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import to_numpy
from clew.ir.visit import post_order
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.melt_attention import MeltAttention
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr

HIDDEN = float(np.finfo(np.float32).min)


def heads(kit: Any, x: Expr, count: int, axes: tuple[int, ...] = (0, 2, 1, 3)) -> Expr:
    batch, places, width = x.tensor.shape
    split = kit.layer("reshape", x, shape=(batch, places, count, width // count))
    return kit.layer("transpose", split, axes=axes)


def weighted(kit: Any, scores: Expr, v: Expr, guarded: bool = False) -> Expr:
    weights = kit.layer("nn.softmax", scores, axis=-1)
    if guarded:
        zero = kit.const(np.float32(0))
        weights = kit.layer("where", kit.layer("isnan", weights), zero, weights)
    return kit.layer("nn.matmul", weights, v)


def melted(given: Module) -> list[Call]:
    nodes = post_order(given.main.body)
    return [n for n in nodes if isinstance(n, Call) and n.op_name == "nn.attention"]


def only(kit: Any, given: Module, *gone: str) -> Call:
    """Returns the one attention that a module becomes, which computes the same."""
    after = kit.apply(given, EliminateCommonSubexpr(), CanonicalizeOps(), MeltAttention())
    kit.same(given, after)
    (found,) = melted(after)
    assert not {"nn.softmax", "nn.matmul", "isnan", *gone} & set(kit.op_names(after))
    return found


def test_factors_and_transposes_become_attributes(kit: Any) -> None:
    """As exporters write it: both operands scaled, keys transposed, a guard, heads merged again."""
    x = [kit.var(name, 2, 7, 12) for name in "qkv"]
    root = kit.const(np.float32(0.6))
    q = kit.layer("multiply", heads(kit, x[0], 3), root)
    k = kit.layer("multiply", heads(kit, x[1], 3, (0, 2, 3, 1)), root)
    y = weighted(kit, kit.layer("nn.matmul", q, k), heads(kit, x[2], 3), guarded=True)
    y = kit.layer("reshape", kit.layer("transpose", y, axes=(0, 2, 1, 3)), shape=(2, 7, 12))
    found = only(kit, kit.module(x, y), "transpose", "multiply", "where")
    layouts = [found.attrs[n] for n in ("q_layout", "k_layout", "v_layout", "layout")]
    assert layouts == ["BSHD"] * 4
    assert found.attrs.guard == "nan"
    assert found.attrs.scale == pytest.approx(0.36)


def test_rows_that_the_mask_hides_are_guarded(kit: Any) -> None:
    """As ONNX's own Attention is expanded: a row without anything to see is judged by its mask."""
    x = [kit.var(name, 1, 2, 3, 4) for name in "qkv"]
    rows = np.array([[0, -np.inf, 1], [-np.inf] * 3, [0, 0, 0]], np.float32)
    mask = kit.layer("multiply", kit.var("m", 3, 3), kit.const(rows))
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    scores = kit.layer("add", kit.layer("nn.matmul", x[0], k), mask)
    weights = kit.layer("nn.softmax", scores, axis=-1)
    top = kit.layer("max", mask, axes=(-1,), keepdims=True)
    hidden = kit.layer("equal", top, kit.const(np.float32(-np.inf)))
    weights = kit.layer("where", hidden, kit.const(np.float32(0)), weights)
    given = kit.module([*x, mask.args[0]], kit.layer("nn.matmul", weights, x[2]))
    after = kit.apply(given, MeltAttention())
    (found,) = melted(after)
    assert found.attrs.guard == "empty"
    feed = {name: kit.random(1, 2, 3, 4, seed=n) for n, name in enumerate("qkv")}
    feed["m"] = np.ones((3, 3), np.float32)
    (one,), (two,) = (interpret(m, feed).values() for m in (given, after))
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    assert not one[0, 0, 1].any()


@pytest.mark.parametrize("by", ["multiply", "divide"])
def test_a_factor_of_the_scores(kit: Any, by: str) -> None:
    x = [kit.var(name, 1, 2, 5, 4) for name in "qv"]
    k = kit.var("k", 1, 2, 4, 6)
    v = kit.var("v", 1, 2, 6, 4)
    scores = kit.layer(by, kit.layer("nn.matmul", x[0], k), kit.const(np.float32(2.0)))
    found = only(kit, kit.module([x[0], k, v], weighted(kit, scores, v)), by)
    assert found.attrs.scale == (2.0 if by == "multiply" else 0.5)
    assert found.attrs.k_layout == "BHDS"


def test_repeated_heads_are_shared(kit: Any) -> None:
    q, kv = kit.var("q", 2, 6, 5, 4), kit.var("kv", 2, 2, 5, 4)
    one = kit.layer("reshape", kv, shape=(2, 2, 1, 5, 4))
    many = kit.layer("broadcast_to", one, shape=(2, 2, 3, 5, 4))
    v = kit.layer("reshape", many, shape=(2, 6, 5, 4))
    k = kit.layer("transpose", v, axes=(0, 1, 3, 2))
    y = weighted(kit, kit.layer("nn.matmul", q, k), v)
    found = only(kit, kit.module([q, kv], y), "broadcast_to", "transpose")
    assert [a.tensor.shape[1] for a in found.args] == [6, 2, 2]


@pytest.mark.parametrize("which", ["k", "v"])
def test_heads_repeated_in_one_operand_only_are_not_shared(kit: Any, which: str) -> None:
    """As when a model is cut between the repetition of values and their product."""
    q, few, own = kit.var("q", 2, 6, 5, 4), kit.var("few", 2, 2, 5, 4), kit.var("own", 2, 6, 5, 4)
    one = kit.layer("reshape", few, shape=(2, 2, 1, 5, 4))
    many = kit.layer("broadcast_to", one, shape=(2, 2, 3, 5, 4))
    repeated = kit.layer("reshape", many, shape=(2, 6, 5, 4))
    k, v = (repeated, own) if which == "k" else (own, repeated)
    k = kit.layer("transpose", k, axes=(0, 1, 3, 2))
    y = weighted(kit, kit.layer("nn.matmul", q, k), v)
    found = only(kit, kit.module([q, few, own], y), "transpose")
    assert [a.tensor.shape[1] for a in found.args] == [6, 6, 6]


def test_heads_that_differ_are_not_shared(kit: Any) -> None:
    q, kv = kit.var("q", 1, 6, 5, 4), kit.var("kv", 1, 2, 3, 5, 4)
    v = kit.layer("reshape", kv, shape=(1, 6, 5, 4))
    k = kit.layer("transpose", v, axes=(0, 1, 3, 2))
    y = weighted(kit, kit.layer("nn.matmul", q, k), v)
    found = only(kit, kit.module([q, kv], y), "transpose")
    assert found.args[1].tensor.shape[1] == 6


@pytest.mark.parametrize(
    ("dtype", "hidden"), [("f32", -np.inf), ("f32", HIDDEN), ("f16", -np.inf), ("f16", -65504)]
)
def test_a_constant_causal_mask_is_an_attribute(kit: Any, dtype: str, hidden: float) -> None:
    x = [kit.var(name, 1, 2, 5, 4, dtype=dtype) for name in "qkv"]
    mask = np.where(np.tril(np.ones((5, 5), bool)), 0.0, hidden).astype(to_numpy(dtype))
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    scores = kit.layer("add", kit.layer("nn.matmul", x[0], k), kit.const(mask[None, None]))
    given = kit.module(x, weighted(kit, scores, x[2]))
    if dtype == "f32":
        found = only(kit, given, "add")
    else:  # the interpreter rounds the sum and the softmax of the one, but not of the other
        (found,) = melted(kit.apply(given, CanonicalizeOps(), MeltAttention()))
    assert found.attrs.causal
    assert len(found.args) == 3


def test_other_masks_are_added(kit: Any) -> None:
    x = [kit.var(name, 1, 2, 5, 4) for name in "qkv"]
    mask = kit.random(5, 5)
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    scores = kit.layer("add", kit.const(mask), kit.layer("nn.matmul", x[0], k))
    found = only(kit, kit.module(x, weighted(kit, scores, x[2])), "add")
    assert not found.attrs.causal
    assert found.args[3].tensor.shape == (5, 5)


def test_a_mask_keeps_only_the_axes_that_its_condition_has(kit: Any) -> None:
    x = [kit.var(name, 2, 2, 5, 4) for name in "qkv"]
    seen = kit.layer("greater", kit.var("m", 2, 1, 1, 5), kit.const(np.float32(0)))
    every = kit.layer("logical_and", kit.const(np.ones((1, 1, 5, 1), bool)), seen)
    numbers = [kit.const(np.float32(n)) for n in (0, HIDDEN)]
    mask = kit.layer("where", every, *numbers)
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    scores = kit.layer("add", kit.layer("nn.matmul", x[0], k), mask)
    inputs = [*x, seen.args[0]]
    found = only(kit, kit.module(inputs, weighted(kit, scores, x[2])), "logical_and")
    assert found.args[3].tensor.shape == (2, 1, 1, 5)


def test_three_axes_are_one_head(kit: Any) -> None:
    x = [kit.var(name, 2, 5, 4) for name in "qkv"]
    k = kit.layer("transpose", x[1], axes=(0, 2, 1))
    scores = kit.layer("add", kit.layer("nn.matmul", x[0], k), kit.const(kit.random(2, 5, 5)))
    found = only(kit, kit.module(x, weighted(kit, scores, x[2])), "transpose", "add")
    assert found.args[3].tensor.shape == (2, 1, 5, 5)


def test_weights_that_something_else_reads_stay(kit: Any) -> None:
    x = [kit.var(name, 1, 2, 5, 4) for name in "qkv"]
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    weights = kit.layer("nn.softmax", kit.layer("nn.matmul", x[0], k), axis=-1)
    given = kit.module(x, kit.layer("nn.matmul", weights, x[2]), weights)
    manager = kit.PassManager([MeltAttention()])
    assert manager.run(given) is given
    assert any("something else reads" in r.text for r in manager.stages[-1].remarks)


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_along_another_axis_stays(kit: Any, axis: int) -> None:
    x = [kit.var(name, 1, 5, 5, 4) for name in "qkv"]
    k = kit.layer("transpose", x[1], axes=(0, 1, 3, 2))
    weights = kit.layer("nn.softmax", kit.layer("nn.matmul", x[0], k), axis=axis)
    given = kit.module(x, kit.layer("nn.matmul", weights, x[2]))
    assert kit.apply(given, MeltAttention()) is given


def test_slices_are_read_where_they_stand(kit: Any) -> None:
    """The parts of a product that queries, keys and values share are no kernels of their own."""
    x = kit.var("x", 1, 7, 24)
    both = kit.layer("nn.relu", x)
    parts = [
        kit.layer("slice", both, begin=(n * 8,), end=(n * 8 + 8,), axes=(2,)) for n in range(3)
    ]
    q, v = heads(kit, parts[0], 2), heads(kit, parts[2], 2)
    k = heads(kit, parts[1], 2, (0, 2, 3, 1))
    y = weighted(kit, kit.layer("nn.matmul", q, k), v)
    given = kit.module([x], kit.layer("transpose", y, axes=(0, 2, 1, 3)))
    after = kit.apply(given, MeltAttention(), FuseOps())
    kit.same(given, after)
    names = [n.op.attrs["name"] for n in post_order(after.main.body) if isinstance(n, Call)]
    assert names == ["relu", "slice_slice_slice_attention"]


@pytest.mark.parametrize("windows", [3, 1])
def test_masks_of_shifted_windows_are_added(kit: Any, windows: int) -> None:
    """As Swin: a bias per head, and in other axes a mask per window, shared by all images."""
    batch, rows = 2, 4
    x = [kit.var(name, batch * windows, 5, rows, 8) for name in "qkv"]
    bias, mask = kit.var("bias", 1, 5, rows, rows), kit.var("mask", 1, windows, 1, rows, rows)
    scores = kit.layer("nn.matmul", x[0], kit.layer("transpose", x[1], axes=(0, 1, 3, 2)))
    scores = kit.layer("add", scores, bias)
    split = kit.layer("reshape", scores, shape=(batch, windows, 5, rows, rows))
    hidden = kit.layer("add", split, mask)
    joined = kit.layer("reshape", hidden, shape=(batch * windows, 5, rows, rows))
    y = weighted(kit, joined, x[2])
    only(kit, kit.module([*x, bias, mask], y))


def test_masks_of_three_axes_are_added(kit: Any) -> None:
    """Scores of heads in the batch, masked per image and head, and by a table for all."""
    x = [kit.var(name, 6, 4, 8) for name in "qkv"]
    mask, table = kit.var("mask", 2, 1, 4, 4), kit.var("table", 4, 4)
    scores = kit.layer("nn.matmul", x[0], kit.layer("transpose", x[1], axes=(0, 2, 1)))
    split = kit.layer("reshape", scores, shape=(2, 3, 4, 4))
    joined = kit.layer("reshape", kit.layer("add", split, mask), shape=(6, 4, 4))
    y = weighted(kit, kit.layer("add", joined, table), x[2])
    only(kit, kit.module([*x, mask, table], y))


def test_masks_across_a_reshape_of_rows_are_not_melted(kit: Any) -> None:
    x = [kit.var(name, 1, 2, 4, 8) for name in "qkv"]
    mask = kit.var("mask", 1, 4, 2, 4)
    scores = kit.layer("nn.matmul", x[0], kit.layer("transpose", x[1], axes=(0, 1, 3, 2)))
    mixed = kit.layer("add", kit.layer("reshape", scores, shape=(1, 4, 2, 4)), mask)
    y = weighted(kit, kit.layer("reshape", mixed, shape=(1, 2, 4, 4)), x[2])
    given = kit.module([*x, mask], y)
    after = kit.apply(given, MeltAttention())
    assert not melted(after)
    kit.same(given, after)
