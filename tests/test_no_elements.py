"""Sizes of 0 and 1 through every pass and rule: operators' samples, free sizes of networks, and
branches and loops that sizes rule out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import clew
import zoo
from clew.ir.types import TensorType, is_empty, leaves
from clew.ops.registry import Op, Sample, all_ops
from clew.ops.sample_checks import (
    call_of,
    check_compute,
    check_reference_types,
    model_of,
    wrong_output,
)
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]

# --- samples ---

_OPS = [op for op in all_ops() if op.is_builtin]
# They take one element at least, or one that is in a list, and refuse others when they run.
_REFUSING = (
    "map.to_vector", "one_hot_of_keys", "rank.scalar", "sequence.split", "sequence.split_sizes",
    "sequence.unpack",
)  # fmt: skip
# The samples have positions of rows or elements, which do not exist without these (I320).
_AT_A_ROW = ("erase_row", "flat.place", "insert_row")


def _with_size(arg: Any, axes: Sequence[int], size: int) -> Any:
    """Returns a type or an array with another size of some axes."""
    if isinstance(arg, TensorType):
        shape = tuple(size if n in axes else d for n, d in enumerate(arg.shape))
        return arg.with_(shape=shape)
    for n in axes:
        arg = np.take(arg, range(size), n)
    return arg


def _without_elements(op: Op) -> Iterator[Sample]:
    """Yields an operator's samples with one size made 0, of one operand and of all."""
    seen = set()
    for sample in op.samples:
        if sample.error:
            continue
        shaped = [isinstance(a, (TensorType, np.ndarray)) for a in sample.args]
        shapes = [a.shape if s else () for a, s in zip(sample.args, shaped, strict=True)]
        changes = [
            [[n for n, d in enumerate(shape) if d == size] for shape in shapes]
            for size in sorted({d for shape in shapes for d in shape if isinstance(d, int)})
        ] + [
            [[n] if k == place else [] for k in range(len(shapes))]
            for place, shape in enumerate(shapes)
            for n in range(len(shape))
        ]
        for axes in changes:
            args = [_with_size(a, x, 0) if x else a for a, x in zip(sample.args, axes, strict=True)]
            made = Sample(*args, low=sample.low, high=sample.high, **sample.attrs)
            key = repr((args, sorted(sample.attrs.items())))
            if key not in seen:
                seen.add(key)
                yield made


def _fitting(op: Op) -> Iterator[tuple[Sample, bool]]:
    """Yields those that the operator takes, and whether its result has no elements either."""
    for sample in _without_elements(op):
        try:
            call = call_of(op, sample)
        except ClewError:
            continue
        yield sample, all(map(is_empty, leaves(call.type)))


def test_references_and_computations_of_nothing_agree() -> None:
    count = 0
    for op in _OPS:
        for sample, _ in _fitting(op):
            if op.name in (*_REFUSING, *_AT_A_ROW):
                continue
            check_reference_types(op, sample)
            if op.compute and op.reference_rule and not op.host:
                check_compute(op, sample)
            count += 1
    assert count > 1500


@pytest.mark.parametrize("level", [0, 3])
def test_kernels_of_nothing(level: int) -> None:
    """What gives elements for operands without any: sums, products, pads, concatenations. All of an
    operator's are one model.
    """
    for op in _OPS:
        if op.name in _AT_A_ROW:
            continue
        samples = [
            s
            for s, empty in _fitting(op)
            if not empty and op.compute and not op.host
            and not any(getattr(a, "layout", "") for a in s.args)
        ]  # fmt: skip
        if not samples:
            continue
        model = model_of(op, samples[:3], neighbors=level == 3)
        side = list(GuardSide)[level % 2]
        compiled = clew.compile(
            model.module, opt_level=level, threads=1, diagnostics=clew.Diagnostics(guard=side)
        )
        with np.errstate(all="ignore"):
            assert not wrong_output(model, compiled.run(model.inputs)), op.name
        assert compiled.trace.check() == [], op.name


# --- networks ---


def _value(name: str, shape: Sequence[Any], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _model(
    nodes: Sequence[NodeProto], inputs: Sequence[Any], outputs: str, constants: dict[str, Array]
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "no_elements",
        list(inputs),
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def encoder() -> bytes:
    """Two heads of attention over `x: f32[batch, words, 8]`, and a layer after it."""
    rng = np.random.default_rng(0)
    constants: dict[str, Array] = {
        name: (rng.standard_normal(shape) / 3).astype(np.float32)
        for name, shape in {
            "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wo": (8, 8), "w1": (8, 16), "w2": (16, 8),
            "bias": (8,), "scale": (8,), "shift": (8,),
        }.items()
    }  # fmt: skip
    constants |= {"split": np.array([0, 0, 2, 4]), "join": np.array([0, 0, 8])}
    constants["root"] = np.float32(0.5)  # type: ignore[assignment]
    node, nodes = helper.make_node, []
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            node("Add", [f"{name}1", "bias"], [f"{name}2"]),
            node("Reshape", [f"{name}2", "split"], [f"{name}3"]),
            node("Transpose", [f"{name}3"], [f"{name}4"], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q4", "k4"], ["scores"]),
        node("Mul", ["scores", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v4"], ["seen"]),
        node("Transpose", ["seen"], ["turned"], perm=(0, 2, 1, 3)),
        node("Reshape", ["turned", "join"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["out"]),
        node("Add", ["out", "x"], ["added"]),
        node("LayerNormalization", ["added", "scale", "shift"], ["normal"]),
        node("MatMul", ["normal", "w1"], ["wide"]),
        node("Gelu", ["wide"], ["bent"]),
        node("MatMul", ["bent", "w2"], ["y"]),
    ]
    return _model(nodes, [_value("x", ("batch", "words", 8))], "y", constants)


_WAYS = [
    *((level, "f32", "auto") for level in range(4)),
    (3, "bf16", "auto"), (3, "f32", None), (3, "bf16", None),
]  # fmt: skip


@pytest.mark.parametrize(("level", "precision", "fuse"), _WAYS)
def test_an_encoder_of_nothing(level: int, precision: str, fuse: str | None) -> None:
    """An empty batch ended in C080, `left % size` by zero."""
    raw = encoder()
    session = ort.InferenceSession(raw)
    compiled = clew.compile(
        raw,
        opt_level=level,
        precision=precision,
        passes=clew.Passes(fuse=fuse == "auto"),
        threads=1,
    )
    for batch, words in ((0, 5), (1, 0), (2, 5), (0, 0), (1, 1), (2, 0), (0, 1)):
        x = np.random.default_rng(1).standard_normal((batch, words, 8)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        found = compiled(x)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, atol=1e-5 if precision == "f32" else 0.05)
        assert compiled.trace.check() == []
        if not x.size:
            assert compiled.kernels == []


@pytest.mark.parametrize("level", [0, 3])
def test_a_network_with_free_sizes(level: int) -> None:
    path = zoo.path("bert_tiny_dynamic")
    session = ort.InferenceSession(str(path))
    compiled = clew.compile(str(path), opt_level=level, threads=1)
    for batch, sequence in itertools.product((0, 1), (1, 3)):
        feed = zoo.inputs("bert_tiny_dynamic", batch=batch, sequence=sequence)
        for found, wanted in zip(compiled.run(feed).values(), session.run(None, feed), strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_nothing_is_profiled_tapped_saved_and_shown(tmp_path: Any) -> None:
    compiled = clew.compile(encoder(), threads=1)
    x = np.zeros((0, 5, 8), np.float32)
    compiled(x)
    assert "a run" in str(compiled.profile(x))
    assert compiled.graph().to_json()["kernels"] == []
    layer = compiled.trace.layers[-1]
    assert str(compiled.trace.verify({"x": x}).ok) == "True"
    assert compiled.tap(getattr(layer, "name", layer), x).shape == (0, 5, 8)
    compiled.save(tmp_path / "nothing.clew")
    assert clew.load_compiled(tmp_path / "nothing.clew")(x).shape == (0, 5, 8)


# --- what sizes rule out ---


def _table() -> Any:
    return _value("x", ("n", 4))


def guarded() -> bytes:
    """The best rows, and 7 where there are none."""
    node = helper.make_node
    none = numpy_helper.from_array(np.full((1, 4), 7, np.int64))
    then = helper.make_graph(
        [node("Constant", [], ["none"], value=none)],
        "a",
        [],
        [_value("none", (), TensorProto.INT64)],
    )
    orelse = helper.make_graph(
        [node("ArgMax", ["x"], ["best"], axis=0)], "b", [], [_value("best", (), TensorProto.INT64)]
    )
    for graph in (then, orelse):
        graph.output[0].type.tensor_type.ClearField("shape")
    nodes = [
        node("Size", ["x"], ["size"]),
        node("Equal", ["size", "zero"], ["is_none"]),
        node("If", ["is_none"], ["y"], then_branch=then, else_branch=orelse),
    ]
    return _model(nodes, [_table()], "y", {"zero": np.array(0)})


def over_rows() -> bytes:
    """Sums and products of rows, one after the other."""
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Gather", ["x", "i"], ["row"]),
            node("Add", ["sum", "row"], ["next"]),
            node("Identity", ["go"], ["going"]),
            node("Mul", ["next", "row"], ["out"]),
        ],
        "body",
        [
            _value("i", (), TensorProto.INT64), _value("go", (), TensorProto.BOOL),
            _value("sum", (4,)),
        ],
        [_value("going", (), TensorProto.BOOL), _value("next", (4,)), _value("out", (4,))],
    )  # fmt: skip
    nodes = [
        node("Shape", ["x"], ["rows"], end=1),
        node("Squeeze", ["rows"], ["count"]),
        node("Loop", ["count", "", "first"], ["y", "z"], body=body),
    ]
    return _model(nodes, [_table()], "y z", {"first": np.ones(4, np.float32)})


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("raw", [guarded(), over_rows()], ids=["branch", "loop"])
def test_what_sizes_rule_out_may_be_wrong_for_them(raw: bytes, level: int) -> None:
    """The branch for some elements, or a loop's body, was an error where there are none."""
    session = ort.InferenceSession(raw)
    compiled = clew.compile(raw, opt_level=level, threads=1)
    for rows in (0, 3, 0, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        wanted = session.run(None, {"x": x})
        for found, want in zip(compiled.run({"x": x}).values(), wanted, strict=True):
            assert (found.shape, found.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(found, want, rtol=1e-5)
        assert compiled.trace.check() == []


def test_no_best_of_nothing() -> None:
    """What `ArgMax` gives for no elements was the place before the first one."""
    for axis, rows in ((0, 0), (1, 0)):
        nodes = [helper.make_node("ArgMax", ["x"], ["y"], axis=axis)]
        compiled = clew.compile(_model(nodes, [_table()], "y", {}), threads=1)
        x = np.zeros((rows, 4), np.float32)
        if axis:
            assert compiled(x).shape == (0, 1)
            continue
        with pytest.raises(
            ClewError, match=r"argmax: axis 0 of \[0, 4\] has no elements"
        ) as caught:
            compiled(x)
        assert (caught.value.code, caught.value.layer) == ("T170", "ArgMax_0")


@pytest.mark.parametrize("axis", [0, 1])
def test_hardmax_of_nothing_is_nothing(axis: int) -> None:
    nodes = [helper.make_node("Hardmax", ["x"], ["y"], axis=axis)]
    raw = _model(nodes, [_value("x", ("n", "m"))], "y", {})
    session, compiled = ort.InferenceSession(raw), clew.compile(raw, threads=1)
    for shape in ((0, 3), (3, 0), (4, 5), (0, 0)):
        x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
        np.testing.assert_array_equal(compiled(x), session.run(None, {"x": x})[0])


def test_columns_that_are_at_most_none_are_transposed() -> None:
    """Their loop runs at most once, so it has a number, but its extent has none."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["n"], start=1),
        node("Min", ["n", "one"], ["few"]),
        node("Div", ["few", "two"], ["none"]),
        node("Slice", ["x", "zero", "none", "one"], ["columns"]),
        node("Transpose", ["columns"], ["y"]),
    ]
    constants = {name: np.array([n]) for n, name in enumerate(("zero", "one", "two"))}
    raw = _model(nodes, [_value("x", (20, "n"))], "y", constants)
    compiled = clew.compile(raw, threads=1)
    for columns in (1, 7, 0):
        assert compiled(np.zeros((20, columns), np.float32)).shape == (0, 20)


# --- indices with nothing to read ---


def _of_list(change: str) -> list[NodeProto]:
    """Returns nodes that change, or read, the list `q` at the position `k`."""
    node = helper.make_node
    if change == "at":
        return [node("SequenceAt", ["q", "k"], ["y"])]
    inputs = ["q", "k"] if change == "Erase" else ["q", "row", "k"]
    made = node(f"Sequence{change}", inputs, ["changed"])
    return [made, node("ConcatFromSequence", ["changed"], ["y"], axis=0)]


def _list_of_nothing(change: str, rows: Any, *, is_loop: bool) -> bytes:
    """Reads or changes the list of the rows of `x: f32[3, rows, 4]`; loops carry a row."""
    node = helper.make_node
    nodes = [node("SplitToSequence", ["x"], ["q"], axis=0, keepdims=0)]
    inputs = [_value("x", (3, rows, 4)), _value("k", (), TensorProto.INT64)]
    inputs.append(_value("row", (rows, 4)))
    if not is_loop:
        return _model([*nodes, *_of_list(change)], inputs, "y", {})
    body = helper.make_graph(
        [*_of_list(change), node("Identity", ["go"], ["going"])],
        "body",
        [_value("i", (), TensorProto.INT64), _value("go", (), TensorProto.BOOL)],
        [_value("going", (), TensorProto.BOOL), _value("y", ("r", 4))],
    )
    nodes.append(node("Loop", ["trips", ""], ["z"], body=body))
    return _model(nodes, inputs, "z", {"trips": np.array(2)})


@pytest.mark.parametrize("is_loop", [False, True], ids=["plain", "loop"])
@pytest.mark.parametrize("rows", [0, "rows"])
@pytest.mark.parametrize("change", ["at", "Insert", "Erase"])
def test_positions_in_lists_of_nothing(change: str, rows: Any, is_loop: bool) -> None:
    """A position out of range was accepted if the elements had no rows."""
    compiled = clew.compile(_list_of_nothing(change, rows, is_loop=is_loop), threads=1)
    feed = {"x": np.zeros((3, 0, 4), np.float32), "row": np.zeros((0, 4), np.float32)}
    for position in (0, -3):
        (found,) = compiled.run({**feed, "k": np.array(position)}).values()
        assert found.shape == ((2, 0, 4) if is_loop else (0, 4))
    for position in (9, -9):
        with pytest.raises(ClewError, match="out of range") as caught:
            compiled.run({**feed, "k": np.array(position)})
        assert caught.value.code in ("I270", "I320")


@pytest.mark.parametrize("after", ["", "Neg", "ReduceSum"])
@pytest.mark.parametrize("op", ["Gather", "ScatterND"])
def test_indices_of_nothing(op: str, after: str) -> None:
    """An index out of range was accepted if it selected no elements."""
    node = helper.make_node
    if op == "Gather":
        nodes = [node("Gather", ["x", "k"], ["picked"])]
    else:
        nodes = [node("ScatterND", ["x", "k", "x0"], ["picked"])]
    nodes.append(node(after or "Identity", ["picked"], ["y"]))
    inputs = [_value("x", (3, "n")), _value("k", (1, 1), TensorProto.INT64), _value("x0", (1, "n"))]
    compiled = clew.compile(_model(nodes, inputs, "y", {}), threads=1)
    feed = {"x": np.zeros((3, 0), np.float32), "x0": np.zeros((1, 0), np.float32)}
    compiled.run({**feed, "k": np.array([[2]])})
    with pytest.raises(ClewError, match="out of range") as caught:
        compiled.run({**feed, "k": np.array([[3]])})
    assert caught.value.code == "I320"


def test_indices_of_as_many_columns_as_the_run_finds() -> None:
    """Without any, no kernel runs, which would have checked the index."""
    nodes = [
        helper.make_node("Compress", ["x", "mask"], ["kept"], axis=1),
        helper.make_node("Gather", ["kept", "k"], ["y"]),
    ]
    inputs = [
        _value("x", (3, 4)), _value("mask", (4,), TensorProto.BOOL),
        _value("k", (), TensorProto.INT64),
    ]  # fmt: skip
    compiled = clew.compile(_model(nodes, inputs, "y", {}), threads=1)
    x, rng = np.arange(12, dtype=np.float32).reshape(3, 4), np.random.default_rng(0)
    for _ in range(40):
        mask, k = rng.random(4) < 0.3, int(rng.integers(-5, 5))
        feed = {"x": x, "mask": mask, "k": np.array(k)}
        if -3 <= k < 3:
            np.testing.assert_array_equal(compiled.run(feed)["y"], x[k, mask])
            continue
        with pytest.raises(ClewError) as caught:
            compiled.run(feed)
        assert caught.value.code == "I320"
