from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import clew.ops.convolution.conv
import clew.ops.math.elementwise
import clew.ops.math.reduce
import clew.ops.math.unary  # noqa: F401
from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Call, Constant, Expr, Function, If, Tuple, Var
from clew.ir.module import Module
from clew.ir.structural import structural_hash
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.ops.registry import get_op
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.manager import PassManager


def kernels(module: Module) -> list[Function]:
    return [
        n.op
        for n in post_order(module.main)
        if isinstance(n, Call) and isinstance(n.op, Function) and n.op.is_primitive
    ]


def names(module: Module) -> list[str]:
    return [k.attrs.name for k in kernels(module)]


def test_an_anchor_takes_its_tail_and_the_residual_add(kit: Any) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    conv = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 3, 3)), padding=(1, 1, 1, 1))
    biased = kit.layer("add", conv, kit.const(kit.random(8, 1, 1)))
    y = kit.layer("exp", kit.layer("add", biased, x))
    fused = kit.apply(kit.module([x], y), FuseOps())
    assert names(fused) == ["conv2d_add_add_exp"]
    (kernel,) = kernels(fused)
    assert [p.type.shape for p in kernel.params] == [(1, 8, 6, 6), (8, 8, 3, 3), (8, 1, 1)]


def test_results_of_some_operators_are_stored(kit: Any) -> None:
    x = kit.var("x", 4, 8)
    module = kit.module([x], kit.layer("sqrt", kit.layer("exp", kit.layer("abs", x))))
    assert names(kit.apply(module, FuseOps())) == ["abs_exp_sqrt"]
    stored = FuseOps(stored=frozenset({"exp"}))
    assert names(kit.apply(module, stored)) == ["abs_exp", "sqrt"]


def test_a_tail_reads_a_piece_that_an_index_chooses(kit: Any) -> None:
    steps, iteration = kit.var("steps", 5, 4, 8), kit.var("iteration", dtype="i64")
    state = kit.var("state", 4, 16)

    def fused(piece: Expr) -> list[str]:
        product = kit.layer("nn.dense", state, kit.const(kit.random(8, 16)))
        module = kit.module([steps, columns, iteration, state], kit.layer("add", piece, product))
        return names(kit.apply(module, FuseOps()))

    columns = kit.var("columns", 4, 8, 5)
    assert fused(kit.layer("gather", steps, iteration)) == ["gather_dense_add"]
    # Elements of several places, which vectors would have to gather.
    assert sorted(fused(kit.layer("gather", columns, iteration, axis=2))) == ["dense_add", "gather"]


def test_sizes_that_a_run_tells_are_no_part_of_a_kernel(kit: Any) -> None:
    rows = kit.var("rows", SymDim.symbol("?0"), 4)
    count = kit.layer("gather", kit.layer("shape_of", rows), kit.const(np.array(0)))
    module = kit.module([rows], kit.layer("multiply", count, count))
    fused = kit.apply(module, FuseOps())
    assert names(fused) == ["gather_multiply"]
    (kernel,) = kernels(fused)
    assert [p.type.shape for p in kernel.params] == [(2,)]


def test_what_a_run_shapes_is_no_piece(kit: Any) -> None:
    x, sizes = kit.var("x", 4, 16), kit.var("sizes", 2, dtype="i64")
    shaped = Call(get_op("reshape"), [x, sizes], {"shape": ArgRef(1)}, span=x.span)
    module = kit.module([x, sizes], kit.layer("nn.relu", shaped))
    assert names(kit.apply(module, FuseOps())) == ["relu"]


def test_a_diamond_is_followed_to_where_it_closes(kit: Any) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    conv = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 1, 1)))
    y = kit.layer("multiply", conv, kit.layer("sigmoid", conv))
    assert names(kit.apply(kit.module([x], y), FuseOps())) == ["conv2d_sigmoid_multiply"]


def test_a_value_with_users_in_two_kernels_ends_one(kit: Any) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    conv = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 1, 1)))
    shared = kit.layer("exp", conv)
    left = kit.layer("nn.conv2d", shared, kit.const(kit.random(8, 8, 1, 1)))
    y = kit.layer("add", left, shared)
    assert names(kit.apply(kit.module([x], y), FuseOps())) == ["conv2d_exp", "conv2d_add"]


@pytest.mark.parametrize(("target", "groups", "stored"), [
    ("cortex-m4", 8, []), ("cortex-m4", 1, ["pad"]), ("cpu-avx2", 8, ["pad"]),
])  # fmt: skip
def test_padding_joins_a_depthwise_convolution_on_microcontrollers(
    target: str, groups: int, stored: list[str], kit: Any
) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    padded = kit.layer("pad", x, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=-3.0)
    weight = kit.const(kit.random(8, 8 // groups, 3, 3))
    y = kit.layer("nn.conv2d", padded, weight, groups=groups)
    made = PassManager((FuseOps(),), target=target_of(target)).run(kit.module([x], y))
    assert names(made) == [*stored, "conv2d" if stored else "pad_conv2d"]


def test_two_anchors_never_share_a_kernel(kit: Any) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    left = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 1, 1)))
    right = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 1, 1, seed=1)))
    fused = kit.apply(kit.module([x], kit.layer("add", left, right)), FuseOps())
    assert sorted(names(fused)) == ["conv2d", "conv2d_add"]


def test_producers_join_reductions_and_reductions_take_tails(kit: Any) -> None:
    x = kit.var("x", 4, 16)
    total = kit.layer("sum", kit.layer("exp", x), axes=(1,), keepdims=True)
    y = kit.layer("log", total)
    assert names(kit.apply(kit.module([x], y), FuseOps())) == ["exp_sum_log"]


def test_what_its_user_repeats_is_not_computed_again(kit: Any) -> None:
    x, b = kit.var("x", 4, 16), kit.var("b", 16)
    y = kit.layer("add", kit.layer("exp", x), kit.layer("exp", b))
    manager = kit.PassManager([FuseOps()])
    fused = manager.run(kit.module([x, b], y))
    assert names(fused) == ["exp", "exp_add"]
    assert any("each element it repeats" in r.text for r in manager.stages[-1].remarks)


def test_windows_that_overlap_take_no_producer(kit: Any) -> None:
    x = kit.var("x", 1, 4, 8, 8)
    pooled = kit.layer("nn.max_pool2d", kit.layer("exp", x), kernel=(3, 3), strides=(2, 2))
    manager = kit.PassManager([FuseOps()])
    fused = manager.run(kit.module([x], pooled))
    assert names(fused) == ["exp", "max_pool2d"]
    assert any("windows that overlap" in r.text for r in manager.stages[-1].remarks)
    y = kit.layer("nn.global_avg_pool2d", kit.layer("exp", x))
    assert names(kit.apply(kit.module([x], y), FuseOps())) == ["exp_global_avg_pool2d"]


def test_turns_and_uneven_reads_are_apart(kit: Any) -> None:
    x, i = kit.var("x", 4, 8, 64), kit.var("i", 4, 8, 64, dtype="i64")
    turned = {"axes": (0, 2, 1)}

    def fused(y: Expr) -> list[str]:
        return names(kit.apply(kit.module([x, i], y), FuseOps()))

    gathered = kit.layer("exp", kit.layer("gather_elements", x, i, axis=-1))
    found = fused(kit.layer("transpose", gathered, **turned))
    assert found == ["gather_elements", "exp_transpose"]
    assert fused(kit.layer("transpose", gathered, axes=(1, 0, 2))) == [
        "gather_elements_exp_transpose"
    ]
    image = kit.layer("reshape", kit.layer("transpose", x, **turned), shape=(1, 256, 4, 2))
    wide = kit.layer("resize", image, shape=(1, 256, 8, 6), mode="linear")
    assert fused(wide) == ["transpose", "resize"]
    # Only a part of the turned elements is read.
    assert fused(kit.layer("resize", image, shape=(1, 256, 2, 1))) == ["transpose_resize"]
    doubled = kit.layer("resize", x, shape=(4, 16, 128))
    assert fused(kit.layer("transpose", doubled, **turned)) == ["resize", "transpose"]
    both = kit.layer("add", gathered, kit.layer("resize", kit.layer("transpose", x, axes=(0, 2, 1)),
                                                shape=(4, 8, 64)))  # fmt: skip
    assert sorted(fused(both)) == ["gather_elements_exp_resize_add", "transpose"]
    exact = kit.layer("gather", x, kit.const(np.array([3, 1])), axis=0)
    assert fused(kit.layer("transpose", exact, axes=(1, 0, 2))) == ["gather_transpose"]


def test_rows_of_blocks_are_put_in_order_before_several_passes_over_them(kit: Any) -> None:
    def fused(*steps: tuple[str, dict[str, Any]], channels_last: bool = False) -> list[str]:
        x = kit.var("x", 2, 4, 5, 6, 16)
        value = kit.layer("layout_transform", x, src_layout="NCHW16c", dst_layout="NCHW")
        if channels_last:
            value = kit.layer("transpose", value, axes=(0, 2, 3, 1))
        for name, attrs in steps:
            ones = [kit.const(kit.random(64)) for _ in range(2 * (name == "nn.group_norm"))]
            value = kit.layer(name, value, *ones, **attrs)
        return names(kit.apply(kit.module([x], value), FuseOps()))

    norm = ("nn.group_norm", {"groups": 32})
    assert fused(norm) == ["layout_transform", "group_norm"]
    assert fused(("exp", {}), norm) == ["layout_transform", "exp_group_norm"]
    # In one pass, they are collected once; channels last, they are neighbors within a block.
    assert fused(("sum", {"axes": (1, 2, 3)})) == ["layout_transform_sum"]
    softmax = ("nn.softmax", {"axis": -1})
    assert fused(softmax, channels_last=True) == ["layout_transform_transpose_softmax"]


def test_reshapes_are_views_outside_unless_between(kit: Any) -> None:
    x = kit.var("x", 4, 6)
    inner = kit.layer("transpose", kit.layer("reshape", kit.layer("exp", x), shape=(4, 2, 3)),
                      axes=(1, 0, 2))  # fmt: skip
    y = kit.layer("reshape", inner, shape=(2, 12))
    fused = kit.apply(kit.module([x], y), FuseOps())
    assert names(fused) == ["exp_transpose"]
    assert fused.main.body.fields[0].op_name == "reshape"  # type: ignore[attr-defined]
    alone = kit.layer("reshape", x, shape=(24,))
    given_module = kit.module([x], alone)
    assert kit.apply(given_module, FuseOps()) is given_module


def test_reductions_take_only_tails_of_their_shape(kit: Any) -> None:
    x = kit.var("x", 4, 6)
    total = kit.layer("sum", x, axes=(1,), keepdims=True)
    y = kit.layer("subtract", x, kit.layer("negative", total))
    assert names(kit.apply(kit.module([x], y), FuseOps())) == ["sum_negative", "subtract"]


def test_functions_of_branches_are_fused_alone(kit: Any) -> None:
    c, x = kit.var("c", dtype="bool"), kit.var("x", 4)
    a, b = kit.var("a", 4), kit.var("b", 4)
    shared = kit.layer("exp", kit.const(kit.random(4)))
    then = kit.function([a], kit.layer("add", kit.layer("log", a), shared))
    orelse = kit.function([b], kit.layer("multiply", b, shared))
    y = kit.layer("add", shared, If(c, then, orelse, [x], span=x.span))
    before = kit.module([c, x], y)
    after = kit.apply(before, FuseOps())
    called = [n for n in post_order(after.main, into_functions=True) if isinstance(n, Call)]
    inside = {n.id for k in _primitives(after) for n in post_order(k.body)}
    assert all(isinstance(n.op, Function) or n.id in inside for n in called)


def _primitives(module: Module) -> list[Function]:
    nodes = post_order(module.main, into_functions=True)
    return [n for n in nodes if isinstance(n, Function) and n.is_primitive]


def test_splats_stay_inside_and_tensors_are_arguments(kit: Any) -> None:
    x = kit.var("x", 4, 16)
    y = kit.layer("multiply", x, kit.const(np.float32(2)))
    y = kit.layer("add", y, kit.const(kit.random(16)))
    (kernel,) = kernels(kit.apply(kit.module([x], y), FuseOps()))
    assert len(kernel.params) == 2
    assert sum(isinstance(n, Constant) for n in post_order(kernel)) == 1


def test_mode_none_puts_each_operator_alone(kit: Any) -> None:
    x = kit.var("x", 4, 16)
    y = kit.layer("exp", kit.layer("log", x))
    assert names(kit.apply(kit.module([x], y), FuseOps(mode="none"))) == ["log", "exp"]


def test_budgets_end_a_kernel(kit: Any) -> None:
    y: Expr = kit.var("x", 4, 16)
    inputs = [y]
    for _ in range(10):
        y = kit.layer("exp", y)
    fused = kit.apply(kit.module(inputs, y), FuseOps(max_ops=4))
    assert [len(n.split("_")) for n in names(fused)] == [2, 4, 4]


def test_nothing_to_fuse_leaves_the_same_object(kit: Any) -> None:
    x = kit.var("x", 4, 16)
    given_module = kit.module([x], x)
    assert kit.apply(given_module, FuseOps()) is given_module


@st.composite
def graphs(draw: st.DrawFn) -> Module:
    """Random graphs of elementwise operators, reductions and matrix products on square tensors."""
    inputs = [Var(f"x{n}", TensorType((4, 4), "f32")) for n in range(2)]
    weight = Constant(np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1))
    values: list[Expr] = list(inputs)
    for _ in range(draw(st.integers(1, 25))):
        op = draw(st.sampled_from(["add", "multiply", "exp", "sum", "conv", "row"]))
        a = values[draw(st.integers(0, len(values) - 1))]
        b = values[draw(st.integers(0, len(values) - 1))]
        if op == "conv":
            image = get_op("nn.conv2d")(_image(a), weight)
            values.append(get_op("sum")(image, axes=(0, 3), keepdims=False))
        elif op == "sum":
            values.append(get_op("add")(a, get_op("sum")(b, axes=(1,), keepdims=True)))
        elif op == "row":
            values.append(get_op("add")(a, get_op("sum")(b, axes=(0,), keepdims=False)))
        else:
            built = get_op(op)
            values.append(built(a) if op == "exp" else built(a, b))
    count = draw(st.integers(1, min(4, len(values))))
    body = Tuple(values[-count:])
    return Module({"main": Function(inputs, body, {"outputs": tuple(map(str, range(count)))})})


def _image(x: Expr) -> Expr:
    one = Constant(np.ones((1, 4, 4, 1), np.float32))
    return get_op("multiply")(
        one,
        get_op("sum")(
            get_op("multiply")(Constant(np.ones((1, 4, 4, 4), np.float32)), x),
            axes=(3,),
            keepdims=True,
        ),
    )


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_fusion_makes_no_cycle_and_loses_and_repeats_nothing(module: Module) -> None:
    before = [n.op_name for n in post_order(module.main) if isinstance(n, Call)]
    manager = PassManager([FuseOps()])
    fused = manager.run(module)  # a cycle could not even be built: calls take finished arguments
    after = [n.op_name for k in kernels(fused) for n in post_order(k) if isinstance(n, Call)]
    assert sorted(before) == sorted(after)
    outer = [n for n in post_order(fused.main) if isinstance(n, Call)]
    assert all(isinstance(n.op, Function) for n in outer)


@given(graphs(), st.data())
@settings(max_examples=40, deadline=None)
def test_results_are_cut_and_other_kernels_stay(module: Module, data: st.DataObject) -> None:
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    wanted = data.draw(st.sets(st.sampled_from([c.id for c in calls]), max_size=3))
    before = _kernels_by_operators(FuseOps(), module)
    after = _kernels_by_operators(FuseOps(results=frozenset(wanted)), module)
    assert sorted(sum(before, ())) == sorted(sum(after, ()))
    positions = {c.id: n for n, c in enumerate(calls)}
    marked = {positions[w] for w in wanted}
    for kernel in after:
        assert not marked & set(kernel[:-1]) or _are_reshapes(calls, kernel)
    for kernel in before:
        if not marked & set(kernel):
            assert kernel in after


def _are_reshapes(calls: list[Call], kernel: tuple[int, ...]) -> bool:
    return any(calls[n].op_name == "reshape" for n in kernel)


def _kernels_by_operators(fuse: FuseOps, module: Module) -> list[tuple[int, ...]]:
    """Returns for each kernel the positions of its operators in the graph before."""
    manager = PassManager([fuse])
    fused = manager.run(module)
    calls = [n for n in post_order(module.main) if isinstance(n, Call)]
    positions = {c.id: n for n, c in enumerate(calls)}
    lineage = manager.stages[-1].lineage
    assert lineage is not None
    found = []
    for kernel in kernels(fused):
        inner = [n for n in post_order(kernel) if isinstance(n, Call)]
        origins = [next(o for o in lineage.origins[n.id] if o in positions) for n in inner]
        found.append(tuple(sorted(positions[o] for o in origins)))
    return found


def test_a_value_that_is_wanted_ends_a_kernel(kit: Any) -> None:
    x = kit.var("x", 1, 8, 6, 6)
    conv = kit.layer("nn.conv2d", x, kit.const(kit.random(8, 8, 1, 1)))
    gate = kit.layer("sigmoid", conv)
    y = kit.layer("exp", kit.layer("multiply", conv, gate))
    module = kit.module([x], y)
    assert names(kit.apply(module, FuseOps())) == ["conv2d_sigmoid_multiply_exp"]
    cut = kit.apply(module, FuseOps(results=frozenset([gate.id])))
    assert names(cut) == ["conv2d", "sigmoid", "multiply_exp"]
    end = kit.apply(module, FuseOps(results=frozenset([y.id])))
    assert names(end) == ["conv2d_sigmoid_multiply_exp"]


def _blocks(kit: Any, size: int, given: int, between: int, result: int, stride: int = 1) -> Module:
    """An inverted residual block on images in blocks of 16 channels."""
    layout = {"data_layout": "NCHW16c", "out_layout": "NCHW16c"}
    x = Var("x", TensorType((1, given, size, size, 16), "f32", "NCHW16c"))
    dense = {**layout, "weight_layout": "OIHW16i16o"}
    expanded = kit.layer(
        "nn.conv2d", x, kit.const(kit.random(between, given, 1, 1, 16, 16)), **dense
    )
    windows = kit.layer(
        "nn.conv2d", kit.layer("nn.relu", expanded), kit.const(kit.random(between, 1, 3, 3, 16)),
        weight_layout="OIHW16o", groups=16 * between, channels=16 * between,
        padding=(1, 1, 1, 1), strides=(stride, stride), **layout,
    )  # fmt: skip
    weight = kit.const(kit.random(result, between, 1, 1, 16, 16))
    projected = kit.layer("nn.conv2d", kit.layer("nn.relu", windows), weight, **dense)
    return kit.module([x], kit.layer("exp", projected))


def _fused(kit: Any, module: Module, **options: Any) -> list[str]:
    manager = PassManager([FuseOps(**options)], target=kit.lanes())
    return names(manager.run(module))


def test_windows_take_what_follows_and_what_leaves_the_cache_before(kit: Any) -> None:
    large, small = _blocks(kit, 96, 1, 4, 2), _blocks(kit, 24, 1, 4, 2)
    tail = "conv2d_relu_conv2d_exp"
    assert _fused(kit, large) == [f"conv2d_relu_{tail}"]
    assert _fused(kit, small) == ["conv2d_relu", tail]
    assert _fused(kit, large, melt=False) == ["conv2d_relu", "conv2d_relu", "conv2d_exp"]


def test_windows_are_not_melted_where_weights_or_overlap_cost_more(kit: Any) -> None:
    apart = ["conv2d_relu", "conv2d_relu", "conv2d_exp"]
    assert _fused(kit, _blocks(kit, 14, 1, 24, 24)) == apart  # weights pass by with each band
    assert _fused(kit, _blocks(kit, 13, 1, 4, 2)) == apart  # two bands of 91 pixels
    wide = _fused(kit, _blocks(kit, 48, 32, 16, 1))  # each line again from 512 channels
    assert wide == ["conv2d_relu", "conv2d_relu_conv2d_exp"]


@pytest.mark.parametrize("same", [False, True])
def test_numbers_in_which_layers_differ_are_arguments(kit: Any, same: bool) -> None:
    x, weight = kit.var("x", 1, 8, 6, 6), kit.const(kit.random(8, 8, 1, 1))
    numbers, y = kit.random(4, 1), x
    for scale, shift in (numbers[:2], numbers[:2] if same else numbers[2:]):
        y = kit.layer("exp", kit.layer("nn.conv2d", y, weight))
        y = kit.layer("add", kit.layer("multiply", y, kit.const(scale)), kit.const(shift))
    module = kit.module([x], y)
    fused = kit.apply(module, FuseOps())
    first, second = kernels(fused)
    assert structural_hash(first) == structural_hash(second)
    assert [len(k.params) for k in (first, second)] == ([2, 2] if same else [4, 4])
    data = {"x": kit.random(1, 8, 6, 6)}
    for got, wanted in zip(kit.interpret(fused, data), kit.interpret(module, data), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_numbers_of_different_layers_stay_inside(kit: Any) -> None:
    x = kit.var("x", 4, 8)
    scaled = kit.layer("multiply", kit.layer("exp", x), kit.const(np.float32([2])))
    shifted = kit.layer("multiply", kit.layer("sin", x), kit.const(np.float32([3])))
    powers = [kit.layer("power", x, kit.const(np.float32([number]))) for number in (2, 3)]
    for kernel in kernels(kit.apply(kit.module([x], scaled, shifted, *powers), FuseOps())):
        assert len(kernel.params) == 1
