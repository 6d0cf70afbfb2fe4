"""Operators as operator sets 1 to 6 had them, and that no version's attribute goes unread."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

import clew
from clew.frontends.onnx import load
from clew.frontends.onnx.converters import old as converters_old
from clew.frontends.onnx.file.survey import function_body
from clew.frontends.onnx.registry import _OLD_FORMS, find
from clew.ir.interpret import interpret
from clew.support.errors import ClewError

ARRAY = np.ndarray[Any, Any]
DRAW = np.random.default_rng(3)


def draw(*shape: int) -> ARRAY:
    return DRAW.standard_normal(shape).astype(np.float32)


def model(op, feeds, opset, constants=None, count=1, kind=TensorProto.UNDEFINED, **attributes):
    constants = constants or {}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in {**feeds, **constants}.items()  # before IR 4 an initializer is an input too
    ]
    results = [f"y{n}" for n in range(count)]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n in results]
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    node = helper.make_node(op, [*feeds, *constants], results, **attributes)
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def gives(want, op, feeds, opset, constants=None, **attributes):
    """The old form gives what is wanted, natively and interpreted, and ONNX Runtime agrees."""
    wanted = want if isinstance(want, list) else [want]
    made = model(op, feeds, opset, constants, len(wanted), **attributes)
    for found in (clew.compile(made, threads=1).run(feeds), interpret(load(made), feeds)):
        for value, other in zip(found.values(), wanted, strict=True):
            assert value.dtype == other.dtype
            assert value.shape == other.shape
            np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
    return made


def refused(code, op, feeds, opset, constants=None, **attributes):
    with pytest.raises(ClewError) as caught:
        load(model(op, feeds, opset, constants, **attributes))
    assert caught.value.code == code, caught.value


# --- broadcasting that is asked for ---------------------------------------------------------------

ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_axes_of_the_second_lie_where_axis_says(op, opset):
    a, b = draw(2, 3, 3, 5), draw(3, 3) + 4
    gives(ARITHMETIC[op](a, b[:, :, None]), op, {"a": a, "b": b}, opset, broadcast=1, axis=1)
    gives(
        ARITHMETIC[op](a, b[:, 0, None, None]),
        op,
        {"a": a, "b": b[:, 0]},
        opset,
        broadcast=1,
        axis=1,
    )
    square = draw(3, 3)
    gives(
        ARITHMETIC[op](square, b[0, :, None]),
        op,
        {"a": square, "b": b[0]},
        opset,
        broadcast=1,
        axis=0,
    )


def test_axes_of_the_second_are_the_last_ones_by_default():
    a = draw(2, 3, 4)
    gives(a + a[0], "Add", {"a": a, "b": a[0]}, 6, broadcast=1)
    gives(a + np.float32(2), "Add", {"a": a}, 6, {"b": np.full((1, 1), 2, np.float32)}, broadcast=1)
    gives(a + np.float32(2), "Add", {"a": a}, 6, {"b": np.float32(2)}, broadcast=1)


def test_comparisons_and_truths():
    a, b = draw(2, 3, 4), draw(3)
    column = b[:, None]
    for op, rule in (("Greater", np.greater), ("Less", np.less)):
        gives(rule(a, column), op, {"a": a, "b": b}, 1, broadcast=1, axis=1)
    for op, rule in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)):
        gives(rule(a > 0, column > 0), op, {"a": a > 0, "b": b > 0}, 1, broadcast=1, axis=1)
    whole = (a * 2).astype(np.int32)
    gives(
        whole == whole[0, :, :1], "Equal", {"a": whole, "b": whole[0, :, 0]}, 1, broadcast=1, axis=1
    )
    gives(np.abs(a) ** column, "Pow", {"a": np.abs(a), "b": b}, 1, broadcast=1, axis=1)


def test_unequal_shapes_are_refused_where_broadcast_is_not_asked_for():
    a = draw(2, 3, 4)
    refused("M012", "Add", {"a": a, "b": a[0]}, 6)
    refused("M012", "Add", {"a": a, "b": draw(5)}, 6, broadcast=1)
    refused("M012", "Add", {"a": a, "b": draw(3, 4)}, 6, broadcast=1, axis=2)
    refused("M012", "Add", {"a": a[0], "b": a}, 6, broadcast=1)
    refused("M012", "Mul", {"a": a, "b": draw(3)}, 6, broadcast=1, axis=7)


@pytest.mark.parametrize("opset", [1, 6])
def test_prelu_has_a_slope_a_channel(opset):
    x, slope = draw(2, 3, 4, 4), draw(3)
    want = np.where(x < 0, x * slope[:, None, None], x)
    gives(want, "PRelu", {"x": x}, opset, {"slope": slope})
    gives(np.where(x < 0, x * slope[0], x), "PRelu", {"x": x}, opset, {"slope": slope[:1]})


def test_gemm_adds_a_vector_where_broadcast_is_asked_for():
    a, b, c = draw(2, 3), draw(3, 4), draw(4)
    gives(a @ b + c, "Gemm", {"a": a}, 6, {"b": b, "c": c}, broadcast=1)
    gives(a @ b + draw(2, 4) * 0, "Gemm", {"a": a}, 1, {"b": b, "c": np.zeros((2, 4), np.float32)})
    refused("M012", "Gemm", {"a": a}, 6, {"b": b, "c": c})


# --- attributes that became inputs, or changed ----------------------------------------------------


def test_what_was_an_attribute():
    x = draw(2, 3, 4)
    gives(x.reshape(2, 12), "Reshape", {"x": x}, 1, shape=[0, -1])
    gives(np.pad(x[0], ((1, 0), (2, 3))), "Pad", {"x": x[0]}, 1, paddings=[1, 2, 0, 3])
    gives(x.astype(np.int32), "Cast", {"x": x}, 1, to="INT32")
    gives(np.minimum(x, 0.5), "Clip", {"x": x}, 1, max=0.5)
    gives(np.clip(x, -0.5, 0.5), "Clip", {"x": x}, 6, min=-0.5, max=0.5)
    gives(np.concatenate([x, x], 1), "Concat", {"x": x, "z": x}, 1)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :2]
    best = np.take_along_axis(x, order, -1)
    gives([best, order], "TopK", {"x": x}, 1, k=2)
    gives([best, order], "TopK", {"x": x}, 9, k=2, axis=2)
    image = draw(1, 2, 3, 4)
    wide = image.repeat(2, 2).repeat(3, 3)
    gives(wide, "Upsample", {"x": image}, 1, height_scale=2.0, width_scale=3.0, mode="nearest")
    refused("M012", "Cast", {"x": x}, 1, to="NUMBER")


def test_split_and_tile_by_inputs():
    x = draw(4, 3)
    gives([x[:1], x[1:]], "Split", {"x": x}, 1, split=[1, 3])
    sizes = np.array([1, 2], np.float32)
    gives([x[:, :1], x[:, 1:]], "Split", {"x": x}, 1, {"sizes": sizes}, axis=1)
    axis = np.array([1], np.float32)
    gives(np.tile(x, (1, 2)), "Tile", {"x": x}, 1, {"n": np.array([2], np.float32), "axis": axis})
    gives(np.tile(x, (2, 1)), "Tile", {"x": x}, 1, {"n": np.float32(2), "axis": np.float32(0)})


def test_norms_of_a_real_order():
    x = draw(1, 2, 4, 4)
    want = np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True)).astype(np.float32)
    gives(want, "GlobalLpPool", {"x": x}, 1)
    gives(want, "LpPool", {"x": x}, 1, kernel_shape=[4, 4], p=2.0)
    refused("U005", "GlobalLpPool", {"x": x}, 1, p=1.5)


def test_pooling_leaves_padding_out():
    x = np.ones((1, 1, 2, 2), np.float32)
    gives(
        np.ones((1, 1, 3, 3), np.float32),
        "AveragePool",
        {"x": x},
        6,
        kernel_shape=[2, 2],
        pads=[1] * 4,
    )


def test_hints_about_memory_have_no_meaning():
    x = draw(2, 3)
    gives(np.maximum(x, 0), "Relu", {"x": x}, 1, consumed_inputs=[0])
    gives(x + x, "Sum", {"x": x, "z": x}, 1, consumed_inputs=[0, 0])
    gives(x + x, "Add", {"x": x, "z": x}, 1, consumed_inputs=[0, 0])


# --- training -------------------------------------------------------------------------------------


def test_statistics_and_dropout_of_a_test():
    x, one = draw(2, 3, 4), np.abs(draw(3)) + 1
    stored = {"scale": one, "b": one, "mean": one, "var": one}
    want = (x - one[:, None]) / np.sqrt(one[:, None] + 1e-5) * one[:, None] + one[:, None]
    gives(want, "BatchNormalization", {"x": x}, 6, stored, is_test=1)
    gives(want, "BatchNormalization", {"x": x}, 1, stored, is_test=1, consumed_inputs=[0] * 5)
    gives(x, "Dropout", {"x": x}, 6, is_test=1, ratio=0.4)
    refused("U005", "BatchNormalization", {"x": x}, 6, stored)
    refused("U005", "Dropout", {"x": x}, 6)


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent(op, gates):
    """As version 7 computes it (the older ones differ in how the output is asked for)."""
    x, hidden = draw(5, 2, 3), 4
    weights = {"w": draw(1, gates * hidden, 3), "r": draw(1, gates * hidden, hidden)}
    new = model(op, {"x": x}, 7, weights, 2, TensorProto.FLOAT, hidden_size=hidden)
    want = ort.InferenceSession(new.SerializeToString()).run(None, {"x": x})
    gives(want, op, {"x": x}, 1, weights, hidden_size=hidden, output_sequence=1)


# --- others ---------------------------------------------------------------------------------------


def test_onnx_converts_to_the_same():
    """What `onnx.version_converter` makes of old models computes the same."""
    a, b, x = draw(2, 3, 4), draw(3, 4), draw(1, 2, 4, 4)
    made = [
        ("Add", {"a": a, "b": b}, 6, {"broadcast": 1}),
        ("Mul", {"a": a, "b": a}, 6, {}),
        ("Reshape", {"a": a}, 4, {"shape": [4, 6]}),
        ("AveragePool", {"x": x}, 6, {"kernel_shape": [3, 3], "pads": [1] * 4}),
    ]
    for op, feeds, opset, attributes in made:
        old = model(op, feeds, opset, kind=TensorProto.FLOAT, **attributes)
        new = version_converter.convert_version(old, 8)
        want = ort.InferenceSession(new.SerializeToString()).run(None, feeds)[0]
        np.testing.assert_allclose(interpret(load(old), feeds)["y0"], want, rtol=1e-5, atol=1e-6)


# Attributes that converters do not read, and why that is right.
UNREAD = {
    ("*", "nodes_hitrates"): "how often a node is reached, for speed",
    ("*", "consumed_inputs"): "a hint about memory",
    ("*", "hidden_size"): "the weights tell",
    ("*", "stash_type"): "of sums in between: they are f32, or wider where the input is",
    ("LinearClassifier", "multi_class"): "ONNX Runtime and the reference make nothing of it",
    ("TopK", "sorted"): "unsorted is any order: sorted is one",
}


def schemas() -> Iterator[Any]:
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.deprecated:
            yield schema


def later(schema: Any) -> int:
    """Returns the version that an old form is put into."""
    return _OLD_FORMS[schema.name][0]


def strings_of(function: Any, seen: set[int]) -> Iterator[str]:
    """Yields all text constants in a function and in those of the frontend that it calls."""
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    stack = [code]
    while stack:
        part = stack.pop()
        for constant in part.co_consts:
            if isinstance(constant, (str, tuple)):
                yield from texts_in(constant)
            elif isinstance(constant, types.CodeType):
                stack.append(constant)
        for name in part.co_names:
            yield from strings_within(function.__globals__.get(name), seen)
    for cell in function.__closure__ or ():
        found = cell.cell_contents
        # A derived converter holds a line of the vocabulary: the foreign name of each attribute.
        parts = found.mapped.values() if hasattr(found, "mapped") else [found]
        for part in parts:
            yield from (part,) if isinstance(part, str) else strings_within(part, seen)


def texts_in(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, tuple):
        for part in constant:
            yield from texts_in(part)


def is_read(name: str, known: set[str], domain: str) -> bool:
    """Whether a converter that holds these texts reads an attribute. Those of ai.onnx.ml put names
    together of parts.
    """
    parts = [k for k in known if len(k) > 3] if domain else []
    return name in known or any(name.startswith(p) or name.endswith(p) for p in parts)


def strings_within(found: Any, seen: set[int]) -> Iterator[str]:
    if inspect.isclass(found) and found.__module__.startswith("clew.frontends"):
        for value in vars(found).values():
            yield from strings_of(getattr(value, "__func__", value), seen)
    elif callable(found) and getattr(found, "__module__", "").startswith("clew.frontends"):
        yield from strings_of(found, seen)


def test_every_attribute_of_every_version_is_read():
    """A converter that knows nothing of an attribute would be silently wrong."""
    unread, needed = [], set()
    for schema in schemas():
        domain = "" if schema.domain == "ai.onnx" else schema.domain
        function = find(domain, schema.name, schema.since_version)
        if function is None:
            continue
        known = set(strings_of(function, set()))
        # A method with a default argument reads the attribute of its name: axis().
        known |= {"axis"} if "axis" in str(inspect.getsource(function)) else set()
        if function.__module__ == converters_old.__name__:
            known |= set(strings_of(find("", schema.name, later(schema)), set()))
        for name in schema.attributes:
            if is_read(name, known, domain):
                continue
            key = ("*", name) if ("*", name) in UNREAD else (schema.name, name)
            needed.add(key)
            if key not in UNREAD:
                unread.append(f"{schema.name}-{schema.since_version}: {name}")
    assert not unread
    assert UNREAD.keys() == needed


def test_every_version_has_a_form_or_a_reason():
    """An operator that some version has a converter for is not missing in another."""
    names = {(s.domain, s.name) for s in schemas() if find(s.domain, s.name, s.since_version)}
    missing = [
        f"{s.name}-{s.since_version}"
        for s in schemas()
        if (s.domain, s.name) in names
        and find(s.domain, s.name, s.since_version) is None
        and function_body(s) is None
        and not s.has_context_dependent_function
    ]
    assert not missing
