"""Quantized models, against ONNX Runtime with and without its optimizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.machine.target import host

ort = pytest.importorskip("onnxruntime")
MODELS = zoo.names("quantized-quick")
_STEPS = 4 / 127  # of a result's range


def _runs(model: str, *, optimized: bool) -> Any:
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(zoo.path(model)), options)


def _apart(a: Any, b: Any) -> float:
    """The largest difference of outputs in units of their largest magnitude."""
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("model", "target"),
    [  # now on one target, now on another; the rest is exhaustive: whole networks on each target
        pytest.param(model, target, marks=[pytest.mark.exhaustive] if (n + k) % 3 else [])
        for n, model in enumerate(MODELS)
        for k, target in enumerate(("cpu", "cpu-avx512", "cpu-avx2"))
    ],
)
def test_results_are_as_near_as_those_of_an_optimizer(
    model: str, target: str, runs_here: Callable[[Any], None]
) -> None:
    """Sums on the border of two integers fall to either side, and grow from layer to layer."""
    runs_here(target)
    plain, optimized = (_runs(model, optimized=each) for each in (False, True))
    compiled = clew.compile(zoo.path(model), target=target, threads=1)
    for seed in range(3):
        feed = zoo.inputs(model, seed=seed)
        wanted = plain.run(None, feed)
        found = compiled.run(feed)
        allowed = 1.5 * _apart(optimized.run(None, feed), wanted) + _STEPS
        assert _apart([found[name] for name in found], wanted) <= allowed


@pytest.mark.parametrize("model", ["qdq_resnet_tiny", "qdq_mobilenet_tiny"])
def test_images_stay_in_bytes(model: str) -> None:
    """No kernel between the first `quantize` and the last pooling writes an image of floats."""
    compiled = clew.compile(zoo.path(model), threads=1)
    written = [k for k in compiled.kernels if "conv2d" in k.name]
    assert len(written) > 5
    pairs = () if host().dot_lanes("u8", "i8") else ("i16",)  # what this machine multiplies
    for kernel in written:
        assert kernel.call.tensor.dtype in ("u8", "i8", *pairs), kernel.name
