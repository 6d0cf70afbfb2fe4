from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import clew.ops
from clew.ir.expr import TupleGetItem
from clew.ir.visit import calls
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps


def f32(value: float) -> Any:
    return np.float32(value)


def _gelu(k: Any, x: Any, order: int) -> Any:
    scaled = (
        k.layer("divide", x, k.const(f32(math.sqrt(2))))
        if order
        else k.layer("multiply", x, k.const(f32(math.sqrt(0.5))))
    )
    factor = k.layer("add", k.layer("erf", scaled), k.const(f32(1)))
    half = k.const(f32(0.5))
    if order == 0:
        return k.layer("multiply", k.layer("multiply", x, factor), half)
    if order == 1:
        return k.layer("multiply", k.layer("multiply", half, x), factor)
    return k.layer("multiply", x, k.layer("multiply", half, factor))


def _gelu_tanh(k: Any, x: Any, power: bool) -> Any:
    cube = (
        k.layer("power", x, k.const(f32(3)))
        if power
        else k.layer("multiply", k.layer("multiply", x, x), x)
    )
    inner = k.layer("add", x, k.layer("multiply", cube, k.const(f32(0.044715))))
    inner = k.layer("multiply", inner, k.const(f32(math.sqrt(2 / math.pi))))
    factor = k.layer("add", k.layer("tanh", inner), k.const(f32(1)))
    return k.layer("multiply", k.layer("multiply", x, k.const(f32(0.5))), factor)


def _hard_swish(k: Any, x: Any) -> Any:
    gate = k.layer("clip", k.layer("add", x, k.const(f32(3))), min=0.0, max=6.0)
    return k.layer("divide", k.layer("multiply", x, gate), k.const(f32(6)))


def _softmax(k: Any, x: Any) -> Any:
    top = k.layer("max", x, axes=(2,), keepdims=True)
    power = k.layer("exp", k.layer("subtract", x, top))
    return k.layer("divide", power, k.layer("sum", power, axes=(2,), keepdims=True))


def _layer_norm(k: Any, x: Any, root: str, axes: tuple[int, ...] = (2,)) -> Any:
    centered = k.layer("subtract", x, k.layer("mean", x, axes=axes, keepdims=True))
    square = k.layer("multiply", centered, centered)
    if root == "power":
        square = k.layer("power", centered, k.const(f32(2)))
    variance = k.layer("mean", square, axes=axes, keepdims=True)
    variance = k.layer("add", variance, k.const(f32(1e-5)))
    if root == "rsqrt":
        y = k.layer("multiply", centered, k.layer("rsqrt", variance))
    else:
        y = k.layer("divide", centered, k.layer("sqrt", variance))
    y = k.layer("multiply", y, k.const(k.random(8)))
    return k.layer("add", y, k.const(k.random(8)))


def _rms_norm(k: Any, x: Any) -> Any:
    square = k.layer("mean", k.layer("multiply", x, x), axes=(-1,), keepdims=True)
    square = k.layer("add", square, k.const(f32(1e-6)))
    return k.layer(
        "multiply", k.const(k.random(8)), k.layer("multiply", x, k.layer("rsqrt", square))
    )


def _dense_of_matrix(k: Any, x: Any, bias: Any) -> Any:
    rows = k.layer("reshape", x, shape=(6, 8))
    y = k.layer("add", k.layer("nn.dense", rows, k.const(k.random(5, 8))), k.const(bias))
    return k.layer("reshape", y, shape=(2, 3, 5))


CASES: list[tuple[str, Any, list[str]]] = [
    ("gelu 0", lambda k, x: _gelu(k, x, 0), ["nn.gelu"]),
    ("gelu 1", lambda k, x: _gelu(k, x, 1), ["nn.gelu"]),
    ("gelu 2", lambda k, x: _gelu(k, x, 2), ["nn.gelu"]),
    ("gelu tanh power", lambda k, x: _gelu_tanh(k, x, True), ["nn.gelu"]),
    ("gelu tanh product", lambda k, x: _gelu_tanh(k, x, False), ["nn.gelu"]),
    ("silu", lambda k, x: k.layer("multiply", k.layer("sigmoid", x), x), ["nn.silu"]),
    ("hard swish", _hard_swish, ["nn.hard_swish"]),
    ("mish", lambda k, x: k.layer("multiply", x, k.layer("tanh", k.layer("nn.softplus", x))),
     ["nn.mish"]),
    ("softmax", _softmax, ["nn.softmax"]),
    ("layer norm", lambda k, x: _layer_norm(k, x, "sqrt"), ["nn.layer_norm"]),
    ("layer norm power", lambda k, x: _layer_norm(k, x, "power"), ["nn.layer_norm"]),
    ("layer norm rsqrt", lambda k, x: _layer_norm(k, x, "rsqrt"), ["nn.layer_norm"]),
    ("layer norm two axes", lambda k, x: _layer_norm(k, x, "sqrt", (1, 2)), ["nn.layer_norm"]),
    ("rms norm", _rms_norm, ["nn.rms_norm"]),
    ("matmul", lambda k, x: k.layer("nn.matmul", x, k.const(k.random(8, 5))), ["nn.dense"]),
    ("matmul of batch one", lambda k, x: k.layer("nn.matmul", x, k.const(k.random(1, 8, 5))),
     ["reshape", "nn.dense"]),
    ("matmul of batches", lambda k, x: k.layer("nn.matmul", x, k.const(k.random(2, 8, 5))),
     ["nn.matmul"]),
    ("dense of a matrix of rows", lambda k, x: _dense_of_matrix(k, x, k.random(5)),
     ["nn.dense", "add"]),
    ("dense and a bias of one", lambda k, x: _dense_of_matrix(k, x, k.random(1)),
     ["nn.dense", "add"]),
    ("dense and a bias a row", lambda k, x: _dense_of_matrix(k, x, k.random(6, 1)),
     ["reshape", "nn.dense", "add", "reshape"]),
    ("dense whose units are split", lambda k, x: k.layer(
        "reshape", k.layer("nn.dense", x, k.const(k.random(6, 8))), shape=(2, 3, 2, 3)),
     ["nn.dense", "reshape"]),
    ("minus", lambda k, x: k.layer("subtract", x, k.const(k.random(8))), ["add"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "left"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_spellings(kit: Any, build: Any, left: list[str]) -> None:
    x = kit.var("x", 2, 3, 8)
    before = kit.module([x], build(kit, x))
    after = kit.apply(before, CanonicalizeOps())
    assert kit.op_names(after) == left
    assert (after is before) == (kit.op_names(before) == left)
    kit.same(before, after)


def test_a_layer_norm_over_other_axes_stays(kit: Any) -> None:
    x = kit.var("x", 2, 3, 8)
    after = kit.apply(kit.module([x], _layer_norm(kit, x, "sqrt", (1,))), CanonicalizeOps())
    assert "nn.layer_norm" not in kit.op_names(after)


def _group_norm(
    k: Any,
    x: Any,
    grouped: tuple[int, ...],
    parameter: tuple[int, ...] = (6, 1, 1),
    ones: float = 1.0,
) -> Any:
    groups = grouped[1]
    scale, shift = (k.const(np.full(groups, n, np.float32)) for n in (ones, 0))
    parts = k.layer("reshape", x, shape=grouped)
    parts = k.layer("nn.instance_norm", parts, scale, shift, epsilon=1e-3)
    y = k.layer("reshape", parts, shape=x.type.shape)
    y = k.layer("multiply", y, k.const(k.random(*parameter)))
    return k.layer("add", y, k.const(k.random(*parameter)))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("parameter", [(6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize("flat", [True, False])
def test_an_instance_norm_of_groups_is_a_group_norm(
    kit: Any, groups: int, parameter: tuple[int, ...], flat: bool
) -> None:
    x = kit.var("x", 2, 6, 3, 4)
    members = 6 // groups
    grouped = (2, groups, members * 12) if flat else (2, groups, members, 3, 4)
    before = kit.module([x], _group_norm(kit, x, grouped, parameter))
    after = kit.apply(before, CanonicalizeOps())
    assert kit.op_names(after) == ["reshape", "reshape", "nn.group_norm"]
    norm = after.main.body.fields[0]
    assert (norm.attrs.groups, norm.attrs.epsilon) == (groups, 1e-3)
    kit.same(before, after)


@pytest.mark.parametrize(
    ("grouped", "parameter", "ones", "left"),
    [
        ((1, 4, 36), (6, 1, 1), 1.0, "nn.instance_norm"),  # another batch
        ((2, 4, 18), (6, 1, 1), 1.0, "nn.instance_norm"),  # groups of one channel and a half
        ((2, 3, 24), (6, 1, 1), 0.5, "nn.instance_norm"),  # a scale for each group
        ((2, 3, 24), (6, 3, 4), 1.0, "multiply"),  # a factor for each pixel
        ((2, 3, 24), (4,), 1.0, "multiply"),  # along another axis
    ],
)
def test_other_norms_of_parts_stay(
    kit: Any, grouped: tuple[int, ...], parameter: tuple[int, ...], ones: float, left: str
) -> None:
    x = kit.var("x", 2, 6, 3, 4)
    before = kit.module([x], _group_norm(kit, x, grouped, parameter, ones))
    after = kit.apply(before, CanonicalizeOps())
    assert left in kit.op_names(after)
    kit.same(before, after)


def test_the_mean_over_an_image_is_a_pool(kit: Any) -> None:
    x = kit.var("x", 2, 3, 8, 8)
    y = kit.layer("mean", x, axes=(-1, -2), keepdims=False)
    z = kit.layer("mean", x, axes=(2, 3), keepdims=True)
    before = kit.module([x], y, z)
    after = kit.apply(before, CanonicalizeOps())
    assert "mean" not in kit.op_names(after)
    kit.same(before, after)


@pytest.mark.parametrize(
    ("attrs", "kernels"),
    [
        ({"kernel": (5, 5), "padding": (2, 2, 2, 2)}, [(1, 5), (5, 1)]),
        (
            {"kernel": (9, 7), "padding": (1, 2, 3, 0), "strides": (2, 3), "ceil_mode": True},
            [(1, 7), (9, 1)],
        ),
        ({"kernel": (4, 8), "dilation": (2, 1)}, [(1, 8), (4, 1)]),
        ({"kernel": (1, 30), "padding": (0, 9, 0, 9)}, [(1, 30)]),
        ({"kernel": (3, 3)}, [(3, 3)]),
        ({"kernel": (8, 8), "strides": (8, 8)}, [(8, 8)]),
    ],
    ids=str,
)
def test_the_maximum_of_a_long_window(kit: Any, attrs: Any, kernels: Any) -> None:
    x = kit.var("x", 1, 2, 19, 16)
    given = kit.module([x], kit.layer("nn.max_pool2d", x, **attrs))
    after = kit.apply(given, CanonicalizeOps())
    assert [c.attrs.kernel for c in calls(after.main)] == kernels
    data = kit.random(1, 2, 19, 16)
    data[0, 0, 3, 4:6] = np.nan, np.inf
    (expected,), (found,) = (kit.interpret(m, {"x": data}) for m in (given, after))
    np.testing.assert_array_equal(found, expected)


def test_parts_of_a_split_are_slices(kit: Any) -> None:
    x = kit.var("x", 2, 9)
    parts = kit.layer("split", x, sizes=(2, 3, 4), axis=-1)
    taken = [TupleGetItem(parts, n, span=parts.span) for n in (2, 1)]
    before = kit.module([x], *taken)
    after = kit.apply(before, CanonicalizeOps())
    assert kit.op_names(after) == ["slice", "slice"]
    kit.same(before, after)


def test_constants_stand_second(kit: Any) -> None:
    x = kit.var("x", 2, 8)
    before = kit.module([x], kit.layer("add", kit.const(kit.random(8)), x))
    after = kit.apply(before, CanonicalizeOps())
    assert after.main.body.fields[0].args[0] is x
    kit.same(before, after)


def test_the_layers_of_a_block_are_all_served_by_what_replaces_it(kit: Any) -> None:
    x = kit.var("x", 2, 3, 8)
    before = kit.module([x], _softmax(kit, x))
    after = kit.apply(before, CanonicalizeOps())
    layers = after.main.body.fields[0].span.layers
    assert [name.rsplit("_", 1)[0] for name in sorted(layers)] == [
        "divide", "exp", "max", "subtract", "sum",
    ]  # fmt: skip


BOXES = [
    ((4, 3, 5), [(0, 4), (1, 3), (2, 5)], ["reshape", "pad", "where"]),
    ((4, 3, 5), [(1, 3)], ["reshape", "pad", "where"]),
    ((4, 3, 5), [(3, 4), (0, 3)], ["reshape", "pad", "where"]),
    ((4, 3), [(0, 4), (0, 3)], ["reshape"]),
    ((4, 3), [(0, 4)], ["reshape"]),
]


@pytest.mark.parametrize(("shape", "box", "left"), BOXES)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_an_assignment_to_a_slice(
    kit: Any, shape: Any, box: Any, left: list[str], negative: bool, dtype: str
) -> None:
    axes = [np.arange(low, high) for low, high in box]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    if negative:
        places -= np.array(shape[: len(box)])
    x = kit.var("x", *shape, dtype=dtype)
    y = kit.var("y", *places.shape[:-1], *shape[len(box) :], dtype=dtype)
    before = kit.module([x, y], kit.layer("scatter_nd", x, kit.const(places), y))
    after = kit.apply(before, CanonicalizeOps())
    assert [name for name in kit.op_names(after) if name != "reshape"] == left[1:]
    kit.same(before, after)


@pytest.mark.parametrize(
    "places",
    [
        [[0, 1], [0, 0]],  # another order
        [[0, 1], [0, 1]],  # twice the same
        [[0, 0], [1, 1]],  # no box
        [[0, 0], [0, 2]],  # steps of two
        [[3, 2], [3, 3]],  # outside
        [[-5, 0], [-5, 1]],
    ],
)
def test_places_that_are_no_box(kit: Any, places: list[list[int]]) -> None:
    x, y = kit.var("x", 4, 3), kit.var("y", 2)
    before = kit.module([x, y], kit.layer("scatter_nd", x, kit.const(np.array(places)), y))
    assert kit.apply(before, CanonicalizeOps()) is before


@pytest.mark.parametrize("shape", [(0, 1), (2, 0)])
def test_no_places_are_no_box(kit: Any, shape: Any) -> None:
    x, y = kit.var("x", 4, 3), kit.var("y", shape[0], *(4, 3)[shape[1] :])
    places = kit.const(np.zeros(shape, np.int64))
    before = kit.module([x, y], kit.layer("scatter_nd", x, places, y))
    assert kit.apply(before, CanonicalizeOps()) is before


def test_sums_into_a_box_stay(kit: Any) -> None:
    x, y = kit.var("x", 4, 3), kit.var("y", 2, 3)
    places = kit.const(np.array([[1], [2]]))
    before = kit.module([x, y], kit.layer("scatter_nd", x, places, y, reduction="add"))
    assert kit.apply(before, CanonicalizeOps()) is before


@pytest.mark.parametrize("sizes", [(2,) * 300, (3,) * 100 + (1,), (1,) * 64])
def test_thousands_of_parts_need_no_kernel_each(kit: Any, sizes: tuple[int, ...]) -> None:
    """Parts inside rows: as results, they are views of one copy; kernels that read them are equal,
    since none has a part's place in it.
    """
    x = kit.var("x", 4, sum(sizes), 2)
    split = kit.layer("split", x, sizes=sizes, axis=1)
    parts = [TupleGetItem(split, n) for n in range(len(sizes))]
    ends = [*parts, *(kit.layer("exp", part) for part in parts)]
    made = clew.compile(kit.module([x], *ends), threads=1)
    texts = {kernel.llvm for kernel in made.kernels}
    assert len(texts) <= 6
    data = kit.random(4, sum(sizes), 2)
    found = list(made.run({"x": data}).values())
    expected = np.split(data, np.cumsum(sizes)[:-1], 1)
    for n, part in enumerate(expected):
        np.testing.assert_array_equal(found[n], part)
        np.testing.assert_allclose(found[len(sizes) + n], np.exp(part), rtol=1e-6)
