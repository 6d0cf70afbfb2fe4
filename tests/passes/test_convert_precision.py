"""Which values ConvertPrecision rounds, which it keeps, and by how much results differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew import te
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.passes.base import PassContext
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.simplify.fold_constant import FoldConstant
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

BLOCK = {"padding": (1, 1, 1, 1)}


def weight(kit: Any, *shape: int, seed: int = 0) -> Any:
    return kit.const(kit.random(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:]))))


def residual(kit: Any) -> Module:
    """Two convolutions, a residual add, pooling, and a classifier."""
    x = kit.var("x", 1, 16, 6, 6)
    first = kit.layer("nn.relu", kit.layer("nn.conv2d", x, weight(kit, 16, 16, 3, 3), **BLOCK))
    second = kit.layer("nn.conv2d", first, weight(kit, 16, 16, 3, 3, seed=1), **BLOCK)
    joined = kit.layer("nn.relu", kit.layer("add", second, first))
    third = kit.layer("nn.conv2d", joined, weight(kit, 24, 16, 1, 1, seed=2))
    pooled = kit.layer("reshape", kit.layer("nn.global_avg_pool2d", third), shape=(1, 24))
    scores = kit.layer("nn.softmax", kit.layer("nn.dense", pooled, weight(kit, 10, 24, seed=3)))
    return kit.module([x], scores)


def calls(module: Module, op: str) -> list[Call]:
    nodes = post_order(module.main.body)
    return [n for n in nodes if isinstance(n, Call) and n.op_name == op]


@pytest.mark.parametrize(("dtype", "worst"), [("bf16", 2e-2), ("f16", 2e-3)])
def test_products_are_narrow_and_all_else_is_f32(kit: Any, dtype: str, worst: float) -> None:
    before = residual(kit)
    after = kit.apply(before, ConvertPrecision(dtype))
    for call in (*calls(after, "nn.conv2d"), *calls(after, "nn.dense")):
        assert [a.tensor.dtype for a in call.args] == [dtype, dtype]
        assert call.tensor.dtype == "f32"
    for op in ("nn.relu", "add", "nn.global_avg_pool2d", "nn.softmax"):
        assert all(c.tensor.dtype == "f32" for c in calls(after, op))
    feed = {"x": kit.random(1, 16, 6, 6, seed=9)}
    (expected,), (found,) = (kit.interpret(m, feed) for m in (before, after))
    assert np.abs(found - expected).max() < worst * np.abs(expected).max()


def test_a_residual_is_stored_rounded_once(kit: Any) -> None:
    after = kit.apply(residual(kit), ConvertPrecision())
    narrow = [c for c in calls(after, "cast") if c.tensor.dtype == "bf16"]
    assert len({c.args[0].id for c in narrow}) == len(narrow)
    (add,) = calls(after, "add")
    (wide,) = [a for a in add.args if isinstance(a, Call) and a.op_name == "cast"]
    assert wide.args[0].tensor.dtype == "bf16"


def test_a_norm_that_a_residual_reads_is_stored_in_both_forms(kit: Any) -> None:
    """Its error would add up over the layers; dense layers take far longer than the store."""
    x = kit.var("x", 16, 32)
    norm = kit.layer("nn.rms_norm", kit.layer("exp", x), kit.const(np.ones(32, np.float32)))
    products = [kit.layer("nn.dense", a, weight(kit, 32, 32)) for a in (norm, x)]
    sums = [kit.layer("add", p, a) for p, a in zip(products, (norm, x), strict=True)]
    after = kit.apply(kit.module([x], kit.layer("add", *sums)), ConvertPrecision("bf16"))
    for product in calls(after, "nn.dense"):
        assert [a.tensor.dtype for a in product.args] == ["bf16", "bf16"]
    assert not [c for c in calls(after, "cast") if c.attrs.dtype == "f32"]


def test_a_residual_is_read_in_the_tail_of_its_product(kit: Any) -> None:
    passes = (ConvertPrecision(), FoldConstant(), FuseOps())
    after = kit.apply(residual(kit), *passes)
    names = [str(c.op.attrs["name"]) for c in post_order(after.main.body)
             if isinstance(c, Call) and "name" in getattr(c.op, "attrs", {})]  # fmt: skip
    assert "conv2d_cast_add_relu_cast" in names


def test_a_window_reads_what_is_stored_rounded(kit: Any) -> None:
    x = kit.var("x", 1, 16, 6, 6)
    first = kit.layer("nn.conv2d", x, weight(kit, 16, 16, 1, 1))
    pooled = kit.layer("nn.avg_pool2d", first, kernel=(3, 3), **BLOCK)
    ends = [kit.layer("nn.conv2d", v, weight(kit, 16, 16, 1, 1, seed=1)) for v in (first, pooled)]
    module = kit.module([x], kit.layer("concatenate", *ends, axis=1))
    after = kit.apply(module, ConvertPrecision(), FoldConstant(), FuseOps())
    names = [str(c.op.attrs["name"]) for c in post_order(after.main.body)
             if isinstance(c, Call) and "name" in getattr(c.op, "attrs", {})]  # fmt: skip
    assert "cast_avg_pool2d_cast" in names


def test_a_gelu_is_as_near_as_its_rounded_result_is(kit: Any) -> None:
    x = kit.var("x", 4, 16)
    hidden = kit.layer("nn.gelu", kit.layer("nn.dense", x, weight(kit, 32, 16)))
    before = kit.module(
        [x], kit.layer("nn.gelu", kit.layer("nn.dense", hidden, weight(kit, 8, 32)))
    )
    after = kit.apply(before, ConvertPrecision())
    assert [c.attrs.accuracy for c in calls(after, "nn.gelu")] == ["bf16", ""]
    after = kit.apply(before, ConvertPrecision("f16"))
    assert [c.attrs.accuracy for c in calls(after, "nn.gelu")] == ["", ""]


def test_rounding_moves_up_through_pooling(kit: Any) -> None:
    x = kit.var("x", 1, 16, 6, 6)
    hidden = kit.layer("nn.relu", x)
    pooled = kit.layer("nn.max_pool2d", hidden, kernel=(2, 2), strides=(2, 2))
    before = kit.module([x], kit.layer("nn.conv2d", pooled, weight(kit, 16, 16, 1, 1)))
    after = kit.apply(before, ConvertPrecision())
    (pool,) = calls(after, "nn.max_pool2d")
    assert pool.tensor.dtype == "bf16"
    assert pool.args[0].op_name == "cast"


def dense_block(kit: Any, between: str, *, shown: bool = False) -> Module:
    """Two layers, each reading all that came before behind a scale and an activation."""
    x = kit.var("x", 1, 16, 6, 6)
    y = kit.layer("nn.conv2d", x, weight(kit, 16, 16, 1, 1))
    for n in range(2):
        channels = 16 * (n + 1)
        scale = kit.const(kit.random(channels, 1, 1, seed=n) + np.float32(2))
        active = kit.layer(between, kit.layer("multiply", y, scale))
        new = kit.layer("nn.conv2d", active, weight(kit, 16, channels, 3, 3, seed=n), **BLOCK)
        y = kit.layer("concatenate", y, new, axis=1)
    end = kit.layer("nn.global_avg_pool2d", kit.layer("nn.relu", y))
    end = kit.layer("nn.dense", kit.layer("reshape", end, shape=(1, 48)), weight(kit, 10, 48))
    return kit.module([x], end, y) if shown else kit.module([x], end)


def test_what_dense_blocks_join_is_stored_rounded(kit: Any) -> None:
    before = dense_block(kit, "nn.relu")
    after = kit.apply(before, ConvertPrecision())
    assert [c.tensor.dtype for c in calls(after, "concatenate")] == ["bf16"] * 2
    assert all(c.tensor.dtype == "f32" for c in calls(after, "multiply"))
    kit.same(before, after, 3e-2)


@pytest.mark.parametrize(("between", "shown"), [("exp", False), ("nn.relu", True)])
def test_what_is_magnified_or_an_output_is_joined_in_f32(
    kit: Any, between: str, *, shown: bool
) -> None:
    after = kit.apply(dense_block(kit, between, shown=shown), ConvertPrecision())
    dtypes = [c.tensor.dtype for c in calls(after, "concatenate")]
    assert dtypes[0] == "f32"


def test_layers_that_are_named_stay(kit: Any) -> None:
    before = residual(kit)
    every = kit.apply(before, ConvertPrecision(keep_f32=("nn.*",)))
    assert every is before
    names = [n for c in calls(before, "nn.dense") for n in c.span.layers]
    after = kit.apply(before, ConvertPrecision(keep_f32=tuple(names)))
    assert [c.args[0].tensor.dtype for c in calls(after, "nn.dense")] == ["f32"]
    assert [c.args[0].tensor.dtype for c in calls(after, "nn.conv2d")] == ["bf16"] * 3


def test_images_and_small_groups_stay(kit: Any) -> None:
    x = kit.var("x", 1, 3, 6, 6)
    y = kit.layer("nn.conv2d", x, weight(kit, 16, 3, 3, 3), dilation=(1, 2))
    y = kit.layer("nn.conv2d", y, weight(kit, 16, 4, 1, 1), groups=4)
    given = kit.module([x], y)
    assert kit.apply(given, ConvertPrecision()) is given


@pytest.mark.parametrize(
    ("channels", "filters", "taps", "narrow"),
    [
        (3, 16, (3, 3), True),
        (3, 64, (7, 7), True),
        (1, 16, (2, 4), True),
        (1, 16, (4, 2), False),  # lines of few numbers
        (1, 16, (3, 3), False),
        (3, 8, (7, 7), False),  # few filters
    ],
)
def test_images_where_a_matrix_unit_sums_over_columns(
    kit: Any, channels: int, filters: int, taps: tuple[int, int], *, narrow: bool
) -> None:
    x = kit.var("x", 1, channels, 15, 14)
    y = kit.layer(
        "nn.conv2d", x, weight(kit, filters, channels, *taps), padding=(2, 1, 1, 0), strides=(2, 1)
    )
    given = kit.module([x], kit.layer("nn.relu", y))
    without = kit.PassManager([ConvertPrecision()], target=target_of("cpu-avx2")).run(given)
    assert without is given
    passes = [ConvertPrecision(), AlterLayout(), FoldConstant()]
    after = kit.PassManager(passes, target=kit.tiles()).run(given)
    (conv,) = calls(after, "nn.conv2d")
    assert (conv.args[0].tensor.dtype == "bf16") is narrow
    if narrow:
        block = 4 if channels == 3 else 2
        assert conv.attrs.data_layout == f"NCHW{block}c"
        assert conv.attrs.weight_layout == f"OHWI{16 if filters == 16 else 32}o2i"
        kit.same(given, after, 2e-2)


def test_weights_are_packed_in_pairs(kit: Any) -> None:
    after = kit.apply(residual(kit), ConvertPrecision(), AlterLayout(), FoldConstant())
    layouts = [c.attrs.weight_layout for c in calls(after, "nn.conv2d")]
    assert layouts == ["OHWI16o2i", "OHWI16o2i", "OHWI32o2i"]  # 24 channels filled up to 32
    assert [c.attrs.weight_layout for c in calls(after, "nn.dense")] == ["NK16n2k"]


def an_op_with_a_rule(name: str, rule: Any) -> Any:
    @clew.register_op(name, overwrite=True)
    def scores(x: te.Tensor, w: te.Tensor, bias: te.Tensor) -> te.Tensor:
        """`x @ w + bias`, summed in f32."""
        k = te.reduce_axis(x.shape[1], "k")

        def element(i: te.Scalar, j: te.Scalar) -> te.Scalar:
            return te.sum(te.cast("f32", x[i, k]) * te.cast("f32", w[k, j]), k)

        total = te.compute((x.shape[0], w.shape[1]), element, "total")
        return te.compute(total.shape, lambda i, j: total[i, j] + bias[j], "scores")

    scores.quantize(rule)
    return scores


def ruled(kit: Any) -> Module:
    """The operator between an activation, which others read, and another one."""
    x = kit.var("x", 6, 16)
    first = kit.layer("nn.relu", x)
    w, bias = weight(kit, 16, 8), kit.const(kit.random(8))
    made = kit.layer("passes.scores", first, w, bias)
    return kit.module([x], kit.layer("tanh", made), kit.layer("exp", first))


@pytest.mark.parametrize("rounded", [(0, 1), (0,), (1,)])
def test_an_operator_may_have_a_rule(kit: Any, rounded: tuple[int, ...]) -> None:
    asked: list[str] = []

    def rule(call: Call, dtype: str) -> Any:
        asked.append(dtype)
        cast = clew.get_op("cast")
        args = [cast(a, dtype=dtype) if n in rounded else a for n, a in enumerate(call.args)]
        return call.with_args(args)

    an_op_with_a_rule("passes.scores", rule)
    module = ruled(kit)
    after = ConvertPrecision("bf16").run(module, PassContext())
    assert asked == ["bf16"]
    (call,) = calls(after, "passes.scores")
    wanted = ["bf16" if n in rounded else "f32" for n in range(3)]
    assert [a.tensor.dtype for a in call.args] == wanted
    assert call.tensor.dtype == "f32"
    (exp,) = calls(after, "exp")  # it reads what is stored rounded
    assert (exp.args[0].op_name == "cast") is (0 in rounded)
    given = {"x": kit.random(6, 16)}
    expected = interpret(module, given)
    compiled = clew.compile(
        module, precision="bf16", diagnostics=clew.Diagnostics(guard=True), cache=False
    )
    for name, found in compiled.run(given).items():
        np.testing.assert_allclose(found, expected[name], rtol=2e-2, atol=2e-2)


def test_a_rule_may_decline_and_must_keep_the_type(kit: Any) -> None:
    an_op_with_a_rule("passes.scores", lambda call, dtype: None)
    module = ruled(kit)
    assert ConvertPrecision("bf16").run(module, PassContext()) is module
    an_op_with_a_rule("passes.scores", lambda call, dtype: clew.get_op("cast")(call, dtype=dtype))
    with pytest.raises(ClewError) as caught:
        ConvertPrecision("bf16").run(ruled(kit), PassContext())
    assert caught.value.code == "T028"


@pytest.mark.parametrize(
    ("sizes", "layout", "narrow"),
    [
        ((2, 3, 40, 17, 8), "BHSD", True),
        ((1, 2, 33, 64, 64), "BSHD", True),
        ((1, 2, 16, 7, 6), "BSHD", True),
        ((1, 2, 15, 64, 8), "BSHD", False),  # few queries
        ((1, 2, 40, 17, 5), "BHSD", False),  # no whole pairs
        ((1, 2, 40, 17, 8), "BHDS", False),  # pairs lie apart
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_multiplies_pairs(
    kit: Any, sizes: tuple[int, ...], layout: str, *, narrow: bool, masked: bool
) -> None:
    batch, heads, queries, keys, width = sizes

    def operand(name: str, rows: int, order: str) -> Any:
        axes = {"B": batch, "H": heads, "S": rows, "D": width}
        return kit.var(name, *(axes[axis] for axis in order))

    order = layout.replace("DS", "SD")
    given = [operand("q", queries, order), operand("k", keys, layout), operand("v", keys, order)]
    if masked:
        given.append(kit.var("mask", 1, 1, queries, keys))
    layouts = {"q_layout": order, "k_layout": layout, "v_layout": order, "layout": order}
    y = kit.layer("nn.relu", kit.layer("nn.attention", *given, **layouts))
    before = kit.module(given, y)
    after = kit.apply(before, ConvertPrecision())
    (call,) = calls(after, "nn.attention")
    assert call.args[1].tensor.dtype == ("bf16" if narrow else "f32")
    assert call.tensor.dtype == "f32"
    if not narrow:
        assert after is before
        return
    rng = np.random.default_rng(sum(sizes))
    inputs = {p.name: rng.standard_normal(p.tensor.concrete).astype(np.float32) for p in given}
    (expected,) = kit.interpret(before, inputs)
    compiled = clew.compile(
        before, precision="bf16", diagnostics=clew.Diagnostics(guard=True), cache=False, threads=2
    )
    found = compiled.run(inputs)["y0"]
    np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())
