"""FoldStructure: what it leaves computes what was there before; the rest it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clew.ir.interpret import interpret
from clew.ir.parser import parse_module
from clew.passes.base import PassContext
from clew.passes.simplify.fold_structure import FoldStructure

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
  %1 = sequence.at(%0, const i64[] 3)
  %2 = (%1,)
  return %2
}
""".replace("const i64[] 3", "%p").replace("%x: f32[2]", "%x: f32[2], %p: i64[]"))  # fmt: skip
    assert FoldStructure().run(module, PassContext()) is module
