"""The graph's count agrees with one made independently, from the ONNX file."""

from __future__ import annotations

import pytest

import clew
import zoo
from clew.bench.flops import model_flops
from harness import flops as onnx_flops


@pytest.mark.parametrize(
    "name", ["bert_tiny", "mobilenet_tiny", "llama_tiny", "convnext_micro", "keyword_spotting"]
)
def test_flops_are_those_of_the_file(name: str) -> None:
    compiled = clew.compile(clew.load(zoo.path(name)), threads=1)
    assert model_flops(compiled.build) == onnx_flops.model_flops(zoo.path(name)) > 0


def test_named_sizes_count_as_the_run_settled_them() -> None:
    compiled = clew.compile(clew.load(zoo.path("bert_tiny_dynamic")), threads=1)
    counts = []
    for batch in (1, 3):
        compiled.run(zoo.inputs("bert_tiny_dynamic", batch=batch, sequence=8))
        counts.append(model_flops(compiled.build))
    assert counts[1] == 3 * counts[0] > 0
