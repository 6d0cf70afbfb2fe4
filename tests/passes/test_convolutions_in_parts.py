"""Which convolutions become products of parts, and that they give what they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.ir.dims import SymDim
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.select_conv_algorithm import SelectConvAlgorithm
from clew.passes.simplify.dead_code import DeadCode
from clew.passes.simplify.fold_constant import FoldConstant
from clew.support.errors import InputError

ALWAYS = SelectConvAlgorithm(("bf16x3",), min_gain_of_parts=0.0)


def network(
    kit: Any, inner: int, outer: int, size: tuple[Any, Any], taps: int = 1, **attrs: Any
) -> Any:
    x = kit.var("x", 1, inner, *size)
    weight = kit.const(kit.random(outer, inner, taps, taps, seed=3))
    return kit.module([x], kit.layer("nn.relu", kit.layer("nn.conv2d", x, weight, **attrs)))


def after(kit: Any, module: Any, options: SelectConvAlgorithm | None = None) -> Any:
    passes = [AlterLayout(), options or SelectConvAlgorithm(), FoldConstant(), DeadCode()]
    return kit.PassManager(passes, target=kit.tiles()).run(module)


@pytest.mark.parametrize(
    ("inner", "outer", "size", "attrs", "split"),
    [
        (128, 256, (28, 28), {}, True),
        (512, 128, (28, 28), {}, True),
        (64, 256, (56, 55), {"strides": (2, 2)}, True),
        (128, 128, (28, 28), {"taps": 3, "strides": (2, 2), "padding": (1, 1, 1, 1)}, True),
        (64, 96, (14, 14), {"taps": 5, "padding": (2, 2, 2, 2)}, True),
        (128, 128, (28, 28), {"taps": 3, "padding": (1, 1, 1, 1)}, False),  # Winograd's
        (128, 128, (28, 28), {"taps": 3, "padding": (2,) * 4, "dilation": (2, 2)}, False),
        (64, 16, (28, 28), {}, False),  # few filters for each number that is split
        (512, 1024, (1, 1), {}, False),  # one pixel reads each weight once
        (16, 128, (28, 28), {}, False),  # half a tile of depth
        (128, 256, (28, 28), {"groups": 2}, False),
    ],
)  # fmt: skip
def test_which_convolutions(
    kit: Any, inner: int, outer: int, size: tuple[int, int], attrs: dict[str, Any], *, split: bool
) -> None:
    if "groups" in attrs:
        x = kit.var("x", 1, inner, *size)
        weight = kit.const(kit.random(outer, inner // 2, 1, 1, seed=3))
        module = kit.module([x], kit.layer("nn.conv2d", x, weight, **attrs))
    else:
        module = network(kit, inner, outer, size, **attrs)
    names = kit.op_names(after(kit, module))
    assert ("nn.conv2d_parts" in names) is split
    assert not (split and "pad" in names)


@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        ((15, 14), {}),
        ((30, 28), {"strides": (2, 2)}),
        ((9, 7), {"taps": 3, "padding": (1, 1, 1, 1)}),
        ((9, 8), {"taps": 3, "padding": (0, 1, 1, 0), "strides": (2, 2)}),
        ((9, 8), {"taps": 3, "padding": (2, 2, 2, 2), "dilation": (2, 2)}),
        ((9, 8), {"taps": 2, "strides": (1, 2)}),
    ],
    ids=str,
)
def test_values_are_kept(kit: Any, size: tuple[int, int], attrs: dict[str, Any]) -> None:
    module = network(kit, 48, 80, size, **attrs)
    x = kit.random(1, 48, *size, seed=5)
    (expected,) = interpret(module, {"x": x}).values()
    changed = after(kit, module, ALWAYS)
    assert "nn.conv2d_parts" in kit.op_names(changed)
    (found,) = interpret(changed, {"x": x}).values()
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


FREE = SymDim.symbol("height"), SymDim.symbol("width")


@pytest.mark.parametrize(
    ("taps", "attrs", "split"),
    [
        (1, {}, True),
        (1, {"strides": (2, 2)}, True),
        (3, {"strides": (2, 2), "padding": (1, 1, 1, 1)}, True),
        (3, {"strides": (2, 2), "padding": (2, 2, 2, 2), "dilation": (2, 2)}, True),
        (3, {"padding": (1, 1, 1, 1)}, False),  # Winograd's
        (3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)}, False),  # Winograd's
    ],
)
def test_free_sizes(kit: Any, taps: int, attrs: dict[str, Any], *, split: bool) -> None:
    changed = after(kit, network(kit, 128, 256, FREE, taps, **attrs))
    found = [
        node
        for node in post_order(changed.main, into_functions=True)
        if isinstance(node, Call) and node.op_name == "nn.conv2d_by_size"
    ]
    assert any(node.attrs.split for node in found) is split
    assert not (split and "pad" in kit.op_names(changed))


def test_free_sizes_keep_values(kit: Any) -> None:
    module = network(kit, 48, 80, FREE, 3, strides=(2, 2), padding=(0, 1, 1, 0))
    changed = after(kit, module, ALWAYS)
    assert "nn.conv2d_by_size" in kit.op_names(changed)
    for size in ((9, 8), (2, 3)):
        x = kit.random(1, 48, *size, seed=5)
        (expected,) = interpret(module, {"x": x}).values()
        (found,) = interpret(changed, {"x": x}).values()
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def test_lines_of_unknown_sign_are_not_split(kit: Any) -> None:
    x = kit.var("x", 1, 64, FREE[0], FREE[1] - 9)
    weight = kit.const(kit.random(128, 64, 3, 3, seed=3))
    module = kit.module([x], kit.layer("nn.conv2d", x, weight, strides=(2, 2)))
    assert "nn.conv2d_by_size" not in kit.op_names(after(kit, module))


def test_layers_can_be_kept(kit: Any) -> None:
    module = network(kit, 128, 256, (28, 28))
    kept = after(kit, module, SelectConvAlgorithm(exclude=("nn.conv2d*",)))
    assert "nn.conv2d_parts" not in kit.op_names(kept)


def test_without_a_matrix_unit_nothing_changes(kit: Any) -> None:
    module = network(kit, 128, 256, (28, 28))
    assert kit.PassManager([SelectConvAlgorithm()], target=kit.lanes()).run(module) is module


def test_algorithms_that_are_left_out_are_not_waited_for(kit: Any) -> None:
    module = network(kit, 128, 128, (28, 28), taps=3, padding=(1, 1, 1, 1))
    for names, expected in [
        (("winograd", "bf16x3"), "nn.conv2d_winograd"),
        (("bf16x3",), "nn.conv2d_parts"),
        ((), "nn.conv2d"),
    ]:
        found = kit.op_names(after(kit, module, SelectConvAlgorithm(names)))
        assert [n for n in found if "conv2d" in n] == [expected]


def test_an_unknown_algorithm_is_an_error(kit: Any) -> None:
    with pytest.raises(InputError, match="I088") as caught:
        after(kit, network(kit, 16, 16, (8, 8)), SelectConvAlgorithm(("fft",)))
    assert "winograd, bf16x3" in str(caught.value)
