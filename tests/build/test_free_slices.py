"""Slices whose bounds depend on free sizes: one compiled model is right at all sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew

FAR, BEFORE_ALL = 2**63 - 1, -(2**63)
SIZES = [(6, 3), (6, 6), (6, 7), (6, 20), (6, 1), (1, 1), (1, 3), (3, 0), (0, 3), (5, 2)]


def node(op, inputs, *outputs, **attrs):
    return helper.make_node(op, inputs, list(outputs), **attrs)


def compiled(nodes, constants, **options):
    """Returns a compiled model with the inputs `x: f32[a, N]` and `z: f32[M]`; `M` and `N` are
    values of the graph.
    """
    sizes = [
        node("Shape", ["z"], "M"),
        node("Shape", ["x"], "shape"),
        node("Gather", ["shape", "second"], "N"),
    ]
    inits = {"second": [1], "ax": [1], "zero": [0], "one": [1], "minus": [-1], "three": [3]}
    inits |= {"far": [FAR], "before": [BEFORE_ALL], **constants}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*sizes, *nodes],
        "g",
        [value("x", TensorProto.FLOAT, ["a", "N"]), value("z", TensorProto.FLOAT, ["M"])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(v, np.int64), name) for name, v in inits.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return clew.compile(model, threads=1, **options)


def drawn(n):
    return np.arange(2 * n, dtype=np.float32).reshape(2, n)


def sliced(begin, end, step="one"):
    return node("Slice", ["x", begin, end, "ax", step], "y")


MINUS_M = node("Neg", ["M"], "-M")
M_LESS_3 = node("Sub", ["M", "three"], "M-3")
CASES = {
    "-M:": ([MINUS_M, sliced("-M", "far")], lambda m: slice(-m, None)),
    ":-M": ([MINUS_M, sliced("zero", "-M")], lambda m: slice(None, -m)),
    "M:": ([sliced("M", "far")], lambda m: slice(m, None)),
    ":M": ([sliced("zero", "M")], lambda m: slice(None, m)),
    "-M:-1": ([MINUS_M, sliced("-M", "minus")], lambda m: slice(-m, -1)),
    "M::-1": ([sliced("M", "before", "minus")], lambda m: slice(m, None, -1)),
    ":-M:-1": ([MINUS_M, sliced("minus", "-M", "minus")], lambda m: slice(None, -m, -1)),
    "-1:-1-N:-1": (
        [node("Sub", ["minus", "N"], "-1-N"), sliced("minus", "-1-N", "minus")],
        lambda m: slice(None, None, -1),
    ),
    ":M:-1": ([sliced("minus", "M", "minus")], lambda m: slice(None, m, -1)),
    "M-3:": ([M_LESS_3, sliced("M-3", "far")], lambda m: slice(m - 3, None)),
    ":M-3": ([M_LESS_3, sliced("zero", "M-3")], lambda m: slice(None, m - 3)),
    "M-3::2": ([M_LESS_3, sliced("M-3", "far", "two")], lambda m: slice(m - 3, None, 2)),
}  # fmt: skip


def test_a_slice_backwards_to_before_the_first_element_is_right_at_given_sizes():
    """The place before the first element is -1, which would mean the last one."""
    twice = [node("Add", ["N", "N"], "2N"), node("Neg", ["2N"], "-2N")]
    model = compiled([*twice, sliced("minus", "-2N", "minus")], {}, sizes={"N": 3})
    found = model(drawn(3), np.zeros(2, np.float32))
    np.testing.assert_array_equal(found, drawn(3)[:, ::-1])


def expected(x, m, place):
    """Returns `x[:, place]`; if `m` is 0, `-m` counts from the front, as in ONNX and NumPy."""
    return x[:, place(m)]


@pytest.mark.parametrize("name", CASES)
def test_a_slice_is_right_at_all_sizes(name):
    nodes, place = CASES[name]
    model = compiled(nodes, {"two": [2]})
    for n, m in SIZES:
        x = drawn(n)
        found = model(x, np.zeros(m, np.float32))
        np.testing.assert_array_equal(found, expected(x, m, place), err_msg=f"N={n}, M={m}")


@pytest.mark.parametrize("step", [-1, -2])
def test_a_slice_backwards_begins_at_the_first_element_if_its_begin_lies_before_it(step):
    """Source: ONNX Slice-13; NumPy has no elements there."""
    nodes = [node("Neg", ["M"], "-M"), sliced("-M", "before", "step")]
    model = compiled(nodes, {"step": [step]})
    for n, m in SIZES:
        x = drawn(n)
        begin = max(n - m, 0) if m else 0
        found = model(x, np.zeros(m, np.float32))
        np.testing.assert_array_equal(found, x[:, begin::step], err_msg=f"N={n}, M={m}")


def test_the_whole_axis_as_its_last_elements():
    """`position_bias[:, -seq_length:]` of exported T5 encoders."""
    model = compiled([node("Neg", ["N"], "-N"), sliced("-N", "far")], {})
    assert model.outputs[0].shape == ("a", "N")
    for n in (1, 2, 7):
        np.testing.assert_array_equal(model(drawn(n), np.zeros(1, np.float32)), drawn(n))


def test_consumers_of_a_slice():
    """A roll by a free number: the parts join to the whole axis."""
    nodes = [
        MINUS_M,
        node("Slice", ["x", "-M", "far", "ax"], "last"),
        node("Slice", ["x", "zero", "-M", "ax"], "first"),
        node("Concat", ["last", "first"], "rolled", axis=1),
        node("Mul", ["rolled", "rolled"], "y"),
    ]
    model = compiled(nodes, {})
    assert model.outputs[0].shape == ("a", "N")
    for n, m in [(6, 2), (6, 6), (3, 1)]:
        found = model(drawn(n), np.zeros(m, np.float32))
        np.testing.assert_array_equal(found, np.roll(drawn(n), m, 1) ** 2)


def test_a_range_that_runs_backwards_is_empty():
    nodes = [
        M_LESS_3,
        node("Squeeze", ["M-3"], "begin"),
        node("Squeeze", ["N"], "end"),
        node("Range", ["begin", "end", "step"], "range"),
        node("Cast", ["range"], "y", to=TensorProto.FLOAT),
    ]
    model = compiled(nodes, {"step": 1})
    for n, m in SIZES:
        found = model(drawn(n), np.zeros(m, np.float32))
        np.testing.assert_array_equal(found, np.arange(m - 3, n), err_msg=f"N={n}, M={m}")


def test_a_long_chain_of_slices_has_one_build():
    """The sizes of slices of slices stay short."""
    links, nodes = 24, []
    for n in range(links):
        given = f"v{n}" if n else "x"
        nodes.append(node("Slice", [given, "one", "far", "ax"], f"a{n}"))
        nodes.append(node("Slice", [given, "zero", "minus", "ax"], f"b{n}"))
        nodes.append(node("Add", [f"a{n}", f"b{n}"], f"v{n + 1}" if n < links - 1 else "y"))
    model = compiled(nodes, {})
    for columns in (30, 25, 100):
        x = np.random.default_rng(columns).random((6, columns), np.float32)
        expected = x
        for _ in range(links):
            expected = expected[:, 1:] + expected[:, :-1]
        found = model.run({"x": x, "z": np.ones(3, np.float32)})["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert model.builds_made == 1
