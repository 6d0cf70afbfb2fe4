"""Sizes that only the data of a run decide, in models whose inputs have free sizes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import clew

# The state has as many rows as the input, and none after an iteration.
_EMPTIED = """
<ir_version: 10, opset_import: ["": 20]>
emptied (float[n, 2] x, int64 count) => (float[m, 2] y) {
  on = Constant <value = bool {1}> ()
  y = Loop (count, on, x) <body = body (int64 i, bool before, float[k, 2] s)
    => (bool after, float[l, 2] t) <float[0, 2] none = {}> {
      after = Identity (before)
      less = Sub (s, none)
      product = Mul (less, s)
      t = Add (product, none)
  }>
}
"""


@pytest.mark.filterwarnings("ignore:.*I319")
def test_a_state_that_is_emptied() -> None:
    model = clew.compile(onnx.parser.parse_model(_EMPTIED), threads=1)
    for rows, count in ((1, 0), (0, 0), (1, 2), (0, 3), (3, 0), (3, -2)):
        x = np.full((rows, 2), 2.5, np.float32)
        found = model.run({"x": x, "count": np.array(count, np.int64)})["y"]
        np.testing.assert_array_equal(found, x[: 0 if count > 0 else rows])
