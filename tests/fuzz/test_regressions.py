"""What the fuzzer found, one small case each, with what was wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew import te
from clew.frontends.onnx import load
from clew.ir.dims import SymDim
from clew.ir.expr import Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import TensorType
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError
from fuzz.case import model_of

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]


def results(nodes: list[Any], inputs: dict[str, Array], opset: int = 21, **options: Any) -> Array:
    """Returns what clew computes, which must be what its references say."""
    module = load(model_of(nodes, inputs, ["y"], opset))
    want = interpret(module, inputs)["y"]
    found = clew.compile(
        module, cache=False, diagnostics=clew.Diagnostics(guard=True), **options
    ).run(inputs)["y"]
    if want.dtype.kind == "f":
        np.testing.assert_allclose(found, want, rtol=1e-6)
    else:
        np.testing.assert_array_equal(found, want)
    return found


@pytest.mark.parametrize("alpha", [None, 0.3])
def test_attributes_are_f32_and_f64_operands_can_tell(alpha: float | None) -> None:
    """0.3 was read as the decimal it is written as, 4e-8 from what the standard's f32 says."""
    x = np.array([-1.0, -0.25, 2.0])
    given = {} if alpha is None else {"alpha": alpha}
    found = results([helper.make_node("LeakyRelu", ["x"], ["y"], **given)], {"x": x})
    np.testing.assert_array_equal(found[:2], x[:2] * float(np.float32(alpha or 0.01)))


def test_a_size_takes_part_in_expressions_of_elements() -> None:
    """`n - 1 - i` of a symbolic size ended in a TypeError."""

    @clew.register_op("regressions.turned", overwrite=True)
    def turned(x: te.Tensor) -> te.Tensor:
        """Turned round, written as one would."""
        n = x.shape[0]
        return te.compute(x.shape, lambda i: x[n - 1 - i] + te.cast("f32", 0 * i + n), "turned")

    x = Var("x", TensorType((SymDim.symbol("n"),), "f32"))
    module = Module({"main": Function([x], Tuple([turned(x)]), {"outputs": ("y",)})})
    compiled = clew.compile(module, cache=False)
    for size in (1, 5, 17):
        array = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(compiled(array), array[::-1] + size)


def test_whole_numbers_of_64_bits_are_multiplied_as_such() -> None:
    """References of products cut i64 to i32: the interpreter was wrong where kernels were not."""
    big = np.array([[2**40, -(2**63)], [3, 5]], np.int64)
    found = results([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": big})
    np.testing.assert_array_equal(found, big @ big)
    for dtype in (np.uint32, np.uint64):
        x = np.array([[np.iinfo(dtype).max, 2], [7, 1]], dtype)
        np.testing.assert_array_equal(
            results([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": x}), x @ x
        )


def test_sums_of_small_integers_keep_their_type() -> None:
    """Einsum of u8 gave i32, as products of small integers do inside."""
    x = np.array([[100, 2, 3], [250, 7, 9]], np.uint8)
    found = results([helper.make_node("Einsum", ["x", "x"], ["y"], equation="ij,kj->ik")], {"x": x})
    np.testing.assert_array_equal(found, x @ x.T)
    assert found.dtype == np.uint8


def test_erf_of_whole_numbers() -> None:
    """It was refused with T105, though the standard allows it."""
    x = np.array([-6, -1, 0, 1, 6], np.int16)
    found = results([helper.make_node("Erf", ["x"], ["y"])], {"x": x})
    np.testing.assert_array_equal(found, np.array([-1, 0, 0, 0, 1], np.int16))


def test_the_interpreter_takes_text_as_runs_do() -> None:
    """Arrays of objects, which ONNX's text is outside, were I023 in the interpreter alone."""
    x = np.array(["a", "Bc", ""], object)
    node = helper.make_node("StringConcat", ["x", "x"], ["y"])
    module = load(model_of([node], {"x": x}, ["y"]))
    assert interpret(module, {"x": x})["y"].tolist() == ["aa", "BcBc", ""]


def test_what_is_imported_late_binds_attributes_to_other_inputs() -> None:
    """A model whose sizes one input decides, and an axis another: the axis was left open, which
    ended in a TypeError.
    """
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    feeds = {"x": x, "shape": np.array([2, 3, 4]), "axis": np.array(1)}
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["c"]),
        helper.make_node("Expand", ["c", "shape"], ["e"]),
        helper.make_node("ReduceSum", ["e", "axis1"], ["y"], keepdims=0),
    ]
    feeds["axis1"] = np.array([0])
    compiled = clew.compile(model_of(nodes, feeds, ["y"]), cache=False)
    for axis in (1, 0, -1):
        for size in (2, 5):
            feeds |= {"axis": np.array(axis), "shape": np.array([size, 3, 4])}
            np.testing.assert_allclose(compiled.run(feeds)["y"], size * x.cumsum(axis))


@pytest.mark.parametrize("level", [0, 3])
def test_an_attribute_that_no_input_tells(level: int) -> None:
    """A pad's value out of an If was bound to a kernel, which cannot read it: a TypeError."""
    x = {"x": np.ones(3, np.float32), "v": np.array(5, np.float32), "c": np.array(True)}
    bodies = {}
    for branch, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        out = helper.make_tensor_value_info(branch, 1, [])
        node = helper.make_node(op, ["v"], [branch])
        bodies[branch] = helper.make_graph([node], branch, [], [out])
    nodes = [
        helper.make_node("If", ["c"], ["w"], **bodies),
        helper.make_node("Constant", [], ["p"], value_ints=[1, 1]),
        helper.make_node("Pad", ["x", "p", "w"], ["y"]),
    ]
    found = results(nodes, x, opt_level=level)
    np.testing.assert_array_equal(found, np.array([-5, 1, 1, 1, -5], np.float32))


def test_sums_along_an_axis_without_elements() -> None:
    """An exclusive CumSum took the first element of none: an IndexError of numpy's."""
    x = np.zeros((2, 0), np.int64)
    nodes = [helper.make_node("Constant", [], ["a"], value_int=1)]
    nodes.append(helper.make_node("CumSum", ["x", "a"], ["y"], exclusive=1, reverse=1))
    assert results(nodes, {"x": x}).shape == (2, 0)


def test_sigmoids_of_f16_far_below_zero() -> None:
    """The reference was zero below -11.1, where `exp(-x)` is past what f16 holds."""
    x = np.array([-11.92, -14, 3, np.inf, -np.inf], np.float16)
    node = helper.make_node("Sigmoid", ["x"], ["y"])
    module = load(model_of([node], {"x": x}, ["y"]))
    want = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float16)
    np.testing.assert_array_max_ulp(interpret(module, {"x": x})["y"], want, 2)
    np.testing.assert_array_max_ulp(clew.compile(module, cache=False).run({"x": x})["y"], want, 2)


def test_a_padded_row_times_another_summed() -> None:
    """The soak: a sum of products along a padded row was asked for its channels, and has none."""
    text = """clew 1
def @main(%x: f32[3, 7], %w: f32[3, 9]) -> (f32[3],) {
  %0: f32[3, 9] = pad(%x, pads=[0, 1, 0, 1])
  %1: f32[3, 9] = multiply(%0, %w)
  %2: f32[3] = sum(%1, axes=[1], keepdims=false)
  %3: (f32[3],) = (%2,)
  return %3
}
"""
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=(3, n)).astype(np.float32) for n in (7, 9))
    found = clew.compile(parse_module(text), cache=False)(x, w)
    np.testing.assert_allclose(found, (np.pad(x, ((0, 0), (1, 1))) * w).sum(1), rtol=1e-5)


def test_choices_among_whole_numbers_ahead_of_loops() -> None:
    """What a power's exponent is was used ahead of the loops in which it was computed: LLVM broke
    off.
    """
    x = np.array([[1, -3]], np.int64)
    for exponent in (0, 5):
        nodes = [
            helper.make_node("Constant", [], ["e"], value_int=exponent),
            helper.make_node("Pow", ["x", "e"], ["y"]),
        ]
        np.testing.assert_array_equal(results(nodes, {"x": x}), x**exponent)
    powers = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)]
    powers.append(helper.make_node("ReduceSum", ["a"], ["s"]))
    powers.append(helper.make_node("Pow", ["s", "b"], ["y"]))
    results(powers, {"x": np.abs(x)})


def test_quotients_of_large_whole_numbers() -> None:
    """The interpreter divided them as floats."""
    x, by = np.array([3980141829516427264, -(2**63), -7]), np.array([3, -1, 2])
    found = results([helper.make_node("Div", ["x", "by"], ["y"])], {"x": x, "by": by})
    np.testing.assert_array_equal(found, [1326713943172142421, -(2**63), -3])


def test_what_a_pass_found_of_a_function_outlives_loops_in_it() -> None:
    """A loop's body made AlterLayout forget what it had found of the function around: it divided by
    a block of no channels.
    """
    kind = TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "sum"], ["more"]),
            helper.make_node("Identity", ["on"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("iteration", kind, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", kind, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("more", kind, []),
        ],
    )
    weight = np.arange(-6, 6, dtype=np.int8).reshape(1, 2, 2, 3)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight)),
        helper.make_node("Loop", ["n", "", "start"], ["looped"], body=body),
        helper.make_node("ConvInteger", ["x", "w"], ["sums"], pads=[1, 1, 0, 1]),
        helper.make_node("Cast", ["looped"], ["added"], to=TensorProto.INT32),
        helper.make_node("Add", ["added", "sums"], ["y"]),
    ]
    x = np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4)
    results(nodes, {"x": x, "n": np.array(3), "start": np.array(2)})


def constant(name: str, value: Array) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_parts_of_constants_that_are_all_the_same(k: int) -> None:
    """What keeps a triangle of a tensor was taken for elementwise: all of a constant was kept."""
    x = np.full((5, 4), 1.5, np.float32)
    nodes = [
        constant("x", x),
        constant("k", np.array(k)),
        helper.make_node("Trilu", ["x", "k"], ["y"]),
    ]
    np.testing.assert_array_equal(results(nodes, {}), np.triu(x, k))


def test_constants_all_the_same_become_larger() -> None:
    """Of one element, its edge looks like a broadcast: folding broke off."""
    x = np.zeros((1, 1, 7, 7), np.int32)
    nodes = [constant("x", x), constant("pads", np.array([0, 0, 3, 3]))]
    nodes.append(constant("axes", np.array([1, -4])))
    nodes.append(constant("fill", np.array(0, np.int32)))
    nodes.append(helper.make_node("Pad", ["x", "pads", "fill", "axes"], ["y"]))
    assert results(nodes, {}).shape == (4, 4, 7, 7)
    nodes = [
        constant("x", np.ones((2, 1, 1, 1), np.float32)),
        constant("s", np.ones(4, np.float32)),
    ]
    more = {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}
    nodes.append(helper.make_node("Resize", ["x", "", "s"], ["y"], **more))
    np.testing.assert_array_equal(results(nodes, {}), np.ones((2, 1, 1, 1)))


def test_tensors_of_no_elements_have_addresses() -> None:
    """A remainder by a size of zero divided by it, and so did the bytes of an element."""
    x = np.zeros((0, 3, 17), np.float32)
    tiled = [constant("by", np.array([2, 2, 3])), helper.make_node("Tile", ["x", "by"], ["t"])]
    results([*tiled, helper.make_node("Sin", ["t"], ["y"])], {"x": x})
    a, b = (np.ones(s, np.float32) for s in ((7, 15, 7), (7, 0, 7)))
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Transpose", ["c"], ["t"], perm=[2, 0, 1]),
        helper.make_node("Reciprocal", ["t"], ["y"]),
    ]
    results(nodes, {"a": a, "b": b})


def test_no_indices_into_no_elements() -> None:
    nodes = [
        constant("i", np.zeros((4, 0), np.int64)),
        helper.make_node("Gather", ["x", "i"], ["y"]),
    ]
    assert results(nodes, {"x": np.zeros((0, 3), np.float32)}).shape == (4, 0, 3)


def test_remainders_of_huge_numbers() -> None:
    """A quotient of more than 24 bits was rounded: the remainder was larger than the divisor."""
    x, by = np.array([1e15, -3e38, 6], np.float32), np.array([0.27, 1e-40, -4], np.float32)
    found = results([helper.make_node("Mod", ["x", "by"], ["y"], fmod=1)], {"x": x, "by": by})
    np.testing.assert_array_equal(found, np.fmod(x, by))


def test_loops_over_a_size_that_is_worked_out() -> None:
    """How often a loop runs kept its symbols where sizes were known: what follows the loop was
    specialized again and again, until the stack was full.
    """
    frame = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5, 2]) for n in ("state", "row")
    ]
    made = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5, 2]) for n in ("more", "kept")
    ]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["more"]),
            helper.make_node("Identity", ["more"], ["kept"]),
        ],
        "body",
        frame,
        made,
    )
    nodes = [
        constant("step", np.array(4)),
        constant("length", np.array(8)),
        constant("window", np.ones(8, np.float32)),
        constant("start", np.zeros((2, 5, 2), np.float32)),
        helper.make_node("STFT", ["x", "step", "window", "length"], ["f"], onesided=1),
        helper.make_node(
            "Scan", ["start", "f"], ["last", "y"], body=body, num_scan_inputs=1,
            scan_input_axes=[1], scan_input_directions=[1], scan_output_directions=[1],
        ),
    ]  # fmt: skip
    x = np.random.default_rng(2).normal(size=(2, 16, 1)).astype(np.float32)
    model = model_of(nodes, {"x": x}, ["y"], 21)
    for n, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        if n < 2:
            dim.dim_param = f"n{n}"
    module = load(model)
    found = clew.compile(module, cache=False)(x)
    np.testing.assert_allclose(found, interpret(module, {"x": x})["y"], rtol=1e-4, atol=1e-4)


def test_a_loop_of_no_iterations_keeps_the_sizes_of_its_states() -> None:
    """What it stacks was of no elements in any axis whose size only the run tells."""
    flag, state = TensorProto.BOOL, TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Identity", ["s"], ["kept"]),
            helper.make_node("Identity", ["s"], ["row"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", flag, []),
            helper.make_tensor_value_info("s", state, None),
        ],
        [
            helper.make_tensor_value_info("still", flag, []),
            helper.make_tensor_value_info("kept", state, None),
            helper.make_tensor_value_info("row", state, None),
        ],
    )
    nodes = [
        helper.make_node("HannWindow", ["size"], ["s"]),
        helper.make_node("Loop", ["n", "on", "s"], ["last", "y"], body=body),
    ]
    inputs = {"size": np.array(3), "n": np.array(0), "on": np.array(True)}
    assert results(nodes, inputs).shape == (0, 3)
    assert results(nodes, {**inputs, "n": np.array(2)}).shape == (2, 3)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_products_of_short_integers_keep_their_type(op: str) -> None:
    """PyTorch's exporter writes them, against the standard; they came out as `i32`."""
    x, w = np.array([[300, -7], [2, 9]], np.int16), np.array([[200, 1], [5, 150]], np.int16)
    found = results([constant("w", w), helper.make_node(op, ["x", "w"], ["y"])], {"x": x})
    np.testing.assert_array_equal(found, x @ w)
    assert found.dtype == np.int16


def test_sizes_that_one_operand_knows_are_the_others() -> None:
    """Data of sizes that only the run tells beside indices of known ones was called invalid."""
    x, at = np.array([[[[1.0, 2.0]]]], np.float32), np.array([[[[0, 3]]]])
    nodes = [constant("at", at)]
    nodes.append(
        helper.make_node("MaxUnpool", ["x", "at"], ["y"], kernel_shape=[1, 2], strides=[1, 2])
    )
    model = model_of(nodes, {"x": x}, ["y"], 21)
    for n, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = f"n{n}"
    found = clew.compile(load(model), cache=False)(x)
    np.testing.assert_array_equal(found, [[[[1, 0, 0, 2]]]])


def test_hard_swish_of_f64_has_the_standards_sixth() -> None:
    """An attribute is an f32: of f64 operands the digits after it can be told."""
    x = np.array([-2.0, 0.7, 2.5])
    found = results([helper.make_node("HardSwish", ["x"], ["y"])], {"x": x}, opset=22)
    want = x * np.clip(x * float(np.float32(1 / 6)) + 0.5, 0, 1)
    np.testing.assert_allclose(found, want, rtol=1e-14)


def test_a_determinant_of_a_matrix_with_nan_is_nan() -> None:
    """No element equals the largest of a column that is NaN: the last row was taken for it."""
    x = np.array([[1, 2, 3], [np.nan, 1, -1], [0, 1, 2]], np.float32)
    found = results([helper.make_node("Det", ["x"], ["y"])], {"x": x}, opset=22)
    assert np.isnan(found)


@pytest.mark.parametrize(
    ("begin", "end", "step"),
    [(-5, 2**63 - 1, 1), (-1, -6, -1), (30, -(2**31), -1), (-9, -4, 2), (-6, 3, 1), (-4, -9, -1)],
)
def test_slices_from_behind_of_axes_that_are_shorter(begin: int, end: int, step: int) -> None:
    """Sizes with names were taken to be at least as large as what is counted from behind."""
    nodes = [
        *(constant(n, np.array([v])) for n, v in (("b", begin), ("e", end), ("s", step))),
        constant("a", np.array([0])),
        helper.make_node("Slice", ["x", "b", "e", "a", "s"], ["part"]),
        helper.make_node("EyeLike", ["part"], ["y"]),
    ]
    model = model_of(nodes, {"x": np.zeros((12, 4), np.float32)}, ["y"], 21)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    compiled = clew.compile(load(model), cache=False)
    for n in (12, 3, 0):
        # Slice-13: a start before the axis is its first element, also backwards.
        start = max(begin, -n) if n else begin
        wanted = len(range(n)[start:end:step])
        assert compiled(np.zeros((n, 4), np.float32)).shape == (wanted, 4)


def test_the_interpreter_ends_loops_where_a_run_does() -> None:
    """A loop of 2^62 iterations had no end in it."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Exp", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("t", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2]),
        ],
        [helper.make_empty_tensor_value_info("d"), helper.make_empty_tensor_value_info("w")],
    )
    nodes = [constant("n", np.array(1 << 62))]
    nodes.append(helper.make_node("Loop", ["n", "", "x"], ["y"], body=body))
    x = np.ones(2, np.float32)
    module = load(model_of(nodes, {"x": x}, ["y"], 21))
    with in_force(Budgets.strict()), pytest.raises(ClewError, match="I266"):
        interpret(module, {"x": x})


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_least_integer_is_subtracted(shape: tuple[int, ...]) -> None:
    """It has no negative of its type: `x - c` could not become `x + (-c)`."""
    least = np.full(shape, np.iinfo(np.int32).min, np.int32)
    nodes = [constant("c", least), helper.make_node("Sub", ["x", "c"], ["y"])]
    x = np.array([5, -7, 0], np.int32)
    np.testing.assert_array_equal(results(nodes, {"x": x}), x - least)


def test_the_interpreters_error_function_is_exact() -> None:
    """Its series lost three digits below 3."""
    x = np.linspace(-6, 6, 5001)
    found = results([helper.make_node("Erf", ["x"], ["y"])], {"x": x})
    want = [math.erf(v) for v in x.tolist()]
    np.testing.assert_allclose(found, want, rtol=4e-16)
    module = load(model_of([helper.make_node("Erf", ["x"], ["y"])], {"x": x}, ["y"], 21))
    np.testing.assert_allclose(interpret(module, {"x": x})["y"], want, rtol=4e-16)


def test_an_attention_without_a_batch() -> None:
    """FuseOps looked for strides of an operand by dividing by a size of 0, and ended in C080."""
    shapes = {"q": (0, 2, 5, 4), "k": (0, 2, 4, 5), "v": (0, 2, 5, 4)}
    nodes = [
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "s"], ["r"]),
        helper.make_node("Transpose", ["r"], ["u"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["u", "k"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    found = results([constant("s", np.array([0, 0, 2, 4])), *nodes], inputs)
    assert found.shape == (0, 2, 5, 4)
    assert (
        results(
            [constant("s", np.array([0, 0, 2, 4])), *nodes],
            inputs,
            passes=clew.Passes(disabled=["FoldEmpty"]),
        ).shape
        == found.shape
    )


def test_no_index_is_sought_while_sizes_are_unknown() -> None:
    """A detector that found nothing: `Gather` knew that its table had no rows, and not yet that
    there were no indices.
    """
    nodes = [
        constant("zero", np.array([0])), constant("most", np.array([100])),
        helper.make_node("Compress", ["x", "m"], ["t"], axis=0),
        helper.make_node("Compress", ["m", "m"], ["c"], axis=0),
        helper.make_node("NonZero", ["c"], ["n"]),
        helper.make_node("Squeeze", ["n", "zero"], ["i"]),
        helper.make_node("Slice", ["i", "zero", "most", "zero"], ["k"]),
        helper.make_node("Gather", ["t", "k"], ["y"]),
    ]  # fmt: skip
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = model_of(nodes, {"x": x, "m": np.zeros(3, bool)}, ["y", "k"], 21)
    compiled = clew.compile(model, cache=False)
    for chosen in ([0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]):
        mask = np.array(chosen, bool)
        np.testing.assert_array_equal(compiled.run({"x": x, "m": mask})["y"], x[mask])


def test_attention_without_keys_is_the_sum_of_nothing() -> None:
    """It was NaN where the products and the softmax that it stands for give 0."""
    shapes = {"q": (1, 2, 5, 4), "k": (1, 2, 4, 0), "v": (1, 2, 0, 4)}
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["a"]),
        helper.make_node("Softmax", ["a"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert not results(nodes, inputs).any()
