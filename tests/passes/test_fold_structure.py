"""FoldStructure: what it leaves computes what was there before; the rest it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.ir.interpret import interpret
from clew.ir.parser import parse_module
from clew.passes.base import PassContext
from clew.passes.simplify.fold_structure import FoldStructure
from clew.runtime.program import RunHost

TEXT = Path(__file__).parent / "text" / "FoldStructure.clew"


def test_values_are_kept() -> None:
    before = parse_module(TEXT.read_text().partition("-" * 80)[0])
    after = FoldStructure().run(before, PassContext())
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    inputs = {"x": x, "y": np.ones(3, np.float32), "p": np.asarray(0)}
    found, wanted = interpret(after, inputs), interpret(before, inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    assert FoldStructure().run(after, PassContext()) is after


def test_a_wrong_position_is_left_to_the_run() -> None:
    module = parse_module("""clew 1
def @main(%x: f32[2]) -> (f32[2],) with outputs=["y"] {
  %0 = sequence.construct(%x)
  %1: i64[] = const splat 3
  %2 = sequence.at(%0, %1)
  %3 = (%2,)
  return %3
}
""")
    assert FoldStructure().run(module, PassContext()) is module


KNOWN = """<ir_version: 9, opset_import: ["" : 18]>
g (float[4, 6] x, float[{row}] r, int64 p) => ({result}) {{ {body} }}"""
PARTS = (
    "one = Constant <value = int64 {1}> () q = SplitToSequence <axis = 0, keepdims = 0> (x) ",
    "one = Constant <value = int64 {1}> () q = SplitToSequence <axis = 1> (x, one) ",
    "a = Neg (x) b = Cos (x) q = SequenceConstruct (a, x, b) ",
)
ROWS = ("6", "4, 1", "4, 6")
READS = {
    "at": ("y = SequenceAt (q, p)", "float[{row}] y"),
    "insert": ("z = SequenceInsert (q, r, p) y = ConcatFromSequence <axis = 0> (z)", "float y"),
    "erase": ("z = SequenceErase (q, p) y = ConcatFromSequence <axis = -1> (z)", "float y"),
    "new axis": (
        "z = SequenceErase (q, p) u = SequenceInsert (z, r, p) "
        "y = ConcatFromSequence <axis = 1, new_axis = 1> (u)",
        "float y",
    ),
    "shown": ("z = SequenceInsert (q, r, p) y = SequenceErase (z)", "seq(float) y"),
    "read twice": (
        "z = SequenceInsert (q, r, p) u = SequenceErase (z, p) k = SequenceLength (u) "
        "v = SequenceAt (u, p) w = SequenceAt (z, p) y = Add (v, w)",
        "float[{row}] y",
    ),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("parts", range(3))
def test_positions_of_the_run_in_known_lists(parts: int, read: str) -> None:
    body, result = READS[read]
    text = KNOWN.format(
        row=ROWS[parts], result=result.format(row=ROWS[parts]), body=PARTS[parts] + body
    )
    given = onnx.parser.parse_model(text)
    made = clew.compile(given, threads=1)
    host = {i.label for i in made.build.program.instructions if isinstance(i, RunHost)}
    assert host <= ({"sequence.construct"} if read == "shown" else set())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(given.SerializeToString(), options)
    rng, row = np.random.default_rng(0), eval(f"({ROWS[parts]},)")
    for p in range(-7, 8):
        x, r = rng.standard_normal((4, 6)).astype("f4"), rng.standard_normal(row).astype("f4")
        feeds = {"x": x, "r": r, "p": np.array(p)}
        try:
            (wanted,) = session.run(None, feeds)
        except Exception:
            with pytest.raises(clew.ClewError, match="I320"):
                made.run(feeds)
            continue
        (found,) = made.run(feeds).values()
        both = zip(found, wanted, strict=True) if isinstance(wanted, list) else [(found, wanted)]
        for one, other in both:
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
