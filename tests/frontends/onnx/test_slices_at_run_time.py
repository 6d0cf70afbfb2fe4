"""Slices whose bounds only the run knows: they agree with ONNX Runtime for any bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import clew
from clew.runtime.guard import GuardSide

FAR = 2**63 - 1
BOUNDS = (0, 1, 2, 5, 9, -1, -2, -7, FAR, -FAR, -FAR - 1)
# The axes of the input, and the axes and strides of the slice.
CASES = {
    "one axis": (1, "0", "1"),
    "the last of two, in steps": (2, "1", "2"),
    "backwards": (2, "0", "-1"),
    "two axes": (3, "2, 0", "-2, 3"),
    "far": (1, "0", str(FAR)),
}


def model(rank: int, axes: str, strides: str) -> onnx.ModelProto:
    count = len(axes.split(","))
    sizes = ", ".join(f"n{k}" for k in range(rank))
    results = ", ".join(f"k{k}" for k in range(rank))
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
    agraph (float[{sizes}] x, int64[{count}] begin, int64[{count}] end) => (float[{results}] y) {{
        axes = Constant <value = int64[{count}] {{{axes}}}> ()
        strides = Constant <value = int64[{count}] {{{strides}}}> ()
        part = Slice (x, begin, end, axes, strides)
        y = Neg (part)
    }}""")


@pytest.mark.parametrize("name", CASES)
def test_any_bounds(name: str) -> None:
    rank, axes, strides = CASES[name]
    made = model(rank, axes, strides)
    reference = onnxruntime.InferenceSession(made.SerializeToString())
    found = clew.compile(made, threads=1)
    diagnostics = clew.Diagnostics(guard=GuardSide.END)
    guarded = clew.compile(made, threads=1, diagnostics=diagnostics, cache=False)
    rng, count = np.random.default_rng(rank), len(axes.split(","))
    for number in range(30):
        sizes = rng.choice([0, 1, 4, 6] if number % 4 == 0 else [1, 4, 6], rank)
        feed: dict[str, Any] = {
            "x": rng.standard_normal(sizes).astype("f4"),
            "begin": rng.choice(BOUNDS, count),
            "end": rng.choice(BOUNDS, count),
        }
        if "-" in strides:  # there, ONNX Runtime takes the largest number as the first element
            feed["end"] = np.where(feed["end"] == FAR, -1, feed["end"])
        (wanted,) = reference.run(None, feed)
        for each in (found, guarded) if number < 12 else (found,):
            np.testing.assert_array_equal(each.run(feed)["y"], wanted)
