"""Functions as ONNX models: names, outputs, composite functions, joined calls and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import clew.ops  # noqa: F401
from clew.exporters.onnx import can_write, to_onnx, write
from clew.exporters.onnx import writer as writer_module
from clew.frontends.onnx import load
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import TensorType, to_numpy
from clew.ops.math.dense_codes import pack_codes, panels_of_rows
from clew.ops.registry import get_op
from clew.support.errors import UnsupportedError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

from .onnx_models import run, same

_RNG = np.random.default_rng(3)


def _op(name: str, *args: Expr, **attrs: Any) -> Call:
    return get_op(name)(*args, **attrs)


def _var(name: str, *shape: int, dtype: str = "f32") -> Var:
    return Var(name, TensorType(shape, dtype))


def _drawn(param: Var) -> np.ndarray[Any, Any]:
    dtype, shape = param.tensor.dtype, param.tensor.concrete
    if dtype[0] in "iu":
        return _RNG.integers(0, 9, shape).astype(to_numpy(dtype))
    return np.asarray(_RNG.standard_normal(shape)).astype(to_numpy(dtype))


def _agrees(function: Function, tolerance: float = 1e-5) -> onnx.ModelProto:
    """Compares a function's model with the interpreter, and returns it."""
    names = tuple(f"result{n}" for n in range(len(function.body.type.fields)))
    module = Module({"main": Function(function.params, function.body, {"outputs": names})})
    inputs = {p.name: _drawn(p) for p in function.params}
    expected = list(interpret(module, inputs).values())
    written = write(function)
    same(run(written, inputs), expected, tolerance)
    read = load(written.model)
    fed = dict(zip(written.inputs, inputs.values(), strict=True))
    same(list(interpret(read, fed).values()), expected, tolerance)
    return written.model


def _kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


_BLOCK = """
clew 1
def @main(
  %x: f32[4, 8],  // input x
  %w: f32[8, 8]  // input w
) -> (f32[4, 8],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // dense:MatMul#0
  %1 = rsqrt(%0)  // norm:Rsqrt#0
  %2 = add(%1, %x)  // dense:MatMul#0
  %4 = (%2,)
  return %4
}
"""


def test_names_of_nodes_lead_to_layers() -> None:
    main = parse_module(_BLOCK).main
    written = write(main, name="block")
    assert written.model.graph.name == "block"
    assert [node.name for node in written.model.graph.node] == [
        "dense:MatMul#0",
        "norm:Rsqrt#0",
        "norm:Rsqrt#0 [2]",
        "dense:MatMul#0 [2]",
    ]
    assert written.outputs == ("y",)
    assert written.inputs == ("x", "w")
    assert written.layers("norm:Rsqrt#0 [2]") == ("norm",)
    assert written.layers("y") == ()
    assert [c.op_name for c in written.calls["dense:MatMul#0 [2]"]] == ["add"]


def test_a_label_of_many_layers_names_the_first_ones() -> None:
    with building(Span(Source(f"layer{n}", "Add", "t") for n in range(20))):
        call = _op("negative", _var("x", 3))
    (name,) = write(Function(call.args, call)).calls
    assert name.startswith("layer0:Add, layer1:Add")
    assert name.endswith("layer3:Add, …")


def test_names_of_engines_lead_to_nodes() -> None:
    x = _var("x", 3)
    value: Expr = x
    for n in (1, 10, 1):
        with building(Span([Source(f"n{n}", "Neg", "t")])):
            value = _op("negative", value)
    written = write(Function((x,), value))
    assert sorted(written.calls) == ["n10:Neg", "n1:Neg", "n1:Neg [2]"]
    assert written.nodes_in("n1:Neg_nchwc") == ("n1:Neg",)
    assert written.nodes_in("n1:Neg [2]_token_3") == ("n1:Neg [2]",)
    assert written.nodes_in("n10:Neg,n1:Neg [2],n1:Neg/Fused") == (
        "n10:Neg", "n1:Neg [2]", "n1:Neg",
    )  # fmt: skip
    assert written.nodes_in("ReorderOutput") == ()
    assert written.nodes_in("an1:Neg, n1:Neg [4]") == ()
    assert write(Function((x,), Tuple([x]))).nodes_in("x") == ()


def test_equal_names_of_parameters_and_layers_stay_apart() -> None:
    x, y = _var("x", 3), _var("x", 3)
    with building(Span([Source("x", "", "t")])):
        call = _op("subtract", x, y)
    written = write(Function((x, y), Tuple([call])))
    assert len(set(written.inputs) | {n.name for n in written.model.graph.node}) == 3
    a, b = _drawn(x), _drawn(y)
    same(run(written, {"a": a, "b": b}), [a - b])


def test_results_that_are_no_results_of_calls() -> None:
    x = _var("x", 2, 3)
    twice, fixed = _op("negative", x), Constant(np.arange(3, dtype=np.float32))
    model = _agrees(Function((x,), Tuple([x, twice, twice, fixed, x])))
    assert _kinds(model) == ["Neg", "Identity", "Identity", "Identity", "Identity"]


def test_parameters_without_readers() -> None:
    x, y = _var("x", 2), _var("y", 3)
    _agrees(Function((x, y), Tuple([_op("negative", x)])))


def test_fields_of_tuples() -> None:
    x = _var("x", 2, 7)
    parts = _op("split", x, sizes=(3, 4), axis=1)
    _agrees(Function((x,), Tuple([TupleGetItem(parts, 1), TupleGetItem(parts, 0)])))


def test_composite_functions_are_written_as_their_bodies() -> None:
    p, q = _var("p", 3, 4), _var("q", 4)
    gated = Function(
        (p, q), _op("multiply", _op("add", p, q), _op("sigmoid", p)), {"composite": "gated"}
    )
    x, w = _var("x", 3, 4), _var("w", 4)
    once = Call(gated, (x, w))
    model = _agrees(Function((x, w), Tuple([Call(gated, (once, w))])))
    assert sorted(_kinds(model)) == ["Add", "Add", "Mul", "Mul", "Sigmoid", "Sigmoid"]


def test_a_constant_of_a_composite_function_is_held_once() -> None:
    p = _var("p", 4)
    shifted = Function((p,), _op("add", p, Constant(np.ones(4, "f4"))), {"composite": "shifted"})
    x = _var("x", 4)
    model = _agrees(Function((x,), Tuple([Call(shifted, (Call(shifted, (x,)),))])))
    assert len(model.graph.initializer) == 1


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i64", "i16", "u8", "u32", "bool"])
def test_values_of_each_dtype(dtype: str) -> None:
    x = _var("x", 2, 3, dtype=dtype)
    fixed = Constant(_drawn(_var("c", 1, 3, dtype=dtype)))
    joined = _op("concatenate", x, fixed, axis=0)
    moved = _op("transpose", joined, axes=(1, 0))
    _agrees(Function((x,), Tuple([_op("slice", moved, begin=(1,), end=(3,), axes=(0,))])))


# --- joined calls -----------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_and_its_bias_are_one_node(rank: int, transposed: bool) -> None:
    space = (6, 5, 4)[:rank]
    data = _var("x", 2, 3, *space)
    shape = (3, 4) if transposed else (4, 3)
    weight = Constant(_drawn(_var("w", *shape, *(2,) * rank)))
    suffix = "_transpose" if transposed else ""
    spatial = {1: "W", 2: "HW", 3: "DHW"}[rank]
    attrs = {} if transposed else {"data_layout": f"NC{spatial}", "weight_layout": f"OI{spatial}"}
    conv = _op(f"nn.conv{rank}d{suffix}", data, weight, **attrs)
    for bias in (_drawn(_var("b", 4, *(1,) * rank)), _drawn(_var("b", 1, 4, *(1,) * rank))):
        model = _agrees(Function((data,), Tuple([_op("add", Constant(bias), conv)])))
        assert _kinds(model) == ["ConvTranspose" if transposed else "Conv"]
        assert len(model.graph.node[0].input) == 3


def test_a_convolution_that_others_read_keeps_its_result() -> None:
    data, weight = _var("x", 1, 3, 5, 5), Constant(_drawn(_var("w", 4, 3, 3, 3)))
    conv = _op("nn.conv2d", data, weight)
    biased = _op("add", conv, Constant(_drawn(_var("b", 4, 1, 1))))
    assert _kinds(_agrees(Function((data,), Tuple([biased, conv])))) == ["Conv", "Add"]


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (3, 1), (1, 4, 3, 3), (4, 4, 3, 3)])
def test_what_is_added_may_be_no_bias(shape: tuple[int, ...]) -> None:
    data, weight = _var("x", 1, 3, 5, 5), Constant(_drawn(_var("w", 4, 3, 3, 3)))
    other = Constant(_drawn(_var("b", *shape)))
    conv = _op("nn.conv2d", data, weight)
    assert _kinds(_agrees(Function((data,), Tuple([_op("add", conv, other)])))) == ["Conv", "Add"]


def _finished(op: str, total: Expr, scale: Expr, zero: int | None, dtype: str) -> Call:
    points = [] if zero is None else [Constant(np.asarray(zero, to_numpy(dtype)))]
    steps = [Constant(np.float32(0.3))] if op == "fake_quantize" else []
    return _op(op, total, scale, *steps, *points, dtype=dtype)


@pytest.mark.parametrize("op", ["requantize", "fake_quantize"])
@pytest.mark.parametrize("zero", [None, 7])
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_quantized_convolutions(op: str, zero: int | None, dtype: str) -> None:
    data = _var("x", 1, 3, 6, 6, dtype=dtype)
    weight = Constant(_RNG.integers(-9, 9, (4, 3, 3, 3)).astype("i1"))
    bias = Constant(_RNG.integers(-99, 99, (4, 1, 1)).astype("i4"))
    each = Constant(_RNG.uniform(0.01, 0.1, (4, 1, 1)).astype("f4"))
    one = Constant(np.float32(0.0317))
    conv = _op("nn.conv2d", data, weight, padding=(1, 1, 1, 1))
    for total, scale in ((_op("add", conv, bias), each), (conv, each), (conv, one)):
        model = _agrees(Function((data,), Tuple([_finished(op, total, scale, zero, dtype)])))
        operands = 2 if total is conv else 3
        more = ["DequantizeLinear"] if op == "fake_quantize" else []
        assert _kinds(model) == [
            *["DequantizeLinear"] * operands, "Conv", "QuantizeLinear", *more
        ]  # fmt: skip


@pytest.mark.parametrize("op", ["requantize", "fake_quantize"])
@pytest.mark.parametrize("layout", ["NK", "KN"])
@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)])
def test_quantized_products(op: str, layout: str, shape: tuple[int, ...]) -> None:
    data = _var("x", *shape, dtype="u8")
    matrix = _RNG.integers(-9, 9, (8, 3)).astype("i1")
    weight = Constant(matrix if layout == "KN" else np.ascontiguousarray(matrix.T))
    dense = _op("nn.dense", data, weight, weight_layout=layout)
    point = Constant((-5 * matrix.sum(0, dtype="i4")).astype("i4"))
    bias = Constant(np.array([31, -77, 5], "i4"))
    scale = Constant(np.array([0.0317, 0.1013, 0.0529], "f4"))  # no sum is a tie
    tail = ["DequantizeLinear"] if op == "fake_quantize" else []
    for total in (dense, _op("add", dense, point)):
        model = _agrees(Function((data,), Tuple([_finished(op, total, scale, 3, "u8")])))
        assert _kinds(model)[2:] == ["MatMul", "QuantizeLinear", *tail]
    points = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert any(points.get(n.input[2]) == 5 for n in model.graph.node if n.input[0] == "x")
    last = _finished(op, _op("add", dense, bias), scale, 3, "u8")
    model = _agrees(Function((data,), Tuple([last])))
    assert "Gemm" in _kinds(model)
    assert "MatMulInteger" not in _kinds(model)


def test_quantized_layers_of_other_integers_stay_apart() -> None:
    data = _var("x", 1, 3, 6, 6, dtype="u8")
    weight = Constant(_RNG.integers(-9, 9, (4, 3, 3, 3)).astype("i1"))
    conv = _op("nn.conv2d", data, weight)
    scale = Constant(np.float32(0.03))
    for last in (
        _finished("requantize", conv, scale, None, "i8"),
        _op("requantize", conv, scale, Constant(np.arange(4, dtype="u1").reshape(4, 1, 1))),
    ):
        assert _kinds(_agrees(Function((data,), Tuple([last]))))[0] == "ConvInteger"


def _in_own_range(x: Var, levels: float = 255.0) -> tuple[Call, Call, Call]:
    """Returns a tensor quantized in its own range, the scale and the zero point."""
    none, axes = Constant(np.float32(0)), (0, 1)
    high = _op("maximum", _op("max", x, axes=axes, keepdims=False), none)
    low = _op("minimum", _op("min", x, axes=axes, keepdims=False), none)
    scale = _op("divide", _op("subtract", high, low), Constant(np.float32(levels)))
    offset = _op("subtract", none, _op("divide", low, scale))
    point = _op("cast", _op("round", _op("clip", offset, min=0.0, max=255.0)), dtype="u8")
    return _op("quantize", x, scale, point), scale, point


@pytest.mark.parametrize("layout", ["NK", "KN"])
def test_tensors_in_their_own_range(layout: str) -> None:
    x = _var("x", 5, 8)
    matrix = _RNG.integers(-9, 9, (8, 3)).astype("i1")
    weight = Constant(matrix if layout == "KN" else np.ascontiguousarray(matrix.T))
    quantized, scale, point = _in_own_range(x)
    dense = _op("nn.dense", quantized, weight, weight_layout=layout)
    sums = Constant(matrix.sum(0, dtype="i4").astype("i4"))
    share = _op("multiply", _op("cast", point, dtype="i32"), sums)
    total = _op("cast", _op("subtract", dense, share), dtype="f32")
    result = _op("multiply", total, scale)
    model = _agrees(Function((x,), Tuple([result, scale])))
    kinds = _kinds(model)
    assert kinds[:4] == ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul"]
    other = Constant((matrix.sum(0, dtype="i4") + 1).astype("i4"))
    share = _op("multiply", _op("cast", point, dtype="i32"), other)
    model = _agrees(Function((x,), Tuple([_op("subtract", dense, share)])))
    assert "Sub" in _kinds(model)


def test_tensors_in_other_ranges() -> None:
    x = _var("x", 5, 8)
    quantized, _, _ = _in_own_range(x, levels=127.0)
    assert "DynamicQuantizeLinear" not in _kinds(_agrees(Function((x,), Tuple([quantized]))))


def _codes_layer(x: Var, bits: int, parts: int, zeros: bool, *, fold: int = 0) -> Call:
    """Returns a product with a weight of few bits, `[16, 5]`, as MultiplyCodes builds it: with
    three parts, that of bytes.
    """
    block, width, words = 16, 8, "u8" if parts == 3 else "i16"
    half = 1 << (bits - 1)
    middle = half if words == "u8" else 0
    codes = _RNG.integers(-half, half, (5, 32)) + middle
    form = {"block": block, "parts": parts, "dtype": "i8" if parts == 3 else "i16"}
    steps = _op("block_steps", x, **form)
    rounded = _op("round_blocks", x, steps, **form)
    numbers = _RNG.uniform(0.5, 1.5, (5, 2)).astype("f4")
    operands: list[Expr] = [Constant(pack_codes(codes, bits, width, words))]
    if fold:
        scales = _RNG.integers(1, 64, (5, 2)).astype("i1")
        pair = scales, numbers[:, ::fold].astype("f2")
        operands += [Constant(panels_of_rows(a, width)) for a in pair]
    else:
        operands.append(Constant(panels_of_rows(numbers, width)))
    if zeros or middle:
        rows = x.tensor.concrete[0]
        blocks = _op("reshape", rounded, shape=(rows, parts, 2, block))
        operands.append(_op("sum", _op("cast", blocks, dtype="i32"), axes=(3,), keepdims=False))
    if zeros:
        points = _RNG.integers(-half, half, (5, 2)).astype("i1")
        operands.append(Constant(panels_of_rows(points, width)))
    del form["dtype"]
    return _op(
        "nn.dense_codes", rounded, steps, *operands, bits=bits, **form, units=5, zero=middle,
        fold=fold,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("zeros", [False, True])
def test_products_with_weights_of_few_bits(bits: int, parts: int, zeros: bool) -> None:
    x = _var("x", 3, 32)
    first, second = (_codes_layer(x, bits, parts, zeros) for _ in range(2))
    function = Function((x,), Tuple([first, second]))
    assert _kinds(_agrees(function, 1e-4)) == ["DequantizeLinear", "MatMul"] * 2
    assert len(write(function).calls) == 4


@pytest.mark.parametrize("parts", [2, 3])
def test_scales_that_are_codes(parts: int) -> None:
    x = _var("x", 3, 32)
    layer = _codes_layer(x, 4, parts, True, fold=2)
    assert _kinds(_agrees(Function((x,), Tuple([layer])), 1e-4))[-1] == "MatMul"
    assert "Round" in _kinds(_agrees(Function((x,), Tuple([layer, layer.args[0]])), 1e-4))


def test_rounded_data_that_others_read_are_written() -> None:
    x = _var("x", 3, 32)
    layer = _codes_layer(x, 4, 2, False)
    model = _agrees(Function((x,), Tuple([layer, layer.args[0]])), 1e-4)
    assert "Round" in _kinds(model)


# --- refusals ---------------------------------------------------------------------------------


def test_reasons_why_a_call_has_no_form() -> None:
    x = _var("x", 2, 3)
    assert can_write(_op("add", x, x)) is None
    assert can_write(_op("cumprod", x, axis=1)) == (
        "no ONNX operators of the same meaning are known"
    )
    packed = _op("nn.dense", x, _var("w", 1, 3, 4), weight_layout="NK4n")
    assert can_write(packed) == "the weight is packed as NK4n"
    short = _op("sum", _var("s", 3, dtype="i8"), axes=(0,))
    assert can_write(short) == "ONNX defines ReduceSum for no i8"
    assert can_write(_op("nonzero", x)) is not None
    assert (
        can_write(_op("slice", x, begin=(0,), end=(0,), axes=(0,))) == "f32[0, 3] has no elements"
    )


def test_a_refused_call_is_an_error_with_its_layer() -> None:
    x = _var("x", 2, 3)
    with building(Span([Source("scan", "CumProd", "t")])):
        call = _op("cumprod", x, axis=1)
    with pytest.raises(UnsupportedError, match="cumprod has no ONNX form: no ONNX") as caught:
        to_onnx(Function((x,), call))
    assert (caught.value.code, caught.value.layer) == ("U070", "scan")


def test_scales_of_images_that_round_either_way() -> None:
    x = _var("x", 1, 1, 10, 10)
    sizes: dict[str, Any] = {"shape": (1, 1, 6, 20), "scales": (1.0, 1.0, 0.7, 2.0)}
    assert can_write(_op("resize", x, **sizes)) == (
        "scales of (1.0, 1.0, 0.7, 2.0) may not give (1, 1, 6, 20)"
    )
    exact = _op("resize", x, shape=(1, 1, 5, 20), scales=(1.0, 1.0, 0.5, 2.0), mode="linear")
    _agrees(Function((x,), Tuple([exact])))


def test_quantized_floats_with_parameters_along_several_axes() -> None:
    x = _var("x", 3, 4)
    rows, columns = (_RNG.uniform(9, 11, shape).astype("f4") for shape in ((3, 1), (4,)))
    points = Constant(np.arange(3, dtype="u1").reshape(3, 1))
    for scale, kind in ((rows, "QuantizeLinear"), (columns, "Mul")):
        call = _op("requantize", x, Constant(scale), points)
        assert kind in _kinds(_agrees(Function((x,), Tuple([call]))))


def test_values_that_are_no_numbers_are_refused() -> None:
    x = _var("x", 3)
    for body in (Tuple([x, Constant(np.array([1j], "c8"))]), Tuple([_var("t", 2, dtype="str")])):
        params = [x, *(f for f in body.fields if isinstance(f, Var) and f is not x)]
        with pytest.raises(UnsupportedError, match="has no ONNX form"):
            to_onnx(Function(params, body))


def test_tuples_in_tuples_are_refused() -> None:
    x = _var("x", 3)
    with pytest.raises(UnsupportedError, match="U070"):
        to_onnx(Function((x,), Tuple([Tuple([x]), x])))


def test_functions_that_are_not_composite_are_refused() -> None:
    p, x = _var("p", 3), _var("x", 3)
    kernel = Function((p,), _op("negative", p), {"primitive": True})
    with pytest.raises(UnsupportedError, match="U070"):
        to_onnx(Function((x,), Call(kernel, (x,))))


def test_free_sizes_are_refused() -> None:
    module = parse_module(
        "clew 1\ndef @main(%x: f32[n]) -> f32[n] {\n  %0 = negative(%x)\n  return %0\n}\n"
    )
    with pytest.raises(UnsupportedError) as caught:
        to_onnx(module.main)
    assert caught.value.code == "U070"


def test_large_constants_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _var("x", 4, 4)
    call = _op("add", x, Constant(np.ones((4, 4), "f4")))
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 63)
    with pytest.raises(UnsupportedError, match="64 bytes") as caught:
        to_onnx(Function((x,), call))
    assert caught.value.code == "U071"
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 64)
    onnx.checker.check_model(to_onnx(Function((x,), call)), full_check=True)


def _less(index: Var, limit: int) -> Expr:
    return _op("less", index, Constant(np.int64(limit)))


@pytest.mark.parametrize("trips", [3, None])
def test_loops(trips: int | None) -> None:
    x, start = _var("x", 2, 3), _var("start", 2, 3)
    index, state, kept = _var("i", dtype="i64"), _var("s", 2, 3), _var("k", 2, 3)
    after = _op("add", _op("multiply", state, Constant(np.full((2, 3), 2, "f4"))), kept)
    fields = [after, kept, *([state] if trips else [])]
    body = Function((index, state, kept), Tuple(fields))
    cond = Function((index, state, kept), _less(index, 3))
    loop = While(cond, body, [start, x], scans=len(fields) - 2, trips=trips)
    results = [TupleGetItem(loop, n) for n in range(len(fields))]
    summed = _op("add", results[0], x)
    model = _agrees(Function((x, start), Tuple([summed, *results])))
    assert "Loop" in _kinds(model)
    onnx.checker.check_model(model, full_check=True)


def test_a_loop_whose_state_is_a_constant_and_whose_results_are_unused() -> None:
    x = _var("x", 3)
    index, one, two = _var("i", dtype="i64"), _var("a", 3), _var("b", 3)
    body = Function((index, one, two), Tuple([two, one]))
    cond = Function((index, one, two), _less(index, 5))
    loop = While(cond, body, [x, Constant(np.arange(3, dtype="f4"))], trips=5)
    model = _agrees(Function((x,), Tuple([TupleGetItem(loop, 0)])))
    assert _kinds(model) == ["Loop"]


def test_branches_read_values_around_them() -> None:
    x, flag = _var("x", 2, 3), _var("flag", dtype="i64")
    a, b = _var("a", 2, 3), _var("b", 2, 3)
    weight = Constant(np.full((2, 3), 3, "f4"))
    doubled = _op("add", x, x)
    branches = [Function((a,), _op("multiply", a, weight)), Function((b,), b)]
    for limit in (0, 9):
        chosen = If(_less(flag, limit), branches[0], branches[1], [doubled])
        model = _agrees(Function((x, flag), Tuple([chosen, doubled])))
        assert "If" in _kinds(model)
        onnx.checker.check_model(model, full_check=True)


def test_a_loop_of_another_size_each_time_is_refused() -> None:
    x = _var("x", 3)
    index, state = _var("i", dtype="i64"), _var("s", 3)
    body = Function((index, state), Tuple([state, state]))
    loop = While(Function((index, state), _less(index, 3)), body, [x], scans=1)
    with pytest.raises(UnsupportedError, match="U070"):
        to_onnx(Function((x,), Tuple([TupleGetItem(loop, 1)])))
