"""Layout strings, the numpy transform, and the operators' layout rules."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clew.ops
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Var
from clew.ir.types import TensorType, to_numpy
from clew.ops.math.elementwise import add
from clew.ops.movement.blocks import layout_transform
from clew.ops.movement.layouts import logical_sizes, parse_layout, stored_shape, transform
from clew.ops.registry import Op, Sample, all_ops
from clew.support.errors import GraphTypeError

assert clew.ops


@st.composite
def _cases(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], str, str]:
    """An array with plain axes, their letters, and a permuted, perhaps blocked layout of them."""
    letters = draw(st.permutations("NCHW"))[: draw(st.integers(1, 4))]
    shape = [draw(st.integers(1, 9)) for _ in letters]
    target = "".join(draw(st.permutations(letters)))
    blocked = draw(st.lists(st.sampled_from(letters), unique=True, max_size=2))
    target += "".join(f"{draw(st.integers(1, 5))}{a.lower()}" for a in blocked)
    array = np.arange(1, np.prod(shape) + 1, dtype="i4").reshape(shape)
    return array, "".join(letters), target


@given(_cases())
def test_round_trip(case: tuple[np.ndarray[Any, Any], str, str]) -> None:
    array, source, target = case
    there = transform(array, source, target)
    layout = parse_layout(target)
    sizes = dict(zip(source, array.shape, strict=True))
    assert there.shape == stored_shape(layout, sizes)
    assert there.flags.c_contiguous
    # Every element is there once, and the rest is zero.
    np.testing.assert_array_equal(np.sort(there[there != 0]), array.reshape(-1))
    back = transform(there, target, source, array.shape)
    np.testing.assert_array_equal(back, array)


@given(_cases())
def test_operator_agrees_with_numpy(case: tuple[np.ndarray[Any, Any], str, str]) -> None:
    array, source, target = case
    there = Constant(transform(array, source, target), layout=target)
    call = layout_transform(there, src_layout=target, dst_layout=source, shape=array.shape)
    assert call.tensor.shape == array.shape
    forward = layout_transform(Constant(array), src_layout=source, dst_layout=target)
    assert forward.tensor.shape == there.tensor.shape
    assert forward.tensor.layout == (target if parse_layout(target).factors else "")


def test_places_of_a_blocked_weight() -> None:
    weight = np.arange(6 * 4, dtype="f4").reshape(6, 4, 1, 1)
    packed = transform(weight, "OIHW", "OIHW2i4o")
    assert packed.shape == (2, 2, 1, 1, 2, 4)
    assert packed[1, 0, 0, 0, 1, 1] == weight[5, 1, 0, 0]
    assert packed[1, 0, 0, 0, 1, 2] == 0


def test_symbolic_sizes() -> None:
    batch = SymDim.symbol("batch")
    layout = parse_layout("NCHW16c")
    assert stored_shape(layout, {"N": batch, "C": 64, "H": 7, "W": 7}) == (batch, 4, 7, 7, 16)
    assert logical_sizes(layout, (batch, 4, 7, 7, 16)) == {"N": batch, "C": 64, "H": 7, "W": 7}


@pytest.mark.parametrize("text", ["", "nchw", "NN", "NCHW16", "NCHWc", "NCHW16k", "NCHW0c", "N4c"])
def test_not_a_layout(text: str) -> None:
    with pytest.raises(GraphTypeError) as caught:
        parse_layout(text)
    assert caught.value.code == "T109"


def test_elementwise_result_keeps_the_layout() -> None:
    blocked = TensorType((1, 2, 5, 5, 8), "f32", "NCHW8c")
    bias = TensorType((1, 2, 1, 1, 8), "f32", "NCHW8c")
    assert add(Var("a", blocked), Var("b", bias)).type == blocked
    assert add(Var("s", TensorType((), "f32")), Var("a", blocked)).type == blocked


_RULES = [
    (op, n, sample)
    for op in all_ops()
    if op.layout_rule
    for n, sample in enumerate(op.samples)
    if not sample.error and isinstance(sample.args[0], TensorType) and sample.args[0].rank == 4
]


@pytest.mark.parametrize("block", [2, 4])
@pytest.mark.parametrize(
    ("op", "n", "sample"), _RULES, ids=[f"{op.name}-{n}" for op, n, _ in _RULES]
)
def test_rule_computes_the_same(op: Op, n: int, sample: Sample, block: int) -> None:
    """The channels are made divisible, then the altered call must give the plain one's values."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    arrays = [
        rng.integers(0, 9, t.concrete).astype(to_numpy(t.dtype)) if isinstance(t, TensorType) else t
        for t in sample.args
    ]
    args = [Constant(a) for a in arrays]
    call = op(*args, **sample.attrs)
    found = op.layout_rule(call.attrs, [a.tensor for a in args], f"NCHW{block}c")
    if found is None:
        return
    layouts, attrs, out = found
    sources = ["NCHW"] * len(args)
    if "weight_layout" in call.attrs:
        sources[1] = call.attrs.weight_layout
    altered = [
        Constant(a)
        if want == s
        else Constant(transform(a, s, want), layout=want if parse_layout(want).factors else "")
        for a, s, want in zip(arrays, sources, layouts, strict=False)
    ]
    result = op(*altered, **attrs)
    assert result.tensor.layout == (out if parse_layout(out).factors else "")
    actual = transform(
        op.run_reference([a.data for a in altered], result.attrs), out, "NCHW", call.tensor.shape
    )
    expected = op.run_reference(arrays, call.attrs)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_rules_apply_where_channels_divide() -> None:
    """The parametrized test above skips where a rule declines: here it must not."""
    x, w = TensorType((1, 8, 6, 6), "f32"), TensorType((12, 8, 3, 3), "f32")
    names = {
        "nn.conv2d": ([x, w], {}, (("NCHW4c", "OIHW4i4o"), "NCHW4c")),
        "nn.max_pool2d": ([x], {"kernel": (2, 2)}, (("NCHW4c",), "NCHW4c")),
        "nn.avg_pool2d": ([x], {"kernel": (2, 2)}, (("NCHW4c",), "NCHW4c")),
        "nn.global_avg_pool2d": ([x], {}, (("NCHW4c",), "NCHW4c")),
        "mean": ([x], {"axes": (2, 3)}, (("NCHW4c",), "NCHW4c")),
        "resize": ([x], {"shape": (1, 8, 12, 12)}, (("NCHW4c",), "NCHW4c")),
    }
    for op in all_ops():
        if op.name in names:
            types, attrs, (layouts, out) = names.pop(op.name)
            call = op(*(Var("x", t) for t in types), **attrs)
            found = op.layout_rule(call.attrs, types, "NCHW4c")
            assert (found[0], found[2]) == (layouts, out)
    assert not names


@pytest.mark.parametrize(
    ("shape", "groups", "expected"),
    [
        ((8, 3, 3, 3), 1, ("NCHW", "OIHW3i4o")),
        ((8, 1, 3, 3), 8, ("NCHW4c", "OIHW4o")),
        ((8, 4, 3, 3), 2, ("NCHW4c", "OIHW4i4o")),
        ((8, 2, 3, 3), 4, None),
        ((6, 8, 3, 3), 1, ("NCHW4c", "OIHW4i4o")),
    ],
)
def test_conv2d_weights(shape: tuple[int, ...], groups: int, expected: Any) -> None:
    op = next(op for op in all_ops() if op.name == "nn.conv2d")
    types = [TensorType((1, shape[1] * groups, 6, 6), "f32"), TensorType(shape, "f32")]
    call = op(*(Var("x", t) for t in types), groups=groups)
    found = op.layout_rule(call.attrs, types, "NCHW4c")
    assert (found and found[0]) == expected
    if expected:
        assert found[1].channels == shape[0]
        assert found[2] == ("NCHW4c" if shape[0] % 4 == 0 else "NCHW")
