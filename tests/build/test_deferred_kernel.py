"""When kernels of sizes that only the data tell are compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import pytest

import clew
from clew.build.deferred_kernel import DeferredKernel

POSITIVE = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[8] x) => (float[m] y) {
    zero = Constant <value = float {0}> ()
    positive = Greater (x, zero)
    few = Compress (x, positive)
    y = Exp (few)
}"""


def compilations(counts: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the calls in which a kernel was compiled, of calls with so many elements above 0."""
    made: list[int] = []
    specialize = DeferredKernel._specialize

    def noted(self: DeferredKernel, *args: Any) -> Any:
        made.append(call)
        return specialize(self, *args)

    monkeypatch.setattr(DeferredKernel, "_specialize", noted)
    compiled = clew.compile(onnx.parser.parse_model(POSITIVE), threads=1)
    for call, count in enumerate(counts):
        x = np.where(np.arange(8) < count, call + 1.0, -1.0).astype(np.float32) / 8
        np.testing.assert_allclose(compiled(x), np.exp(x[:count]), rtol=1e-5)
    return made


def test_a_size_that_is_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([5] * 4, monkeypatch) == [2]


def test_a_size_that_comes_back_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations([3, *[5] * 18, 3, 3], monkeypatch) == [17]
