"""Networks as they are before placement, written as ONNX models: the same outputs in ONNX Runtime
and after clew reads them back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
import pytest

import clew
import zoo
from clew.backends.backend import Backend, CompiledRegion
from clew.backends.onnxruntime.limits import saturates_sums
from clew.exporters.onnx import write
from clew.frontends.onnx import load
from clew.ir.expr import Function
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.machine.target import Target, host
from clew.passes.manager import PassManager
from clew.passes.placement.merge_composite import MergeComposite
from clew.pipelines import pipeline
from random_graphs import Graph, close

from .onnx_models import run


class _Nothing(Backend):
    """A backend, so that the pipeline has placement."""

    name = "nothing"

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        raise AssertionError(region)


def before_placement(module: Module) -> Module:
    """Returns a module as backends see it."""
    passes = pipeline(backends=[_Nothing()])
    count = next(n for n, p in enumerate(passes) if isinstance(p, MergeComposite))
    return PassManager(passes[:count], target=host(), trace=False).run(module)


def _in_onnx_runtime(path: str, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, feed)]


_FLOATS = ["resnet_tiny", "vit_tiny", "keyword_spotting", "llama_tiny"]
_INTEGERS = ["qdq_resnet_tiny", "qdq_vit_tiny", "dynamic_bert_tiny"]
_MORE = [
    "mobilenet_tiny", "convnext_micro", "bert_tiny", "gpt2_tiny", "qdq_mobilenet_tiny",
    "qdq_bert_tiny", "light_squeezenet", "light_shufflenet", "light_inception_v1",
    "light_densenet121", "light_resnet50",
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [*_FLOATS, *_INTEGERS, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in _MORE)],
)
def test_networks(name: str) -> None:
    quantized = name.startswith(("qdq", "dynamic"))
    if quantized and saturates_sums():
        pytest.skip("ONNX Runtime's sums of bytes may saturate on this CPU")
    path, feed = zoo.path(name), zoo.inputs(name)
    module = load(path, inputs={k: v.shape for k, v in feed.items()})
    written = write(before_placement(module).main, name=name)
    ordered = {k: feed[k] for k in written.inputs}
    expected = _in_onnx_runtime(str(path), feed)
    found = run(written, ordered)
    _alike(found, expected, quantized)
    read = clew.compile(written.model, cache=False, threads=1)
    _alike(list(read.run(ordered).values()), found, quantized)


def _alike(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], integers: bool) -> None:
    """Compares outputs. Those of quantized networks differ by whole steps where a sum is a tie."""
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        apart, most = np.abs(a.astype("f8") - b), float(np.abs(b).max())
        if integers:
            assert apart.mean() <= 0.02 * most
        else:
            assert apart.max() <= 1e-4 * most


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    graph = Graph(seed)
    for _ in range(10):
        graph.grow()
    module = graph.module()
    expected = interpret(module, graph.arrays)
    for stage in (module, before_placement(module)):
        written = write(stage.main)
        fed = dict(zip(written.inputs, graph.arrays.values(), strict=True))
        for found in (run(written, fed), interpret(load(written.model), fed).values()):
            for a, b in zip(found, expected.values(), strict=True):
                close(a, b)
