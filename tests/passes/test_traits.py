"""Operators that a user declares are treated by their traits, as clew's own are."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import te
from clew.ir import symbolic
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy, is_native
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops import registry
from clew.ops.registry import Op, Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.flatten_clips import FlattenClips
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.convolution.skip_padding import SkipPadding
from clew.passes.convolution.split_transposed import SplitTransposed
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.simplify.combine_parallel_matmul import CombineParallelMatmul
from clew.passes.simplify.fold_constant import FoldConstant


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a test are registered for that test alone."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def rotation(**options: Any) -> Op:
    """An operator that moves data: elements of the last axis, each one place on."""

    @register_op("user.rotate", **options)
    def rotate(x: te.Tensor) -> te.Tensor:
        """Rotates the last axis."""
        last = x.shape[-1]
        return te.compute(x.shape, lambda *i: x[(*i[:-1], (i[-1] + 1) % last)], "rotate")

    return rotate


def types_of(sample: Sample) -> list[TensorType]:
    return [
        TensorType(a.shape, from_numpy(a.dtype)) if isinstance(a, np.ndarray) else a
        for a in sample.args
    ]


def calls(module: Module, op: str) -> list[Call]:
    nodes = post_order(module.main.body)
    return [n for n in nodes if isinstance(n, Call) and n.op_name == op]


def parallel(kit: Any, after: str) -> Any:
    x = kit.var("x", 2, 8)
    heads = [
        kit.layer(after, kit.layer("nn.dense", x, kit.const(kit.random(6, 8, seed=n))))
        for n in range(2)
    ]
    return kit.module([x], *heads)


def test_layers_are_combined_where_a_user_s_operator_moves_data(kit: Any) -> None:
    rotation()
    before = parallel(kit, "user.rotate")
    after = kit.apply(before, CombineParallelMatmul(), FoldConstant())
    assert kit.op_names(after).count("nn.dense") == 1
    kit.same(before, after)


def test_a_declared_trait_goes_before_the_derived_one(kit: Any) -> None:
    rotation(traits=Traits(moves_data=False))
    before = parallel(kit, "user.rotate")
    assert kit.apply(before, CombineParallelMatmul()) is before


def test_a_splat_stays_one_through_a_user_s_data_movement(kit: Any) -> None:
    rotate = rotation()
    splat = Constant(np.broadcast_to(np.float32(3), (4, 8)))
    (folded,) = kit.apply(kit.module([], rotate(splat)), FoldConstant()).main.body.fields
    assert folded.is_splat
    assert folded.splat_value == 3


def test_sizes_are_known_through_a_user_s_data_movement(kit: Any) -> None:
    rotate = rotation()
    rows = SymDim.symbol("n")
    x = kit.var("x", rows, 5)
    value = known_value(rotate(get_op("shape_of")(x)))
    assert value is not None
    assert list(value) == [5, rows]


@pytest.mark.parametrize("name", ["reshape", "slice", "gather", "where", "concatenate", "split",
                                  "tile", "flip", "broadcast_to", "transpose", "gather_nd",
                                  "gather_elements", "identity", "depth_to_space"])  # fmt: skip
def test_clew_s_data_movement_is_derived(name: str) -> None:
    op = get_op(name)
    computed = 0
    for sample in op.samples:
        if sample.error:
            continue
        attrs = op.bind(sample.attrs)
        types = types_of(sample)
        if op.is_computed(attrs) and all(is_native(t) for t in types):
            moved = op.moved_operands(types, attrs)
            controls = {"where": {0}}.get(name, {1} if name.startswith("gather") else set())
            assert set(moved) == set(range(len(types))) - controls
            computed += 1
    assert computed


@pytest.mark.parametrize("name", ["nn.relu", "add", "nn.max_pool2d", "cumsum", "trilu", "one_hot"])
def test_what_computes_moves_no_data_alone(name: str) -> None:
    op = get_op(name)
    sample = next(s for s in op.samples if not s.error)
    types = types_of(sample)
    moved = op.moved_operands(types, op.bind(sample.attrs))
    assert set(moved) != set(range(len(types)))
    assert 0 not in moved


def activation(body: Any, **options: Any) -> Op:
    """An elementwise operator, `user.activation`."""

    @register_op("user.activation", **options)
    def apply(x: te.Tensor) -> te.Tensor:
        """Elementwise."""
        return te.compute(x.shape, lambda *i: body(x[i]), "activation", layout=x.layout)

    return apply


def filled_channels(kit: Any) -> Any:
    x = kit.var("x", 1, 16, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1)))
    y = kit.layer("user.activation", y)
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(32, 24, 1, 1)))
    return kit.module([x], y)


@pytest.mark.parametrize(
    ("body", "declared", "channels"),
    [
        (lambda v: te.maximum(v, 0.0) * 0.5, None, 32),
        (lambda v: te.call("exp", v), None, 24),
        (lambda v: te.call("exp", v), True, 32),
        (lambda v: v / (v + 1.0), None, 24),
        (lambda v: te.maximum(v, 0.0), False, 24),
    ],
)
def test_filled_blocks_go_on_where_finite_values_stay_finite(
    kit: Any, body: Any, declared: bool | None, channels: int
) -> None:
    activation(body, traits=Traits(keeps_finite=declared))
    manager = kit.PassManager([AlterLayout()], target=kit.lanes())
    after = manager.run(filled_channels(kit))
    (found,) = calls(after, "user.activation")
    assert math.prod(found.tensor.concrete) == channels * 64


def test_rounding_comes_before_a_user_s_operator_that_selects(kit: Any) -> None:
    for declared in (None, True):

        @register_op("user.larger", traits=Traits(selects=declared), overwrite=True)
        def larger(x: te.Tensor) -> te.Tensor:
            """The larger of two columns."""
            shape = (*x.shape[:-1], x.shape[-1] // 2)
            return te.compute(
                shape,
                lambda *i: te.maximum(x[(*i[:-1], i[-1] * 2)], x[(*i[:-1], i[-1] * 2 + 1)]),
                "larger",
            )

        x = kit.var("x", 4, 32)
        y = kit.layer("user.larger", kit.layer("nn.relu", x))
        module = kit.module([x], kit.layer("nn.dense", y, kit.const(kit.random(8, 16))))
        (found,) = calls(kit.apply(module, ConvertPrecision()), "user.larger")
        assert found.tensor.dtype == ("bf16" if declared else "f32")


@pytest.mark.parametrize(
    ("body", "declared", "dtype"),
    [
        (lambda v: te.maximum(v, 0.1 * v), None, "bf16"),
        (lambda v: te.call("exp", v), None, "f32"),
        (lambda v: te.call("tanh", v), True, "bf16"),
        (lambda v: te.maximum(v, 0.0), False, "f32"),
    ],
)
def test_dense_blocks_are_joined_rounded_behind_well_conditioned_operators(
    kit: Any, body: Any, declared: bool | None, dtype: str
) -> None:
    activation(body, traits=Traits(well_conditioned=declared))
    x = kit.var("x", 1, 16, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1)))
    for n in range(2):
        active = kit.layer("user.activation", kit.layer("multiply", y, kit.const(kit.random(1))))
        weight = kit.const(kit.random(16, 16 * (n + 1), 3, 3, seed=n))
        new = kit.layer("nn.conv2d", active, weight, padding=(1, 1, 1, 1))
        y = kit.layer("concatenate", y, new, axis=1)
    end = kit.layer("nn.conv2d", kit.layer("nn.relu", y), kit.const(kit.random(8, 48, 1, 1)))
    after = kit.apply(kit.module([x], end), ConvertPrecision())
    assert calls(after, "concatenate")[0].tensor.dtype == dtype


@pytest.mark.parametrize(
    ("product", "constant", "narrow"),
    [
        ("values", False, True),
        ("weights", True, True),
        ("weights", False, False),
        ("", True, False),
    ],
)
def test_a_user_s_product_is_rounded(kit: Any, product: Any, constant: bool, narrow: bool) -> None:
    @register_op("user.product", traits=Traits(product=product))
    def multiply(x: te.Tensor, w: te.Tensor, *, out_dtype: str = "") -> te.Tensor:
        """`x @ w`."""
        k = te.reduce_axis(x.shape[1], "k")
        return te.compute(
            (x.shape[0], w.shape[1]),
            lambda i, j: te.sum(te.cast("f32", x[i, k]) * te.cast("f32", w[k, j]), [k]),
            "product",
        )

    x = kit.var("x", 4, 8)
    w = kit.const(kit.random(8, 6)) if constant else kit.var("w", 8, 6)
    params = [x] if constant else [x, w]
    before = kit.module(params, kit.layer("user.product", kit.layer("nn.relu", x), w))
    after = kit.apply(before, ConvertPrecision())
    (found,) = calls(after, "user.product")
    assert (found.args[0].tensor.dtype, found.attrs.out_dtype) == (
        ("bf16", "f32") if narrow else ("f32", "")
    )


@pytest.mark.parametrize(
    ("trait", "names"),
    [
        ("keeps_finite", "add subtract multiply maximum minimum clip tanh sigmoid pad cast nn.relu "
         "nn.leaky_relu nn.gelu nn.silu nn.swish nn.hard_sigmoid nn.hard_swish concatenate"),
        ("well_conditioned", "add subtract multiply maximum minimum clip nn.relu"),
        ("selects", "reshape transpose slice concatenate broadcast_to tile flip"),
    ],
)  # fmt: skip
def test_traits_of_clew_s_operators_are_derived(trait: str, names: str) -> None:
    for name in names.split():
        op = get_op(name)
        assert getattr(op.traits, trait) is None
        sample = next(s for s in op.samples if not s.error)
        assert getattr(op, trait)(types_of(sample), op.bind(sample.attrs)), name


def test_a_product_reads_through_a_user_s_view(kit: Any) -> None:
    @register_op("user.every_other")
    def every_other(x: te.Tensor) -> te.Tensor:
        """Every other row."""
        return te.compute((x.shape[0] // 2, x.shape[1]), lambda i, j: x[i * 2, j], "every_other")

    rotation()
    same_as("nn.matmul", "user.matmul", reads_views=True)
    kernels = {}
    for name in ("user.every_other", "user.rotate"):
        x, y = kit.var("x", 8, 16), kit.var("y", 16, 6)
        after = kit.apply(
            kit.module([x, y], kit.layer("user.matmul", kit.layer(name, x), y)), FuseOps()
        )
        nodes = post_order(after.main.body)
        kernels[name] = [str(n.op.attrs["name"]) for n in nodes if isinstance(n, Call)]
    assert kernels["user.every_other"] == ["every_other_matmul"]
    assert kernels["user.rotate"] == ["rotate", "matmul"]


def same_as(name: str, own: str, **options: Any) -> Op:
    """An operator of a user's that does what one of clew's does."""
    theirs = get_op(name)
    made = Op(own, theirs.make_signature, "A user's.", compute=theirs.compute, **options)
    made.layout_rule = theirs.layout_rule
    registry._REGISTRY[own] = made
    return made


@pytest.mark.parametrize("pools", [True, False])
def test_a_user_s_pool_is_computed_on_frames(kit: Any, pools: bool) -> None:
    same_as("nn.max_pool2d", "user.pool", traits=Traits(pools=pools))
    x = kit.var("x", 1, 8, 4, 8, 8)
    y = kit.layer("nn.conv3d", x, kit.const(kit.random(8, 8, 1, 3, 3)), padding=(0, 1, 1, 0, 1, 1))
    y = kit.layer("user.pool", y, kernel=(1, 2, 2), strides=(1, 2, 2), padding=(0,) * 6,
                  dilation=(1, 1, 1), layout="NCDHW")  # fmt: skip
    before = kit.module([x], y)
    after = kit.apply(before, FlattenClips())
    assert calls(after, "user.pool")[0].tensor.rank == (4 if pools else 5)
    kit.same(before, after)


@pytest.mark.parametrize("packs", [True, False])
def test_a_user_s_convolution_gets_its_weight_packed(kit: Any, packs: bool) -> None:
    same_as("nn.conv2d", "user.conv2d", traits=Traits(packs_weight=packs))
    x = kit.var("x", 1, 16, 8, 8)
    before = kit.module([x], kit.layer("user.conv2d", x, kit.const(kit.random(32, 16, 1, 1))))
    after = kit.apply(before, AlterLayout())
    assert calls(after, "user.conv2d")[0].attrs.weight_layout == ("OIHW16i32o" if packs else "OIHW")


@pytest.mark.parametrize("convolves", ["HW", ""])
def test_scales_and_padding_go_into_a_user_s_convolution(kit: Any, convolves: Any) -> None:
    same_as("nn.conv2d", "user.conv2d", traits=Traits(convolves=convolves))
    x, weight = kit.var("x", 1, 4, 6, 6), kit.const(kit.random(8, 4, 3, 3))
    y = kit.layer("user.conv2d", x, weight, padding=(6, 6, 6, 6), dilation=(6, 6))
    before = kit.module([x], kit.layer("multiply", y, kit.const(kit.random(8, 1, 1))))
    after = kit.apply(before, FoldScaleAxis())
    assert bool(calls(after, "multiply")) == (not convolves)
    kit.same(before, after)
    skipped = kit.apply(before, SkipPadding())
    conv = calls(skipped, "user.conv2d")[0]
    assert (conv.args[1].tensor.shape[2:] == (1, 1)) == bool(convolves)
    kit.same(before, skipped)


@pytest.mark.parametrize("convolves", ["HW", ""])
def test_a_user_s_transposed_convolution_is_split(kit: Any, convolves: Any) -> None:
    same_as("nn.conv2d_transpose", "user.up", traits=Traits(convolves_transposed=convolves))
    x, weight = kit.var("x", 1, 4, 6, 6), kit.const(kit.random(4, 8, 2, 2))
    before = kit.module([x], kit.layer("user.up", x, weight, strides=(2, 2)))
    after = kit.apply(before, SplitTransposed())
    assert bool(calls(after, "user.up")) == (not convolves)
    kit.same(before, after)


@pytest.mark.parametrize("known", [True, False])
def test_a_user_s_operator_computes_sizes(kit: Any, known: bool) -> None:
    rule = symbolic.pairwise(lambda a, b: a + b) if known else None
    same_as("add", "user.add", traits=Traits(symbolic=rule))
    x = Var("x", TensorType((SymDim.symbol("n"), 4), "f32"))
    sizes = get_op("shape_of")(x)
    total = known_value(get_op("user.add")(sizes, sizes))
    assert (total is not None) == known
    if total is not None:
        assert list(total) == [2 * SymDim.symbol("n"), 8]


# Words of the grammar of sizes, and rewrites of exactly these operators: what they build depends on
# what each one computes.
_ALLOWED = {
    ("ir/type_reader.py", ("min", "max")),
    ("loop/affine.py", ("min", "max")),
    ("passes/fusion/differing_constants.py", ("add", "subtract", "multiply")),
    ("passes/fusion/melt_attention.py", ("multiply", "divide")),
    ("passes/precision/fold_offsets.py", ("clip", "scale_fixed")),
    ("passes/precision/multiply_codes.py", ("dequantize", "dequantize_offset")),
    ("passes/precision/narrow_integers.py", ("nn.matmul", "nn.dense")),
    ("passes/simplify/split_extremes.py", ("min", "max")),
    ("passes/simplify/stack_appends.py", ("sequence.concat", "sequence.length")),
}


def test_facts_about_operators_are_kept_with_the_operators() -> None:
    root = Path(registry.__file__).parents[1]
    names = {op.name for op in registry.all_ops()}
    found = set()
    for folder in ("ir", "passes", "build", "patterns", "schedules", "loop"):
        for file in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
                    texts = tuple(e.value for e in node.elts if isinstance(e, ast.Constant))
                    if len(texts) == len(node.elts) > 1 and names.issuperset(texts):
                        found.add((file.relative_to(root).as_posix(), texts))
    assert found == _ALLOWED
