"""Loops whose states grow: those that only append stack what they append, and all agree with ONNX
Runtime for every number of iterations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.ir.expr import Call, While
from clew.ir.visit import post_order
from clew.passes.manager import PassManager
from clew.passes.simplify.stack_appends import StackAppends
from clew.runtime.program import Repeat

Array = np.ndarray[Any, Any]
TENSOR = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[{size}] first, float[{row}] x, int64 n, int64 end, bool start) => (float[{size}] y) {{
    y = Loop (n, start, first) <body = inner
        (int64 i, bool c, float[{size}] s) => (bool c2, float[{size}] s2) {{
        c2 = Less (i, end)
        step = Cast <to = 1> (i)
        a = Add (x, step)
        b = Neg (a)
        {extra}
        s2 = Concat <axis = {axis}> ({parts})
    }}>
}}"""
SEQUENCE = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[2, 3] x, int64 n, int64 end) => ({result}) {{
    first = {first}
    q = Loop (n, , first) <body = inner
        (int64 i, bool c, seq(float) s) => (bool c2, seq(float) s2) {{
        c2 = Less (i, end)
        step = Cast <to = 1> (i)
        a = Add (x, step)
        {extra}
        s2 = SequenceInsert (s, {appended})
    }}>
    {after}
}}"""
COUNTS = [(0, 9), (1, 9), (5, 9), (7, 2), (33, 99)]  # limits, and ends by the condition
NUMBERS = np.random.default_rng(0).standard_normal


def compiled(text: str) -> tuple[Any, clew.CompiledModel]:
    model = onnx.parser.parse_model(text)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session, clew.compile(model, threads=1)


def agrees(reference: Any, made: clew.CompiledModel, feeds: dict[str, Any]) -> None:
    for a, b in zip(reference.run(None, feeds), made.run(feeds).values(), strict=True):
        if isinstance(a, list):
            assert len(a) == len(b)
        pairs = zip(a, b, strict=True) if isinstance(a, list) else [(np.asarray(a), b)]
        for one, other in pairs:
            assert one.shape == other.shape
            np.testing.assert_array_equal(one, other)


def appending(made: clew.CompiledModel) -> list[str]:
    """Returns what remains in loops of those that append."""
    after = PassManager([StackAppends()]).run(made.module)
    loops = [n for n in post_order(after.main, into_functions=True) if isinstance(n, While)]
    assert loops
    inside = [n for loop in loops for n in post_order(loop.body, into_functions=True)]
    names = [n.op_name for n in inside if isinstance(n, Call)]
    return [n for n in names if n in ("concatenate", "sequence.insert")]


def in_python(made: clew.CompiledModel, *inputs: Array) -> bool:
    """Whether a loop runs in Python."""
    program = made.served(*inputs).program
    return any(isinstance(i, Repeat) for part in program.walk() for i in part.instructions)


@pytest.mark.parametrize("parts", ["s, a", "a, s", "a, s, b", "b, a, s", "s, b, a"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors(parts: str, axis: int) -> None:
    size, row = ("m, 3", "2, 3") if axis == 0 else ("2, m", "2, 3")
    text = TENSOR.format(size=size, row=row, axis=axis, parts=parts, extra="")
    reference, made = compiled(text)
    assert not [n for n in appending(made) if n == "concatenate"] or parts.count(",") == 2
    x = NUMBERS((2, 3)).astype("f4")
    for n, end in COUNTS:
        for rows in (1, 0, 4):
            first = NUMBERS((rows, 3) if axis == 0 else (2, rows)).astype("f4")
            feeds = {"first": first, "x": x, "n": np.array(n), "end": np.array(end)}
            agrees(reference, made, {**feeds, "start": np.array(n != 33 or rows == 4)})
    assert not in_python(made, first, x, np.array(3), np.array(9), np.array(True))


READING = {
    "its size": "shape = Shape (s)\n t = ReduceSum <keepdims = 0> (shape)",
    "its values": "t = ReduceMax <keepdims = 0> (s)",
}


@pytest.mark.parametrize("lines", READING.values(), ids=READING)
def test_states_that_the_body_reads_stay(lines: str) -> None:
    more = f"{lines}\n k = Cast <to = 1> (t)\n d = Add (a, k)"
    text = TENSOR.format(size="m, 3", row="1, 3", axis=0, parts="s, d", extra=more)
    reference, made = compiled(text)
    assert appending(made) == ["concatenate"]
    first, x = (np.arange(3).reshape(1, 3).astype("f4") for _ in range(2))
    for n, end in ((0, 9), (1, 9), (6, 9), (6, 2)):
        feeds = {"first": first, "x": x, "n": np.array(n), "end": np.array(end)}
        agrees(reference, made, {**feeds, "start": np.array(True)})


def test_rows_of_varying_number_stay() -> None:
    more = "zero = Constant <value = int64[1] {0}> ()\n one = Constant <value = int64[1] {1}> ()\n"
    more += "at = Reshape (i, one)\n d = Slice (a, zero, at)"
    text = TENSOR.format(size="m, 3", row="4, 3", axis=0, parts="s, d", extra=more)
    reference, made = compiled(text)
    assert appending(made) == ["concatenate"]
    for n in (0, 1, 3, 6):
        feeds = {"first": NUMBERS((1, 3)).astype("f4"), "x": NUMBERS((4, 3)).astype("f4")}
        agrees(
            reference,
            made,
            {**feeds, "n": np.array(n), "end": np.array(9), "start": np.array(True)},
        )


READS = {
    "concat": ("float[m, 3] y", "y = ConcatFromSequence <axis = 0> (q)"),
    "last axis": ("float[2, m] y", "y = ConcatFromSequence <axis = -1> (q)"),
    "new axis": ("float[2, m, 3] y", "y = ConcatFromSequence <axis = 1, new_axis = 1> (q)"),
    "length": ("int64 y", "y = SequenceLength (q)"),
    "whole": ("seq(float) y", "y = Identity (q)"),
    "one": ("float[2, 3] y", "k = Constant <value = int64 {-1}> ()\n y = SequenceAt (q, k)"),
}
STARTS = {"empty": "SequenceEmpty ()", "two": "SequenceConstruct (x, x)"}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("first", STARTS.values(), ids=STARTS)
def test_sequences(read: tuple[str, str], first: str) -> None:
    result, after = read
    text = SEQUENCE.format(result=result, first=first, extra="", appended="a", after=after)
    reference, made = compiled(text)
    assert not appending(made)
    x = NUMBERS((2, 3)).astype("f4")
    for n, end in COUNTS:
        feeds = {"x": x, "n": np.array(n), "end": np.array(end)}
        if n or "Empty" not in first or after.startswith("y = SequenceLength"):
            agrees(reference, made, feeds)
        elif "Identity" not in after:
            with pytest.raises(clew.ClewError):
                made.run(feeds)
    assert not in_python(made, x, np.array(3), np.array(9))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_sequences_of_known_length_become_tensors(read: tuple[str, str]) -> None:
    result, after = read
    text = SEQUENCE.format(
        result=result, first=STARTS["empty"], extra="", appended="a", after=after
    )
    text = text.replace("int64 n, int64 end", "int64 end").replace("(n, ,", "(n, yes,")
    text = text.replace("c2 = Less (i, end)", "c2 = Identity (c)").replace(
        "first =",
        "n = Constant <value = int64 {300}> ()\n yes = Constant <value = bool {1}> ()\n first =",
    )
    reference, made = compiled(text)  # more iterations than importers unroll
    agrees(reference, made, {"x": NUMBERS((2, 3)).astype("f4"), "end": np.array(9)})
    if "ConcatFrom" in after or "Length" in after:
        assert not any(kernel.name.startswith("host:") for kernel in made.kernels)


def test_elements_of_varying_shape_stay_a_sequence() -> None:
    more = "zero = Constant <value = int64[1] {0}> ()\n one = Constant <value = int64[1] {1}> ()\n"
    more += "at = Reshape (i, one)\n d = Slice (a, zero, at)"
    read = READS["concat"]
    text = SEQUENCE.format(
        result=read[0], first=STARTS["two"], extra=more, appended="d", after=read[1]
    )
    reference, made = compiled(text)
    assert appending(made) == ["sequence.insert"]
    for n in (0, 1, 3, 6):
        x = NUMBERS((2, 3)).astype("f4")
        agrees(reference, made, {"x": x, "n": np.array(n), "end": np.array(9)})


def test_a_loop_in_a_loop() -> None:
    """The inner loop's stack is what the outer loop appends, if its length does not change."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
    agraph (float[m, 3] first, float[1, 3] x, int64 n, int64 k) => (float[m, 3] y, float[j, 3] z) {
        y, z = Loop (n, , first, x) <body = outer
            (int64 i, bool c, float[m, 3] s, float[j, 3] t)
            => (bool c2, float[m, 3] s2, float[j, 3] t2) {
            c2 = Identity (c)
            step = Cast <to = 1> (i)
            row = Add (x, step)
            s2 = Loop (k, , s) <body = inner
                (int64 l, bool d, float[m, 3] u) => (bool d2, float[m, 3] u2) {
                d2 = Identity (d)
                more = Cast <to = 1> (l)
                own = Mul (row, more)
                u2 = Concat <axis = 0> (u, own)
            }>
            t2 = Concat <axis = 0> (t, row)
        }>
    }"""
    reference, made = compiled(text)
    for n, k in ((0, 0), (1, 0), (0, 3), (3, 2), (4, 5)):
        feeds = {"first": NUMBERS((2, 3)).astype("f4"), "x": NUMBERS((1, 3)).astype("f4")}
        agrees(reference, made, {**feeds, "n": np.array(n), "k": np.array(k)})


def test_beside_states_and_stacks_that_stay() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    agraph (float[m, 3] first, float[1, 3] x, int64 n)
        => (float[1, 3] a, float[m, 3] y, float[3, k] z, float[j, 1, 3] t) {
        e = Transpose (first)
        a, y, z, t = Loop (n, , x, first, e) <body = inner
            (int64 i, bool c, float[1, 3] b, float[m, 3] s, float[3, k] u)
            => (bool c2, float[1, 3] b2, float[m, 3] s2, float[3, k] u2, float[1, 3] row) {
            c2 = Identity (c)
            b2 = Add (b, x)
            row = Neg (b2)
            s0 = Identity (s)
            s1 = Concat <axis = 0> (b2, s0)
            s2 = Identity (s1)
            turned = Transpose (row)
            u2 = Concat <axis = 1> (u, turned)
        }>
    }"""
    reference, made = compiled(text)
    assert not appending(made)
    for n in (0, 1, 4, 30):
        feeds = {"first": NUMBERS((2, 3)).astype("f4"), "x": np.ones((1, 3), "f4")}
        agrees(reference, made, {**feeds, "n": np.array(n)})


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("to", "is_new"), [(0, 0), (-1, 0), (1, 1), (-1, 1)])
def test_joined_parts_of_a_tensor(keeps: int, axis: int, to: int, is_new: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    agraph (float[3, 4, 2] x) => (float[a, b, c] y, int64 n) {{
        q = SplitToSequence <axis = {axis}, keepdims = {keeps}> (x)
        y = ConcatFromSequence <axis = {to}, new_axis = {is_new}> (q)
        n = SequenceLength (q)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    agrees(session, clew.compile(model, threads=1), {"x": NUMBERS((3, 4, 2)).astype("f4")})
