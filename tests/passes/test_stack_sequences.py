"""Sequences that loops grow and read: they become tensors, and agree with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.ir.expr import Call, While
from clew.ir.module import Module
from clew.ir.types import SequenceType
from clew.ir.visit import post_order
from clew.passes.manager import PassManager
from clew.passes.simplify.stack_sequences import StackSequences
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


@pytest.mark.parametrize(
    ("before", "element"),
    [
        ("l = SequenceAt (s, i)\n m = ReduceMax <keepdims = 0> (l)", "e"),
        ("t = SequenceInsert (s, x, i)\n u = SequenceLength (t)\n m = Cast <to = 1> (u)", "e"),
        ("m = Constant <value = float {1}> ()\n zero = Constant <value = int64[1] {0}> ()\n"
         "one = Constant <value = int64[1] {1}> ()\n at = Reshape (i, one)\n"
         "d = Slice (a, zero, at)\n l = SequenceLength (s)", "d"),
    ],
    ids=["a position of the run", "an insertion elsewhere", "shapes that vary"],
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
