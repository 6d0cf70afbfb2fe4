from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.visit import calls
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.select_conv_algorithm import SelectConvAlgorithm
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.simplify.dead_code import DeadCode
from clew.passes.simplify.fold_constant import FoldConstant
from clew.runtime.guard import GuardSide


def network(
    kit: Any, inner: int, outer: int, size: tuple[int, int], batch: Dim = 1, **attrs: Any
) -> Module:
    x = kit.var("x", batch, inner, *size)
    weight = kit.random(outer, inner // attrs.get("groups", 1), 3, 3) * np.float32(0.1)
    y = kit.layer("nn.conv2d", x, kit.const(weight), **attrs)
    return kit.module([x], kit.layer("nn.relu", y))


def transformed(kit: Any, module: Module, winograd: SelectConvAlgorithm | None = None) -> Module:
    passes = AlterLayout(), winograd or SelectConvAlgorithm(), FoldConstant(), DeadCode()
    after = kit.apply(module, *passes)
    kit.same(module, after)
    return after  # type: ignore[no-any-return]


def only(module: Module) -> Call:
    (found,) = [c for c in calls(module.main) if "conv2d" in c.op_name]
    return found


@pytest.mark.parametrize("size", [(28, 28), (27, 30)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 2, 1)])
def test_padding_is_part_of_it(kit: Any, size: Any, padding: tuple[int, ...]) -> None:
    after = transformed(kit, network(kit, 32, 32, size, padding=padding))
    conv = only(after)
    assert conv.op_name == "nn.conv2d_winograd"
    assert conv.attrs.padding == padding
    assert "pad" not in kit.op_names(after)


def test_as_many_images_as_a_run_has(kit: Any) -> None:
    after = transformed(kit, network(kit, 64, 64, (14, 14), batch=SymDim.symbol("n")))
    assert only(after).op_name == "nn.conv2d_by_size"


@pytest.mark.parametrize(
    ("dilation", "padding"),
    [((2, 2), (2, 2, 2, 2)), ((2, 3), (4, 1, 0, 5)), ((1, 4), (1, 4, 1, 6))],
)
def test_dilated_windows_on_free_sizes(
    kit: Any, dilation: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    size = SymDim.symbol("h"), SymDim.symbol("w")
    given = network(kit, 64, 64, size, dilation=dilation, padding=padding)
    after = transformed(kit, given)
    found = only(after)
    assert (found.op_name, found.attrs.tiles) == ("nn.conv2d_by_size", (3,))
    assert {"space_to_batch", "batch_to_space"} <= set(kit.op_names(after))
    assert "pad" not in kit.op_names(after)


@pytest.mark.parametrize(("channels", "batch", "tiles"), [(32, 1, (3,)), (256, "n", (3, 2))])
def test_free_sizes_have_the_tiles_that_gain_much(
    kit: Any, channels: int, batch: Any, tiles: tuple[int, ...]
) -> None:
    size = SymDim.symbol("h"), SymDim.symbol("w")
    images = SymDim.symbol(batch) if isinstance(batch, str) else batch
    module = network(kit, channels, channels, size, batch=images, padding=(1, 1, 1, 1))
    found = only(kit.apply(module, AlterLayout(), SelectConvAlgorithm()))
    assert (found.op_name, found.attrs.tiles) == ("nn.conv2d_by_size", tiles)


@pytest.mark.parametrize(
    ("size", "dilation", "padding"),
    [
        ((28, 28), (2, 2), (2, 2, 2, 2)),
        ((27, 31), (2, 3), (4, 0, 1, 3)),
        ((40, 29), (4, 1), (0,) * 4),
    ],
)
def test_a_dilated_window_sees_every_so_manyth_pixel(
    kit: Any, size: Any, dilation: tuple[int, ...], padding: tuple[int, ...]
) -> None:
    given = network(kit, 64, 64, size, dilation=dilation, padding=padding)
    after = transformed(kit, given)
    names = kit.op_names(after)
    assert only(after).op_name == "nn.conv2d_winograd"
    assert {"space_to_batch", "batch_to_space"} < set(names)
    assert "pad" not in names
    x = kit.random(1, 64, *size, seed=7)
    compiled = clew.compile(given, threads=1, diagnostics=clew.Diagnostics(guard=True))
    (found,) = compiled.run({"x": x}).values()
    (expected,) = kit.interpret(given, {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert compiled.trace.verify({"x": x}).ok


@pytest.mark.parametrize(
    ("shape", "depth", "attrs"),
    [
        ((1, 64, 3, 15, 14), 3, {"padding": (1, 1, 1, 1, 1, 1)}),
        ((2, 64, 4, 9, 17), 3, {"padding": (0, 1, 0, 2, 0, 1), "strides": (2, 1, 1)}),
        ((2, 64, 5, 9, 9), 2, {"padding": (1, 0, 0, 0, 0, 0), "dilation": (3, 1, 1)}),
        ((1, 64, 4, 14, 14), 1, {"padding": (0, 1, 1, 0, 1, 1), "strides": (2, 1, 1)}),
    ],
    ids=str,
)
def test_clips(kit: Any, shape: Any, depth: int, attrs: dict[str, Any]) -> None:
    x = kit.var("x", *shape)
    weight = kit.random(64, 64, depth, 3, 3) * np.float32(0.1)
    y = kit.layer("nn.conv3d", x, kit.const(weight), **attrs)
    given = kit.module([x], kit.layer("nn.relu", y))
    data = kit.random(*shape, seed=7)
    compiled = clew.compile(
        given, threads=1, diagnostics=clew.Diagnostics(guard=list(GuardSide)[depth % 2])
    )
    (kernel,) = [k for k in compiled.kernels if "nn.relu" in k.ops]
    assert kernel.ops[0] == "nn.conv2d_winograd"
    (found,) = compiled.run({"x": data}).values()
    (expected,) = kit.interpret(given, {"x": data})
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert compiled.trace.verify({"x": data}).ok


@pytest.mark.parametrize("tiles", [(2,), (3,), (4,)])
def test_the_tiles_that_may_be_chosen(kit: Any, tiles: tuple[int, ...]) -> None:
    options = SelectConvAlgorithm(tiles=tiles, max_error=4.0)
    after = transformed(kit, network(kit, 32, 48, (28, 28)), options)
    conv = only(after)
    assert conv.attrs.tile == tiles[0]
    assert conv.args[1].tensor.shape == ((tiles[0] + 2) ** 2 * 3, 32, 16)


def test_tiles_beyond_the_error_budget_are_not_chosen(kit: Any) -> None:
    given = network(kit, 64, 64, (28, 28))
    found = [
        only(transformed(kit, given, SelectConvAlgorithm(max_error=most)))
        for most in (4.0, 2.0, 1.2, 0.5)
    ]
    assert [conv.attrs.tile for conv in found[:3]] == [4, 3, 2]
    assert found[3].op_name == "nn.conv2d"


def test_an_image_padded_for_others_as_well_is_kept(kit: Any) -> None:
    x = kit.var("x", 1, 32, 28, 28)
    weights = [kit.const(kit.random(32, 32, 3, 3, seed=n) * np.float32(0.1)) for n in range(2)]
    y = kit.layer("nn.conv2d", x, weights[0], padding=(1, 1, 1, 1))
    z = kit.layer("nn.conv2d", x, weights[1], padding=(1, 1, 1, 1), strides=(2, 2))
    after = transformed(kit, kit.module([x], y, z))
    names = kit.op_names(after)
    assert names.count("pad") == names.count("nn.conv2d") == names.count("nn.conv2d_winograd") == 1


@pytest.mark.parametrize(
    ("inner", "outer", "attrs"),
    [
        (32, 32, {"strides": (2, 2)}),
        (32, 32, {"groups": 32}),
        (32, 32, {"groups": 2}),
        (3, 32, {}),
    ],
)
def test_other_convolutions_stay_direct(
    kit: Any, inner: int, outer: int, attrs: dict[str, Any]
) -> None:
    after = transformed(kit, network(kit, inner, outer, (30, 30), **attrs))
    assert only(after).op_name == "nn.conv2d"


def test_a_filled_block_of_free_size_stays_direct(kit: Any) -> None:
    size = SymDim.symbol("h"), SymDim.symbol("w")
    assert only(transformed(kit, network(kit, 32, 24, size))).op_name == "nn.conv2d"


@pytest.mark.parametrize("between", [40, 24])
def test_an_image_whose_last_block_is_filled_up(kit: Any, between: int) -> None:
    x = kit.var("x", 1, 64, 28, 28)
    first = kit.const(kit.random(between, 64, 1, 1) * np.float32(0.1))
    second = kit.const(kit.random(64, between, 3, 3, seed=1) * np.float32(0.1))
    y = kit.layer("nn.relu", kit.layer("nn.conv2d", x, first))
    z = kit.layer("nn.conv2d", y, second, padding=(1, 1, 1, 1))
    after = transformed(kit, kit.module([x], kit.layer("nn.relu", z)))
    (conv,) = [c for c in calls(after.main) if c.op_name == "nn.conv2d_winograd"]
    assert conv.args[1].tensor.shape[1] == -(-between // 16) * 16


@pytest.mark.parametrize(("inner", "outer"), [(32, 24), (26, 26), (26, 13), (29, 45)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_channels_that_fill_no_whole_blocks(
    kit: Any, inner: int, outer: int, padding: tuple[int, ...]
) -> None:
    given = network(kit, inner, outer, (25, 27), padding=padding)
    x = kit.random(1, inner, 25, 27, seed=7)
    compiled = clew.compile(
        given, target="cpu-avx2", threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    assert "nn.conv2d_winograd" in [op for k in compiled.kernels for op in k.ops]
    (found,) = compiled.run({"x": x}).values()
    (expected,) = kit.interpret(given, {"x": x})
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert compiled.trace.verify({"x": x}).ok


def test_layers_can_be_excluded(kit: Any) -> None:
    given = network(kit, 32, 32, (28, 28))
    assert only(transformed(kit, given, SelectConvAlgorithm(exclude=("other*",)))).op_name.endswith(
        "grad"
    )
    name = next(c for c in calls(given.main) if c.op_name == "nn.conv2d").span.layers[0]
    kept = transformed(kit, given, SelectConvAlgorithm(exclude=(name[:-2] + "*",)))
    assert only(kept).op_name == "nn.conv2d"


def test_without_a_target_nothing_is_done(kit: Any) -> None:
    given = kit.apply(network(kit, 32, 32, (28, 28)), AlterLayout())
    assert kit.PassManager([SelectConvAlgorithm()]).run(given) is given


def test_it_says_why(kit: Any) -> None:
    manager = kit.PassManager([AlterLayout(), SelectConvAlgorithm()], target=kit.lanes())
    manager.run(network(kit, 32, 32, (3, 3)))
    remarks = [r.text for r in manager.stages[-1].remarks]
    assert any(text.startswith("direct: ") and "2x2 tiles" in text for text in remarks)


def test_narrow_products_stay(kit: Any) -> None:
    module = network(kit, 16, 16, (16, 16), padding=(1, 1, 1, 1))
    passes = (
        ConvertPrecision("bf16"),
        AlterLayout(),
        SelectConvAlgorithm(),
        FoldConstant(),
        DeadCode(),
    )
    conv = only(kit.apply(module, *passes))
    assert conv.op_name == "nn.conv2d"
    assert conv.args[0].tensor.dtype == "bf16"
