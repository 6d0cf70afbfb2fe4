"""A small model with calls that the accelerator takes, and what tests do with it."""

from __future__ import annotations

from typing import Any

import numpy as np

import clew
from clew.ir.parser import parse_module

Array = np.ndarray[Any, Any]

LAYERS = """
clew 1
def @main(
  %x: f32[4, 8],  // input x
  %w: f32[8, 8]  // input w
) -> (f32[4, 8], f32[4, 8]) with outputs=["y", "z"] {
  %0 = nn.matmul(%x, %w)  // fc:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = add(%1, %x)  // sum:Add#0
  %3 = nn.softmax(%2)  // soft:Softmax#0
  %4 = add(%3, %x)  // out:Add#0
  %5 = exp(%2)  // power:Exp#0
  %6 = (%4, %5)
  return %6
}
"""


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs() -> dict[str, Array]:
    return {"x": drawn(4, 8), "w": drawn(8, 8, seed=1)}


def compiled_for(backend: clew.Backend, model: Any = LAYERS, **options: Any) -> Any:
    module = parse_module(model) if isinstance(model, str) else model
    return clew.compile(module, backends=[backend], **{"cache": False, **options})


def agree(model: Any, compiled: Any, given: dict[str, Array]) -> None:
    expected = clew.compile(model, cache=False, opt_level=0).run(given)
    for name, value in compiled.run(given).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
