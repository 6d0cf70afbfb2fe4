"""Sequences that loops grow and read: they become tensors, and agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as states

import clew
from clew.ir.expr import Call, While
from clew.ir.module import Module
from clew.ir.types import SequenceType
from clew.ir.visit import post_order
from clew.passes.manager import PassManager
from clew.passes.simplify.stack_sequences import StackSequences
from clew.runtime.guard import GuardSide
from clew.runtime.program import Repeat

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[2, 3] x, int64 n, int64 end) => ({result}) {{
    first = {first}
    q = Loop (n, , first) <body = inner
        (int64 i, bool c, seq(float[2, 3]) s) => (bool c2, seq(float[2, 3]) s2) {{
        c2 = Less (i, end)
        {before}
        s2 = SequenceInsert (s, {element})
    }}>
    {after}
}}"""
STARTS = {"empty": "SequenceEmpty ()", "two": "SequenceConstruct (x, x)"}
BASE = "step = Cast <to = 1> (i)\n a = Add (x, step)\n "
READS = {
    "concat": "all = ConcatFromSequence <axis = 0> (s)\n m = ReduceMax <keepdims = 0> (all)",
    "last axis": "all = ConcatFromSequence <axis = -1> (s)\n m = ReduceMin <keepdims = 0> (all)",
    "new axis": "all = ConcatFromSequence <axis = 1, new_axis = 1> (s)\n"
    "m = ReduceMax <keepdims = 0> (all)",
    "last element": "l = Constant <value = int64 {-1}> ()\n m = SequenceAt (s, l)",
    "length": "l = SequenceLength (s)\n m = Cast <to = 1> (l)",
}
AFTER = {
    "concat": ("float[m, 3] y", "y = ConcatFromSequence <axis = 0> (q)"),
    "whole": ("seq(float) y", "y = Identity (q)"),
}


def model(first: str, before: str, after: str, element: str = "e") -> Any:
    result, read = AFTER[after]
    lines = f"{BASE}{before}\n e = Add (a, m)"
    text = TEXT.format(
        first=STARTS[first], before=lines, element=element, result=result, after=read
    )
    return onnx.parser.parse_model(text)


def carried(module: Module) -> list[type]:
    """Returns the kinds of the types of a loop's states."""
    after = PassManager([StackSequences()]).run(module)
    (loop,) = (n for n in post_order(after.main, into_functions=True) if isinstance(n, While))
    return [type(param.type) for param in loop.body.params]


def agrees(model: Any, made: clew.CompiledModel, feeds: dict[str, Any]) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (wanted,), (found,) = session.run(None, feeds), made.run(feeds).values()
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("first", STARTS)
def test_they_agree(first: str, read: str, after: str) -> None:
    given = model(first, READS[read], after)
    made = clew.compile(given, threads=1)
    stays = first == "empty" and read != "length"  # the first iteration reads an empty sequence
    assert (SequenceType in carried(made.module)) == stays
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("f4")
    for n, end in ((0, 9), (1, 9), (5, 99), (7, 2), (40, 99)):
        feeds = {"x": x, "n": np.array(n), "end": np.array(end)}
        if (n and stays) or (not n and first == "empty" and after == "concat"):
            with pytest.raises(clew.ClewError):
                made.run(feeds)
        elif n or first != "empty":
            agrees(given, made, feeds)
    if not stays:
        program = made.served(x, np.array(3), np.array(9)).program
        loops = [i for i in program.instructions if isinstance(i, Repeat)]
        assert all(loop.native is not None for loop in loops)


LOOP = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[2, 3] x, int64 n, int64 end, int64 p) => (float[2, 3] y, {result}) {{
    neg = Neg (x)
    first = {first}
    y, q = Loop (n, , x, first) <body = inner
        (int64 i, bool c, float[2, 3] a, seq(float[2, 3]) s)
        => (bool c2, float[2, 3] a2, seq(float[2, 3]) s2) {{
        c2 = Less (i, end)
        zero = Constant <value = int64 {{0}}> ()
        minus = Constant <value = int64 {{-1}}> ()
        {body}
    }}>
    {after}
}}"""
ONE = "half = Constant <value = float {0.5}> ()\n b = Mul (a, half)\n "
CHANGES = {
    "an element of the run": "e = SequenceAt (s, i)\n a2 = Add (b, e)\n s2 = Identity (s)",
    "an insertion of the run": "s2 = SequenceInsert (s, b, p)\n a2 = Cos (b)",
    "insertions in front": "s2 = SequenceInsert (s, b, zero)\n e = SequenceAt (s2, minus)\n"
    "a2 = Sub (e, b)",
    "a queue": "e = SequenceAt (s, zero)\n a2 = Add (b, e)\n t = SequenceErase (s, zero)\n"
    "s2 = SequenceInsert (t, a2)",
    "an erasure of the run": "t = SequenceInsert (s, b)\n s2 = SequenceErase (t, p)\n"
    "e = SequenceAt (s2, zero)\n a2 = Add (b, e)",
    "the first ones": "e = SequenceAt (s, zero)\n a2 = Add (b, e)\n s2 = SequenceErase (s, zero)",
    "the last ones": "e = SequenceAt (s, minus)\n a2 = Add (b, e)\n s2 = SequenceErase (s)",
}
FEW = {"one": "SequenceConstruct (x)", "three": "SequenceConstruct (x, neg, x)"}


def changing(body: str, first: str, after: str) -> Any:
    result, read = AFTER[after]
    text = LOOP.format(result=result, first=FEW[first], body=ONE + body, after=read)
    return onnx.parser.parse_model(
        text.replace("seq(float) y", "seq(float) z").replace("y = Id", "z = Id")
    )


def results(run: Any) -> list[Any] | str:
    """Returns the results of a run, or the code of its error; "other" for ONNX Runtime's."""
    try:
        return list(run())
    except clew.ClewError as error:
        return f"{error.code} {error.layer}"
    except (states.Fail, states.InvalidArgument):
        return "other"


@pytest.mark.parametrize("first", FEW)
@pytest.mark.parametrize("body", CHANGES)
def test_changes_at_positions_of_the_run(body: str, first: str) -> None:
    given = changing(CHANGES[body], first, "whole")
    made = clew.compile(given, threads=1)
    assert SequenceType not in carried(made.module)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(given.SerializeToString(), options)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("f4")
    failed = 0
    for n, end, p in ((0, 9, 0), (1, 9, 0), (2, 99, -1), (3, 99, 1), (9, 1, 1), (4, 99, -9)):
        feeds = {"x": x, "n": np.array(n), "end": np.array(end), "p": np.array(p)}
        wanted = results(lambda: session.run(None, feeds))  # noqa: B023
        found = results(lambda: made.run(feeds).values())  # noqa: B023
        if isinstance(wanted, str) or isinstance(found, str):
            assert wanted == "other", found
            assert isinstance(found, str)
            assert found[:4] in ("I320", "T110")
            assert "Sequence" in found
            failed += 1
            continue
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
        assert len(found[1]) == len(wanted[1])
        for a, b in zip(found[1], wanted[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert failed < 5


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("body", CHANGES)
def test_changes_stay_inside_buffers(body: str, side: GuardSide) -> None:
    given = changing(CHANGES[body], "three", "whole")
    plain = clew.compile(given, threads=1)
    guarded = clew.compile(given, threads=1, diagnostics=clew.Diagnostics(guard=side), cache=False)
    x = np.random.default_rng(1).standard_normal((2, 3)).astype("f4")
    for p in (0, -1, 1):
        feeds = {"x": x, "n": np.array(3), "end": np.array(9), "p": np.array(p)}
        one, other = plain.run(feeds), guarded.run(feeds)
        np.testing.assert_array_equal(one["y"], other["y"])
        for a, b in zip(*(r[next(reversed(r))] for r in (one, other)), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("before", "element"),
    [
        ("m = If (c2) <\n"
         "then_branch = yes () => (float p)"
         " { v = SequenceAt (s, i) p = ReduceMax <keepdims = 0> (v) },"
         "else_branch = no () => (float q) { w = SequenceLength (s) q = Cast <to = 1> (w) }>", "e"),
        ("m = Constant <value = float {1}> ()\n zero = Constant <value = int64[1] {0}> ()\n"
         "one = Constant <value = int64[1] {1}> ()\n at = Reshape (i, one)\n"
         "d = Slice (a, zero, at)\n l = SequenceLength (s)", "d"),
    ],
    ids=["a branch reads it", "shapes that vary"],
)  # fmt: skip
def test_other_sequences_stay(before: str, element: str) -> None:
    given = model("two", before, "whole", element)
    made = clew.compile(given, threads=1)
    assert SequenceType in carried(made.module)
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("f4")
    for n in (0, 1, 2):
        agrees(given, made, {"x": x, "n": np.array(n), "end": np.array(9)})


def test_only_tensors_are_read() -> None:
    module = clew.load(model("two", READS["concat"], "whole"))
    after = PassManager([StackSequences()]).run(module)
    (loop,) = (n for n in post_order(after.main, into_functions=True) if isinstance(n, While))
    names = [n.op_name for n in post_order(loop.body, into_functions=True) if isinstance(n, Call)]
    assert "concatenate" in names
    assert not any(name.startswith("sequence.") and name != "sequence.split" for name in names)
