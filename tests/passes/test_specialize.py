"""Modules made concrete for sizes, shapes and values of inputs."""

from __future__ import annotations

import numpy as np

from clew.ir.interpret import interpret
from clew.ir.parser import parse_module
from clew.ir.visit import post_order
from clew.passes.base import PassContext
from clew.passes.specialize import Specialize

RESHAPED = """\
clew 1
def @main(%x: f32[?1, ?2 + 1], %shape: i64[3]) -> (f32[?3, ?4, ?5],) with outputs=["y"] {
  %0: f32[?3, ?4, ?5] = reshape(%x, %shape, shape=arg[1])
  %1: (f32[?3, ?4, ?5],) = (%0,)
  return %1
}
"""


def test_shapes_of_inputs_beside_one_whose_value_is_known() -> None:
    given = np.array([2, 2, 3])
    step = Specialize((("?1", 2), ("?2", 5)), (("shape", given),), (("x", (2, 6)), ("shape", (3,))))
    module = step.run(parse_module(RESHAPED), PassContext())
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert all(t.is_static for t in (p.tensor for p in module.main.params))
    assert {p.id for p in module.main.params} >= {
        n.id for n in post_order(module.main.body) if type(n).__name__ == "Var"
    }
    np.testing.assert_array_equal(
        interpret(module, {"x": x, "shape": given})["y"], x.reshape(2, 2, 3)
    )
