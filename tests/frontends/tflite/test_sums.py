"""Sums of 8-bit codes as one linear form: all pairs of codes round as in LiteRT's kernels."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.frontends.tflite.converters.quantized.sums import fitted
from clew.frontends.tflite.converters.quantized.tables import fixed
from clew.ir.expr import Call
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from tflite_files import Graph

from .litert import litert

# Scales of both operands and of the result, their zero points, and whether a form exists.
SCALES = {
    "drawn": ((0.05123, 0.07133, 0.09871), (3, -9, 4), True),
    "finer": ((0.0213, 0.0713, 0.0487), (0, 17, -128), True),
    "ties": ((0.125, 0.0625, 0.125), (5, 0, -7), True),
    "wide": ((0.09, 0.081234567, 0.0213579), (90, -101, 77), True),
    "narrow": ((0.0213579, 0.031234567, 0.0999), (-128, 127, 0), True),
    "equal": ((0.031, 0.031, 0.031), (0, 0, 0), True),
    "decimal": ((0.05, 0.07, 0.1), (3, -9, 4), False),
}


def pairs(op: str, scales: tuple[float, ...], zeros: tuple[int, ...], dtype: str) -> bytes:
    """Returns a file that adds or subtracts all pairs of codes."""
    half = 128 * (dtype == "u8")
    scale = [{"scale": [s], "zero": [z + half]} for s, z in zip(scales, zeros, strict=True)]
    graph = Graph()
    inputs = [
        graph.input(name, (256, 256), dtype, **each)
        for name, each in zip("ab", scale, strict=False)
    ]
    record = {"ADD": "AddOptions", "SUB": "SubOptions"}[op]
    result = [("y", (256, 256), dtype, scale[2])]
    return graph.file(graph.operator(op, inputs, result, (record, {"activation": 1}), 2))


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("op", ["ADD", "SUB"])
@pytest.mark.parametrize("name", list(SCALES))
def test_all_pairs_round_as_in_litert(name: str, op: str, dtype: str) -> None:
    scales, zeros, exists = SCALES[name]
    data = pairs(op, scales, zeros, dtype)
    codes = np.arange(256, dtype=np.uint8).view(np.int8 if dtype == "i8" else np.uint8)
    b, a = np.meshgrid(codes, codes)
    feeds = {"a": a, "b": b}
    module = clew.load(data)
    (expected,) = litert(data, feeds)
    assert np.array_equal(interpret(module, feeds)["y"], expected)
    if op == "ADD":
        ops = {n.op_name for n in post_order(module.main.body) if isinstance(n, Call)}
        assert ("scale_fixed" not in ops) == exists
    assert np.array_equal(clew.compile(data, threads=1)(a, b), expected)


def test_negative_sums_may_need_another_offset() -> None:
    codes = np.arange(-128, 128)
    scales = (0.13795738, 0.18462683, 0.16709681)
    steps = scales[0] / scales[2], scales[1] / scales[2]
    most, left = 2 * max(scales[:2]), 20
    a, b = (fixed(codes << left, scale / most) for scale in scales[:2])
    total = fixed(a[:, None] + b, most / (2.0**left * scales[2]))
    form = fitted((codes, codes), total, (-118, 118), steps)
    assert form is not None
    assert form.below > 0
    sums = form.first * codes[:, None] + form.second * codes
    found = (sums + form.offset - form.below * (sums < 0)) >> form.shift
    assert np.array_equal(np.clip(found, -118, 118), np.clip(total, -118, 118))


def test_rounding_that_is_not_linear_has_no_form() -> None:
    codes = np.arange(-128, 128)
    wanted = np.clip(codes[:, None] + codes + (codes % 3 == 0), -128, 127)
    assert fitted((codes, codes), wanted, (-128, 127), (1.0, 1.0)) is None


def test_results_that_reach_no_limit_keep_their_extremes() -> None:
    """A form that is free below the least result would round some pairs lower."""
    codes = np.arange(-128, 128)
    total = np.round(0.2 * codes[:, None] + 0.11 * codes).astype(np.int64)
    total[total == total.min()] += 1
    assert fitted((codes, codes), total, (-128, 127), (0.2, 0.11)) is None


def test_most_scales_have_a_form() -> None:
    """The sums keep as many bits as fit: with three fewer, a third of these scales have no form."""
    rng, codes = np.random.default_rng(1), np.arange(-128, 128)
    left = 20
    for _ in range(12):
        scales = rng.uniform(0.02, 0.1, 3).astype(np.float32).astype(np.float64)
        most, zeros = 2 * max(scales[:2]), (3, -9)
        a, b = (
            fixed((codes - zero) << left, scale / most)
            for zero, scale in zip(zeros, scales, strict=False)
        )
        total = fixed(a[:, None] + b, most / (2.0**left * scales[2])) + 4
        steps = scales[0] / scales[2], scales[1] / scales[2]
        form = fitted((codes - zeros[0], codes - zeros[1]), total, (-128, 127), steps, zeros)
        assert form is not None, scales
        sums = form.first * (codes[:, None] - zeros[0]) + form.second * (codes - zeros[1])
        found = sums + form.offset - form.below * (sums < 0)
        assert np.abs(found).max() < 2**31
        assert np.array_equal(np.clip(found >> form.shift, -128, 127), np.clip(total, -128, 127))
