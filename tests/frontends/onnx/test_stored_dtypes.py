"""Every element type of ONNX in whole models: converted by Cast's tables, and moved, native code
behind guard pages.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import clew
from clew.frontends.onnx import load
from clew.frontends.onnx.file.tensors import number_of
from clew.ir.types import STORAGE, bits, is_float, to_numpy
from clew.runtime.guard import GuardSide
from clew.runtime.program import RunHost
from clew.support.errors import ClewError
from clew.te.convert import convert

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SHAPE = (3, 5, 7)


def _model(
    nodes: list[Any],
    inputs: dict[str, Array],
    outputs: list[str],
    parameters: dict[str, Array] | None = None,
) -> ModelProto:
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    stored = [numpy_helper.from_array(a, n) for n, a in (parameters or {}).items()]
    graph = helper.make_graph(nodes, "g", types, results, initializer=stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)], ir_version=13)


def _run(
    model: ModelProto, inputs: dict[str, Array], guard: bool | GuardSide = True
) -> dict[str, Array]:
    shapes = {name: array.shape for name, array in inputs.items()}  # 0 would be any size
    compiled = clew.compile(
        load(model, inputs=shapes),
        threads=1,
        cache=False,
        diagnostics=clew.Diagnostics(guard=guard),
    )
    hosts = [i.label for i in compiled.build.program.instructions if isinstance(i, RunHost)]
    assert not [label for label in hosts if not label.startswith("scatter")]
    return compiled.run(inputs)


def _codes(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).integers(0, 1 << bits(dtype), shape)
    return drawn.astype(np.uint8).view(to_numpy(dtype))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


# --- conversions ----------------------------------------------------------------------------------

INFINITE, NAN = np.inf, np.nan
# From ONNX's tables: what becomes of x, with saturate and without.
TABLE = {
    "f8e4m3fn": [(0.0, 0.0, 0.0), (-0.0, -0.0, -0.0), (NAN, NAN, NAN), (INFINITE, 448, NAN),
                 (-INFINITE, -448, NAN), (1e6, 448, NAN), (-1e6, -448, NAN), (464, 448, 448)],
    "f8e4m3fnuz": [(0.0, 0.0, 0.0), (-0.0, 0.0, 0.0), (NAN, NAN, NAN), (INFINITE, 240, NAN),
                   (-INFINITE, -240, NAN), (1e6, 240, NAN), (-1e6, -240, NAN), (247, 240, 240)],
    "f8e5m2": [(0.0, 0.0, 0.0), (-0.0, -0.0, -0.0), (NAN, NAN, NAN), (INFINITE, 57344, INFINITE),
               (-INFINITE, -57344, -INFINITE), (1e6, 57344, INFINITE), (-1e6, -57344, -INFINITE)],
    "f8e5m2fnuz": [(0.0, 0.0, 0.0), (-0.0, 0.0, 0.0), (NAN, NAN, NAN), (INFINITE, 57344, NAN),
                   (-INFINITE, -57344, NAN), (1e6, 57344, NAN), (-1e6, -57344, NAN)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", TABLE)
@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "f64"])
def test_tables_of_cast(dtype: str, source: str) -> None:
    rows = TABLE[dtype]
    if source in ("f16", "bf16"):
        rows = [row for row in rows if abs(row[0]) not in (1e6, 247)]
    x = np.array([row[0] for row in rows]).astype(to_numpy(source))
    nodes = [
        helper.make_node("Cast", ["x"], [f"y{n}"], to=number_of(dtype), saturate=n) for n in (0, 1)
    ]
    got = _run(_model(nodes, {"x": x}, ["y0", "y1"]), {"x": x})
    for saturate in (0, 1):
        wanted = np.array([row[2 - saturate] for row in rows])
        actual = got[f"y{saturate}"].astype(np.float64)
        np.testing.assert_array_equal(actual, wanted)
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(actual)[number], np.signbit(wanted)[number])


@pytest.mark.parametrize("dtype", [d for d in STORAGE if is_float(d)])
def test_every_code_and_every_f16(dtype: str) -> None:
    codes = np.arange(1 << bits(dtype), dtype=np.uint8).view(to_numpy(dtype))
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    inputs = {"codes": codes, "halves": halves}
    nodes = [
        helper.make_node("Cast", ["codes"], ["f32"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["codes"], ["f16"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["halves"], ["low"], to=number_of(dtype), saturate=0),
        helper.make_node("CastLike", ["f32", "codes"], ["back"], saturate=0),
    ]
    if dtype == "f8e8m0fnu":
        nodes = nodes[:2]
    outputs = [node.output[0] for node in nodes]
    got = _run(_model(nodes, inputs, outputs), inputs)
    np.testing.assert_array_equal(got["f32"], codes.astype(np.float32))
    np.testing.assert_array_equal(got["f16"], codes.astype(np.float16))
    if "low" in got:
        np.testing.assert_array_equal(_bytes(got["low"]), _bytes(halves.astype(to_numpy(dtype))))
        np.testing.assert_array_equal(got["back"].astype("f4"), codes.astype("f4"))


def _power_of_two(x: float, saturate: bool, mode: str) -> float:
    """Returns what ONNX's table says, in exact numbers."""
    smallest, largest = 2.0**-127, 2.0**127
    if x != x:
        return NAN
    size = abs(x)
    if not smallest <= size <= largest:
        return NAN if not saturate else smallest if size < smallest else largest
    exponent = int(np.frexp(float(size))[1]) - 1
    exponent -= 2.0**exponent > size  # float() rounded up to a power of two
    share = Fraction(size) / Fraction(2.0**exponent)
    up = {"up": share > 1, "down": False, "nearest": share >= Fraction(3, 2)}[mode]
    return 2.0 ** (exponent + up)


@pytest.mark.parametrize("source", ["f32", "f16", "f64", "i64", "u8"])
def test_powers_of_two(source: str) -> None:
    rng = np.random.default_rng(0)
    if source == "f64":
        near = [2.0**n * s * d for n in (-126, -127, -3, 0, 5, 126)
                for s in (1, 1.5, 2) for d in (1, 1 + 2.0**-40, 1 - 2.0**-40)]  # fmt: skip
        x = np.array([*near, 2.0**127, 1e300, 2.0**-128, 0.0, NAN, INFINITE])
    elif source == "f32":
        anything = rng.integers(0, 0x7F800000, 4000).astype(np.uint32).view(np.float32)
        denormal = np.array([0x400000, 0x400001, 0x3FFFFF, 0x600000, 0x5FFFFF, 0x7FFFFF, 1, 0])
        special = np.array([2.0**127, 1.5 * 2.0**127, INFINITE, NAN], np.float32)
        x = np.concatenate([anything, denormal.astype(np.uint32).view(np.float32), special])
    elif source == "f16":
        x = np.arange(0x7C01, dtype=np.uint16).view(np.float16)
    elif source == "u8":
        x = np.arange(256, dtype=np.uint8)
    else:
        near = [(1 << n) * 3 // s + d for n in (2, 22, 23, 24, 30, 40, 52, 53, 60)
                for s in (2, 3) for d in (-1, 0, 1)]  # fmt: skip
        x = np.array(near, np.int64)
    ways = [(s, mode) for s in (0, 1) for mode in ("up", "down", "nearest")]
    nodes = [
        helper.make_node(
            "Cast", ["x"], [f"{mode}{s}"], to=TensorProto.FLOAT8E8M0, saturate=s, round_mode=mode
        )
        for s, mode in ways
    ]
    got = _run(_model(nodes, {"x": x}, [n.output[0] for n in nodes]), {"x": x})
    for saturate, mode in ways:
        wanted = np.array([_power_of_two(v, bool(saturate), mode) for v in x.tolist()])
        actual = got[f"{mode}{saturate}"]
        assert actual.dtype == to_numpy("f8e8m0fnu")
        np.testing.assert_array_equal(actual.astype(np.float64), wanted)


def test_bits_of_every_width() -> None:
    rng = np.random.default_rng(3)
    pairs = [("f64", "u64"), ("i64", "f64"), ("f32", "u32"), ("i32", "f32"), ("f16", "bf16"),
             ("bf16", "i16"), ("u16", "f16"), ("bool", "u8"), ("i8", "bool"), ("f8e5m2", "i8"),
             ("u8", "f8e8m0fnu"), ("f8e4m3fnuz", "f8e4m3fn"), ("i4", "u4"), ("u4", "f4e2m1fn"),
             ("f4e2m1fn", "i4"), ("i2", "u2")]  # fmt: skip
    inputs, nodes, wanted = {}, [], {}
    for number, (source, target) in enumerate(pairs):
        kind = to_numpy(source)
        raw = rng.integers(0, 1 << min(8, bits(source)), 37 * kind.itemsize).astype(np.uint8)
        x = (raw % 2).astype(bool) if source == "bool" else raw.view(kind)
        inputs[f"x{number}"] = x
        nodes.append(
            helper.make_node("BitCast", [f"x{number}"], [f"y{number}"], to=number_of(target))
        )
        wanted[f"y{number}"] = raw != 0 if target == "bool" else x.view(to_numpy(target))
    got = _run(_model(nodes, inputs, list(wanted)), inputs)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert got[name].tobytes() == array.tobytes(), name


def test_bits_of_another_width() -> None:
    x = np.zeros(3, np.float32)
    model = _model([helper.make_node("BitCast", ["x"], ["y"], to=number_of("i64"))], {"x": x}, "y")
    with pytest.raises(ClewError, match="32 bits") as caught:
        load(model)
    assert caught.value.code == "T140"


# --- movement -------------------------------------------------------------------------------------


def _moves(dtype: str) -> tuple[list[Any], dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Returns nodes, inputs, parameters and the results wanted, as bytes."""
    x, other = _codes(dtype, SHAPE), _codes(dtype, SHAPE, 1)
    fill, update = _codes(dtype, (1,), 2), _codes(dtype, (2, 5, 7), 3)
    raw, raw_other = _bytes(x), _bytes(other)
    where = np.arange(7) % 3 == 0
    places = np.arange(105).reshape(SHAPE) * 7 % 3
    pads = ((0, 1), (1, 0), (2, 3))
    parameters = {
        "shape": np.array([7, 15]), "axis": np.array([1]), "pads": np.array([0, 1, 2, 1, 0, 3]),
        "first": np.array([0, 6]), "last": np.array([5, -8]), "axes": np.array([1, 2]),
        "steps": np.array([2, -2]), "rows": np.array([4, -1, 0, 2]), "places": places,
        "wide": np.array([2, 3, 5, 7]), "times": np.array([2, 1, 2]), "where": where,
        "points": np.array([[0, 1], [2, 4]]), "whole": np.array([[0], [2]]), "fill": fill,
        "update": update, "small": np.array([1, 5, 7]), "other": other,
    }  # fmt: skip
    node = helper.make_node
    scattered = raw.copy()
    scattered[[0, 2]] = _bytes(update)
    constant = np.full((1, 5, 7), _bytes(fill).item(), np.uint8)
    cases = {
        "Reshape": (node("Reshape", ["x", "shape"], ["o"]), raw.reshape(7, 15)),
        "Flatten": (node("Flatten", ["x"], ["o"], axis=2), raw.reshape(15, 7)),
        "Identity": (node("Identity", ["x"], ["o"]), raw),
        "Dropout": (node("Dropout", ["x"], ["o"]), raw),
        "Unsqueeze": (node("Unsqueeze", ["x", "axis"], ["o"]), raw[:, None]),
        "Transpose": (node("Transpose", ["x"], ["o"], perm=[2, 0, 1]), raw.transpose(2, 0, 1)),
        "Pad": (
            node("Pad", ["x", "pads", "fill"], ["o"]),
            np.pad(raw, pads, constant_values=_bytes(fill).item()),
        ),
        "Reflect": (
            node("Pad", ["x", "pads"], ["o"], mode="reflect"),
            np.pad(raw, pads, mode="reflect"),
        ),
        "Slice": (
            node("Slice", ["x", "first", "last", "axes", "steps"], ["o"]),
            raw[:, 0:5:2, 6::-2],
        ),
        "Concat": (node("Concat", ["x", "other"], ["o"], axis=1), np.hstack([raw, raw_other])),
        "Gather": (node("Gather", ["x", "rows"], ["o"], axis=1), raw[:, [4, 4, 0, 2]]),
        "GatherElements": (
            node("GatherElements", ["x", "places"], ["o"], axis=0),
            np.take_along_axis(raw, places, 0),
        ),
        "GatherND": (node("GatherND", ["x", "points"], ["o"]), raw[[0, 2], [1, 4]]),
        "ScatterND": (node("ScatterND", ["x", "whole", "update"], ["o"]), scattered),
        "Expand": (node("Expand", ["x", "wide"], ["o"]), np.broadcast_to(raw, (2, 3, 5, 7))),
        "Tile": (node("Tile", ["x", "times"], ["o"]), np.tile(raw, (2, 1, 2))),
        "Where": (node("Where", ["where", "x", "other"], ["o"]), np.where(where, raw, raw_other)),
        "ConstantOfShape": (
            node("ConstantOfShape", ["small"], ["o"], value=numpy_helper.from_array(fill)),
            constant,
        ),
        "Constant": (
            node("Constant", [], ["o"], value=numpy_helper.from_array(update)),
            _bytes(update),
        ),
    }
    nodes, wanted = [], {}
    for name, (made, result) in cases.items():
        made.output[0] = name
        nodes.append(made)
        wanted[name] = result
    split = [("Left", raw[..., :4]), ("Right", raw[..., 4:])]
    nodes.append(node("Split", ["x"], [name for name, _ in split], axis=2, num_outputs=2))
    return nodes, {"x": x}, parameters, wanted | dict(split)


@pytest.mark.parametrize("dtype", STORAGE)
def test_moves(dtype: str) -> None:
    nodes, inputs, parameters, wanted = _moves(dtype)
    model = _model(nodes, inputs, list(wanted), parameters)
    side = list(GuardSide)[STORAGE.index(dtype) % 2]
    got = _run(model, inputs, side)
    for name, raw in wanted.items():
        assert got[name].dtype == to_numpy(dtype), name
        np.testing.assert_array_equal(_bytes(got[name]), raw, err_msg=name)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "i4", "u2", "f4e2m1fn"])
def test_intermediate_values_have_their_room(dtype: str) -> None:
    """The arena once gave 4-bit numbers half a byte each."""
    shape = (33, 65)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["low"], to=number_of(dtype)),
        helper.make_node("Transpose", ["low"], ["turned"], perm=[1, 0]),
        helper.make_node("Concat", ["turned", "turned"], ["both"], axis=0),
        helper.make_node("Transpose", ["both"], ["back"], perm=[1, 0]),
        helper.make_node("Cast", ["back"], ["y"], to=TensorProto.FLOAT),
    ]
    model = _model(nodes, {"x": x}, ["y"])
    limit = {"f8e4m3fn": 448}.get(dtype, np.inf)
    once = convert(convert(np.clip(x, -limit, limit), dtype), "f32")
    for level in (0, 3):
        compiled = clew.compile(
            load(model),
            threads=1,
            cache=False,
            diagnostics=clew.Diagnostics(guard=True),
            opt_level=level,
        )
        np.testing.assert_array_equal(compiled.run({"x": x})["y"], np.hstack([once, once]))


@pytest.mark.parametrize("dtype", ["f8e5m2", "i4"])
def test_control_flow(dtype: str) -> None:
    x = _codes(dtype, (4, 9))
    number, make = number_of(dtype), helper.make_graph
    info = helper.make_tensor_value_info
    turn = helper.make_node("Concat", ["tail", "head"], ["next"], axis=1)
    cut = helper.make_node("Split", ["v"], ["head", "tail"], axis=1, num_outputs=2)
    body = make(
        [cut, turn, helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [info("n", TensorProto.INT64, []), info("go", TensorProto.BOOL, []),
         info("v", number, [4, 9])],
        [info("on", TensorProto.BOOL, []), info("next", number, [4, 9])],
    )  # fmt: skip
    same = make([helper.make_node("Identity", ["x"], ["a"])], "same", [], [info("a", number, None)])
    loop = helper.make_node("Loop", ["trips", "", "x"], ["b"], body=body)
    turned = make([loop], "turned", [], [info("b", number, None)])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=same, else_branch=turned)]
    for condition in (True, False):
        inputs = {"x": x, "c": np.array(condition)}
        model = _model(nodes, inputs, ["y"], {"trips": np.array(3)})
        wanted = _bytes(x)
        for _ in range(0 if condition else 3):
            wanted = np.hstack([wanted[:, 5:], wanted[:, :5]])
        got = clew.compile(
            load(model), threads=1, cache=False, diagnostics=clew.Diagnostics(guard=True)
        ).run(inputs)["y"]
        np.testing.assert_array_equal(_bytes(got), wanted)


def test_no_size_and_no_axes() -> None:
    for shape in ((), (0, 3)):
        x = _codes("u4", shape)
        nodes = [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Cast", ["wide"], ["back"], to=TensorProto.UINT4),
        ]
        got = _run(_model(nodes, {"x": x}, ["back"]), {"x": x})["back"]
        assert got.shape == shape
        np.testing.assert_array_equal(_bytes(got), _bytes(x))


def test_arithmetic_on_stored_numbers_is_refused() -> None:
    x = _codes("f8e4m3fn", (4,))
    model = _model([helper.make_node("Relu", ["x"], ["y"])], {"x": x}, ["y"])
    with pytest.raises(ClewError) as caught:
        clew.compile(load(model), threads=1, cache=False)
    assert caught.value.code == "C010"
