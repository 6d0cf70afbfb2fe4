"""Codes of quantized layers on machines without products of bytes, beside those of integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import clew
import zoo
from clew.machine.target import target_of
from quantized_layers import cut_at_codes, difference_of_codes

MOST_APART = 0.01
WITHOUT = replace(target_of("cpu-sse"), features="")


def test_few_codes_differ_by_one_and_none_by_more() -> None:
    """Sums of floats may round a code at a tie differently; later layers would amplify that."""
    model, feed = cut_at_codes(zoo.path("qdq_resnet_tiny"), zoo.inputs("qdq_resnet_tiny"))
    wanted = clew.compile(model, threads=1).run(feed)
    found = clew.compile(model, threads=1, target=WITHOUT).run(feed)
    assert len(wanted) > 10
    for output, codes in wanted.items():
        assert difference_of_codes(np.asarray(found[output]), np.asarray(codes)) <= MOST_APART


def test_a_difference_of_two_codes_is_an_error() -> None:
    codes = np.arange(200, dtype=np.uint8)
    assert difference_of_codes(codes, codes) == 0
    assert difference_of_codes(codes + (codes == 7), codes) == 1 / 200
    assert difference_of_codes(codes + 2 * (codes == 7), codes) == float("inf")
