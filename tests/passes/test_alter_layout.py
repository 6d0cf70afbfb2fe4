from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.dims import SymDim
from clew.ir.expr import Call, If
from clew.ir.visit import calls
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.simplify.fold_constant import FoldConstant


def altered(kit: Any, module: Any) -> Any:
    after = kit.apply(module, AlterLayout(), FoldConstant())
    kit.same(module, after)
    return after


def one(module: Any, name: str) -> Call:
    (found,) = [c for c in calls(module.main) if c.op_name == name]
    return found


@pytest.mark.parametrize(
    ("inner", "outer", "data", "weight", "result"),
    [
        (3, 32, "NCHW", "OIHW3i32o", "NCHW16c"),
        (16, 64, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (32, 48, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (32, 80, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (24, 96, "NCHW8c", "OIHW8i32o", "NCHW16c"),
        (96, 24, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (12, 20, "NCHW4c", "OIHW4i32o", "NCHW16c"),
        (16, 1000, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (32, 8, "NCHW16c", "OIHW16i8o", "NCHW8c"),
        (16, 10, "NCHW16c", "OIHW16i16o", "NCHW16c"),
        (16, 19, "NCHW16c", "OIHW16i32o", "NCHW16c"),
        (16, 3, "NCHW16c", "OIHW16i4o", "NCHW4c"),
        (16, 1, "NCHW16c", "OIHW16i4o", "NCHW4c"),
    ],
)
def test_blocks_and_tiles_of_a_convolution(
    kit: Any, inner: int, outer: int, data: str, weight: str, result: str
) -> None:
    x = kit.var("x", 1, inner, 6, 5)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(outer, inner, 3, 3)), padding=(1, 0, 1, 2))
    conv = one(altered(kit, kit.module([x], y)), "nn.conv2d")
    assert conv.attrs.data_layout == data
    assert conv.attrs.weight_layout == weight
    assert (conv.type.layout or "NCHW") == result
    assert conv.attrs.padding == (0, 0, 0, 0)


def test_depthwise_and_grouped_convolutions(kit: Any) -> None:
    x = kit.var("x", 1, 32, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(32, 1, 3, 3)), groups=32)
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(64, 16, 1, 1)), groups=2)
    after = altered(kit, kit.module([x], y))
    found = [c.attrs.weight_layout for c in calls(after.main) if c.op_name == "nn.conv2d"]
    assert found == ["OIHW16o", "OIHW16i16o"]


def test_a_depthwise_convolution_keeps_its_padding(kit: Any) -> None:
    x = kit.var("x", 1, 32, 6, 6)
    weight = kit.const(kit.random(32, 1, 3, 3))
    y = kit.layer("nn.conv2d", x, weight, groups=32, padding=(1, 0, 1, 2))
    after = altered(kit, kit.module([x], y))
    assert one(after, "nn.conv2d").attrs.padding == (1, 0, 1, 2)
    assert "pad" not in kit.op_names(after)


def test_small_groups_and_what_follows_them_stay_plain(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1)))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(40, 6, 1, 1)), groups=4)
    y = kit.layer("nn.relu", kit.layer("add", y, kit.const(kit.random(40, 1, 1))))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(40, 1, 3, 3)), groups=40)
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(16, 40, 1, 1)))
    after = altered(kit, kit.module([x], y))
    found = [c.attrs.data_layout for c in calls(after.main) if c.op_name == "nn.conv2d"]
    assert found == ["NCHW16c", "NCHW", "NCHW", "NCHW8c"]
    assert kit.op_names(after).count("layout_transform") == 4


@pytest.mark.parametrize(
    ("inner", "outer", "data", "weight"),
    [
        (3, 16, "NCHW", "OIHW3i16o"),
        (3, 12, "NCHW", "OIHW3i4o"),
        (4, 16, "NCHW", "OIHW4i16o"),
        (8, 16, "NCHW8c", "OIHW8i8o"),
        (4, 3, "NCHW", "OIHW"),
    ],
)
def test_groups_of_few_channels_read_a_plain_image(
    kit: Any, inner: int, outer: int, data: str, weight: str
) -> None:
    x = kit.var("x", 1, 2 * inner, 6, 6)
    filters = kit.const(kit.random(2 * outer, inner, 3, 3))
    y = kit.layer("nn.conv2d", x, filters, groups=2, padding=(1, 1, 1, 1))
    conv = one(altered(kit, kit.module([x], y)), "nn.conv2d")
    assert (conv.attrs.data_layout, conv.attrs.weight_layout) == (data, weight)


def test_an_image_with_channels_last_goes_to_blocks_at_once(kit: Any) -> None:
    x = kit.var("x", 1, 6, 6, 32)
    image = kit.layer("transpose", x, axes=(0, 3, 1, 2))
    y = kit.layer("nn.conv2d", image, kit.const(kit.random(32, 1, 3, 3)), groups=32,
                  padding=(1, 1, 1, 1))  # fmt: skip
    after = altered(kit, kit.module([x], kit.layer("add", y, image)))
    assert "transpose" not in kit.op_names(after)
    assert one(after, "add").type.layout == "NCHW16c"
    plain = kit.module([x], kit.layer("nn.relu", image))
    assert kit.apply(plain, AlterLayout()) is plain


def test_channels_that_fill_a_block_up_go_on_with_what_takes_zeros(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1)))
    y = kit.layer("nn.relu", kit.layer("add", y, kit.const(kit.random(24, 1, 1))))
    y = kit.layer("nn.max_pool2d", y, kernel=(2, 2), strides=(2, 2))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(24, 1, 3, 3)), groups=24)
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(32, 24, 1, 1)))
    after = altered(kit, kit.module([x], y))
    found = [c.attrs.weight_layout for c in calls(after.main) if c.op_name == "nn.conv2d"]
    assert found == ["OIHW16i32o", "OIHW16o", "OIHW16i32o"]
    assert kit.op_names(after).count("layout_transform") == 2


def test_as_many_images_as_a_run_has_lose_what_filled_blocks(kit: Any) -> None:
    x = kit.var("x", SymDim.symbol("n"), 16, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(68, 16, 1, 1)))
    after = altered(kit, kit.module([x], y))
    assert one(after, "nn.conv2d").type.layout
    assert after.main.body.type.fields[0].shape[1:] == (68, 6, 6)


def test_channels_that_fill_a_block_up_end_where_zeros_do_harm(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1)))
    y = kit.layer("log", kit.layer("nn.relu", y))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(32, 24, 1, 1)))
    after = altered(kit, kit.module([x], y))
    assert one(after, "log").tensor.shape == (1, 24, 8, 8)
    pooled = kit.layer("nn.global_avg_pool2d", kit.layer(
        "nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1))))  # fmt: skip
    after = altered(kit, kit.module([x], kit.layer("reshape", pooled, shape=(1, 24))))
    assert one(after, "nn.global_avg_pool2d").tensor.shape == (1, 2, 1, 1, 16)


def test_what_is_filled_up_and_what_is_not_are_concatenated(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    parts = [kit.layer("nn.conv2d", x, kit.const(kit.random(n, 16, 1, 1))) for n in (24, 32)]
    after = altered(kit, kit.module([x], kit.layer("concatenate", *parts, axis=1)))
    assert one(after, "concatenate").type.layout == "NCHW8c"


@pytest.mark.parametrize(("channels", "layout"), [(32, "NCHW16c"), (24, "")])
def test_a_norm_over_channels_follows_blocks_that_channels_fill(
    kit: Any, channels: int, layout: str
) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(channels, 16, 1, 1)))
    y = kit.layer("add", y, kit.const(np.float32(50)))  # what fills a block up, too
    y = kit.layer("nn.lrn", y, size=5, alpha=1.0)
    before = kit.module([x], kit.layer("nn.conv2d", y, kit.const(kit.random(16, channels, 1, 1))))
    after = altered(kit, before)
    assert one(after, "nn.lrn").type.layout == layout
    feed = {"x": kit.random(1, 16, 8, 8, seed=5)}
    (expected,), (found,) = (kit.interpret(m, feed) for m in (before, after))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_images_of_two_precisions_have_one_block(kit: Any) -> None:
    x = kit.var("x", 1, 3, 8, 8)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(64, 3, 3, 3)), padding=(1, 1, 1, 1))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(24, 64, 1, 1, seed=1)))
    y = kit.layer("nn.conv2d", y, kit.const(kit.random(64, 24, 1, 1, seed=2)))
    after = kit.apply(kit.module([x], y), ConvertPrecision(), AlterLayout(), FoldConstant())
    blocks = {c.type.layout for c in calls(after.main) if c.op_name == "nn.conv2d"}
    assert blocks == {"NCHW16c"}
    assert kit.op_names(after).count("layout_transform") == 1  # the result's


@pytest.mark.parametrize(
    ("inner", "outer", "kernel", "stride", "data"),
    [
        (26, 26, 3, 1, "NCHW16c"),
        (26, 26, 3, 2, "NCHW16c"),
        (52, 52, 3, 1, "NCHW16c"),
        (52, 52, 3, 2, "NCHW4c"),
        (24, 40, 3, 1, "NCHW16c"),
        (26, 26, 1, 1, "NCHW"),
        (18, 18, 3, 1, "NCHW"),
    ],
)
def test_an_image_whose_channels_fill_no_block_is_padded_for_windows(
    kit: Any, inner: int, outer: int, kernel: int, stride: int, data: str
) -> None:
    x = kit.var("x", 1, inner, 24, 24)
    weight = kit.const(kit.random(outer, inner, kernel, kernel))
    y = kit.layer("nn.conv2d", x, weight, strides=(stride, stride))
    assert one(altered(kit, kit.module([x], y)), "nn.conv2d").attrs.data_layout == data


def test_an_image_of_free_size_is_not_padded_for_winograd(kit: Any) -> None:
    x = kit.var("x", 1, 52, SymDim.symbol("h"), 24)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(52, 52, 3, 3)))
    after = altered(kit, kit.module([x], y))
    assert one(after, "nn.conv2d").attrs.data_layout == "NCHW4c"


def test_a_channel_count_without_a_block_stays_plain(kit: Any) -> None:
    x = kit.var("x", 1, 7, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(5, 7, 3, 3)))
    given = kit.module([x], y)
    assert kit.apply(given, AlterLayout()) is given


def test_a_network_is_converted_at_its_ends_only(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    y = x
    for n in range(3):
        y = kit.layer("nn.conv2d", y, kit.const(kit.random(16, 16, 3, 3, seed=n)),
                      padding=(1, 1, 1, 1))  # fmt: skip
        y = kit.layer("nn.relu", kit.layer("add", y, kit.const(kit.random(16, 1, 1))))
    after = altered(kit, kit.module([x], y))
    assert kit.op_names(after).count("layout_transform") == 2


def test_what_meets_is_converted_once(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    convs = [
        kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 3, 3, seed=n)),
                  padding=(1, 1, 1, 1))
        for n in range(3)
    ]  # fmt: skip
    total = kit.layer("add", kit.layer("add", convs[0], convs[1]), convs[2])
    after = altered(kit, kit.module([x], total, total))
    assert kit.op_names(after).count("layout_transform") == 2
    assert kit.op_names(after).count("pad") == 1


@pytest.mark.parametrize("outer", [4, 20, 64])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_an_image_of_one_channel_broadcasts(kit: Any, outer: int, is_blocked: bool) -> None:
    x = kit.var("x", 2, 16, 5, 6)
    image = kit.var("image", 2, outer, 5, 6)
    gate = kit.layer("sigmoid", kit.layer("nn.conv2d", x, kit.const(kit.random(1, 16, 1, 1))))
    others = image
    if is_blocked:
        others = kit.layer("nn.conv2d", x, kit.const(kit.random(outer, 16, 1, 1)))
    y = kit.layer("subtract", gate, kit.layer("multiply", others, gate))
    altered(kit, kit.module([x, image], y))


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (16, 1, 1), (1, 16, 1, 1), (6, 6), (1, 1, 6, 6), (2, 16, 6, 6), (2, 1, 1, 1)],
)
def test_broadcast_operands_follow(kit: Any, shape: tuple[int, ...]) -> None:
    x = kit.var("x", 2, 16, 6, 6)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1)))
    for operand in (kit.const(kit.random(*shape) if shape else np.float32(2.5)), None):
        inputs = [x]
        if operand is None:
            operand = kit.var("c", *shape)
            inputs.append(operand)
        after = altered(kit, kit.module(inputs, kit.layer("multiply", operand, y)))
        assert one(after, "multiply").type.layout == "NCHW16c"


def test_pools_and_concatenations_follow(kit: Any) -> None:
    x = kit.var("x", 1, 16, 8, 8)
    a = kit.layer("nn.conv2d", x, kit.const(kit.random(32, 16, 1, 1)))
    b = kit.layer("nn.conv2d", x, kit.const(kit.random(24, 16, 1, 1)))
    y = kit.layer("concatenate", a, b, axis=1)
    y = kit.layer("nn.max_pool2d", y, kernel=(2, 2), strides=(2, 2))
    y = kit.layer("nn.global_avg_pool2d", y)
    after = altered(kit, kit.module([x], y))
    assert one(after, "concatenate").type.layout == "NCHW8c"
    assert one(after, "nn.global_avg_pool2d").type.layout == "NCHW8c"


@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_read_with_channels_as_neighbors(kit: Any, samples: int, mode: str) -> None:
    x, rois = kit.var("x", 1, 16, 8, 8), kit.var("rois", 4, 4)
    image = kit.layer("nn.conv2d", x, kit.const(kit.random(32, 16, 1, 1)))
    images, attrs = kit.const(np.zeros(4, np.int64)), {"out": (2, 2), "samples": samples}
    y = kit.layer("nn.roi_align", image, rois, images, mode=mode, **attrs)
    after = altered(kit, kit.module([x, rois], y))
    assert one(after, "nn.roi_align").attrs.layout == "NCHW16c"
    # Two calls on a plain image share one transpose.
    pair = [
        kit.layer("nn.roi_align", x, rois, images, mode=mode, scale=scale, **attrs)
        for scale in (1.0, 2.0)
    ]
    after = altered(kit, kit.module([x, rois], kit.layer("add", *pair)))
    found = [c for c in calls(after.main.body) if c.op_name == "nn.roi_align"]
    assert [c.attrs.layout for c in found] == ["NHWC", "NHWC"]
    assert found[0].args[0] is found[1].args[0]


def test_few_regions_are_read_from_a_plain_image(kit: Any) -> None:
    x, rois, images = kit.var("x", 1, 16, 9, 8), kit.var("rois", 1, 4), kit.const(np.zeros(1, "i8"))
    y = kit.layer("nn.roi_align", x, rois, images, out=(2, 2), samples=2)  # 64 of 72 positions
    assert one(altered(kit, kit.module([x, rois], y)), "nn.roi_align").attrs.layout == "NCHW"


@pytest.mark.parametrize(
    ("channels", "points", "layout"), [(16, 20, "NHWC"), (16, 10, "NCHW"), (4, 20, "NCHW")]
)
def test_sampled_channels_are_neighbors_if_they_fill_vectors(
    kit: Any, channels: int, points: int, layout: str
) -> None:
    x, grid = kit.var("x", 1, channels, 9, 8), kit.var("grid", 1, points, 1, 2)
    after = altered(kit, kit.module([x, grid], kit.layer("grid_sample", x, grid)))
    assert one(after, "grid_sample").attrs.layout == layout


def test_a_sampled_image_keeps_its_blocks(kit: Any) -> None:
    x, grid = kit.var("x", 1, 16, 5, 4), kit.var("grid", 1, 3, 2, 2)
    image = kit.layer("nn.conv2d", x, kit.const(kit.random(32, 16, 1, 1)))
    after = altered(kit, kit.module([x, grid], kit.layer("grid_sample", image, grid)))
    assert one(after, "grid_sample").attrs.layout == "NCHW16c"


@pytest.mark.parametrize(("rows", "transposed"), [(1, "row"), (2, "matrix")])
def test_one_row_times_a_transposed_matrix_reads_the_matrix_in_place(
    kit: Any, rows: int, transposed: str
) -> None:
    a, b = kit.var("a", 2, rows, 8), kit.var("b", 2, 9, 8)
    y = kit.layer("nn.matmul", a, kit.layer("transpose", b, axes=(0, 2, 1)))
    product = one(altered(kit, kit.module([a, b], y)), "nn.matmul")
    left, right = product.args
    assert (left.tensor.shape == (2, 9, 8)) == (transposed == "row")
    assert right.op_name == "transpose"


@pytest.mark.parametrize(
    ("columns", "depth", "few", "layout"),
    [(SymDim.symbol("k"), 8, 1, "KN"), (70, 8, 1, "NK32n"), (70, 768, 64, "NK32n")],
)
def test_a_matrix_of_the_run_is_packed_for_many_rows(
    kit: Any, columns: Any, depth: int, few: int, layout: str
) -> None:
    x, weight = kit.var("x", SymDim.symbol("n"), depth), kit.var("w", columns, depth)
    dense = kit.layer("nn.dense", x, weight, weight_layout="NK")
    attrs = one(altered(kit, kit.module([x, weight], dense)), "nn.matmul_by_rows").attrs
    assert (attrs.least_rows, attrs.packed_layout) == (few + 1, layout)


def test_matrices_of_narrow_floats_are_read_by_columns(kit: Any) -> None:
    n, k = SymDim.symbol("n"), SymDim.symbol("k")

    def dense(rows: Any) -> Any:
        x, weight = kit.var("x", rows, 8, dtype="f16"), kit.var("w", k, 8, dtype="f16")
        layer = kit.layer("nn.dense", x, weight, weight_layout="NK")
        return one(kit.apply(kit.module([x, weight], layer), AlterLayout()), "nn.dense")

    assert dense(n).attrs.weight_layout == "KN"
    assert dense(n).args[1].op_name == "transpose"
    assert dense(1).attrs.weight_layout == "NK"


def test_operators_that_need_plain_images_get_them(kit: Any) -> None:
    x = kit.var("x", 1, 16, 4, 4)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1)))
    y = kit.layer("transpose", kit.layer("nn.relu", y), axes=(0, 2, 3, 1))
    after = altered(kit, kit.module([x], kit.layer("nn.softmax", y, axis=3)))
    assert one(after, "transpose").args[0].type.layout == ""


@pytest.mark.parametrize(
    ("layout", "units", "packed"),
    [("NK", 64, "NK32n"), ("KN", 40, "NK32n"), ("NK", 12, "NK16n"), ("NK", 2, "NK")],
)
def test_dense_weights_are_packed(kit: Any, layout: str, units: int, packed: str) -> None:
    x = kit.var("x", 3, 20)
    shape = (units, 20) if layout == "NK" else (20, units)
    y = kit.layer("nn.dense", x, kit.const(kit.random(*shape)), weight_layout=layout)
    assert one(altered(kit, kit.module([x], y)), "nn.dense").attrs.weight_layout == packed


def test_branches_return_plain_values(kit: Any) -> None:
    c, x = kit.var("c", dtype="bool"), kit.var("x", 1, 16, 4, 4)
    a, b = kit.var("a", 1, 16, 4, 4), kit.var("b", 1, 16, 4, 4)
    then = kit.function([a], kit.layer("nn.conv2d", a, kit.const(kit.random(16, 16, 1, 1))))
    orelse = kit.function([b], kit.layer("nn.relu", b))
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1)))
    after = altered(kit, kit.module([c, x], If(c, then, orelse, [y], span=y.span)))
    (branch,) = after.main.body.fields
    assert branch.type.layout == ""


def test_one_pixel_is_plain_by_its_shape_alone(kit: Any) -> None:
    x = kit.var("x", 2, 16, 4, 4)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(32, 16, 1, 1)))
    y = kit.layer("reshape", kit.layer("nn.global_avg_pool2d", y), shape=(2, 32))
    after = altered(kit, kit.module([x], y))
    assert kit.op_names(after).count("layout_transform") == 1


def test_without_a_target_nothing_changes(kit: Any) -> None:
    x = kit.var("x", 1, 16, 4, 4)
    given = kit.module([x], kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1))))
    assert kit.PassManager([AlterLayout()]).run(given) is given


def test_each_conversion_says_why(kit: Any) -> None:
    x = kit.var("x", 1, 16, 4, 4)
    y = kit.layer("nn.conv2d", x, kit.const(kit.random(16, 16, 1, 1)))
    manager = kit.PassManager([AlterLayout()], target=kit.lanes())
    manager.run(kit.module([x], y))
    texts = [r.text for r in manager.stages[-1].remarks]
    assert texts == ["NCHW -> NCHW16c: required by nn.conv2d", "NCHW16c -> NCHW: required by Tuple"]
