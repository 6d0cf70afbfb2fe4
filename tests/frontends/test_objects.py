"""Python objects that are not models: what to write instead."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import clew


def _of(module: str, name: str) -> Any:
    return type(name, (), {"__module__": module})()


_NETWORK = nn.Linear(2, 2).eval()
_CASES: list[tuple[Any, str]] = [
    (_NETWORK, r"clew\.from_torch\(model\.eval\(\), \(x,\)\)"),
    (torch.jit.script(_NETWORK), r"clew\.from_torch\(model\.eval\(\), \(x,\)\)"),
    (_NETWORK.state_dict(), "load_state_dict"),
    ({}, "load_state_dict"),
    (np.zeros(3), "one array"),
    (torch.zeros(3), "one array"),
    (lambda x: x, "wrap it in a torch.nn.Module"),
    (nn.Linear, "make an object of it"),
    (io.BytesIO(), r"file\.read\(\)"),
    (onnx.GraphProto(), "make_model"),
    ([_NETWORK], "one model"),
    (None, "a file's name"),
    (3, "a file's name"),
    (_of("sklearn.ensemble._forest", "RandomForestClassifier"), "skl2onnx"),
    (_of("keras.src.models.model", "Model"), "format='onnx'"),
    (_of("xgboost.core", "Booster"), "convert_xgboost"),
    (_of("transformers.pipelines.base", "Pipeline"), r"pipeline\.model"),
    (_of("jaxlib._jax", "PjitFunction"), "jax2onnx"),
    (_of("openvino._pyopenvino", "Model"), "made from"),
]


@pytest.mark.parametrize(("given", "advice"), _CASES)
@pytest.mark.parametrize("door", [clew.load, clew.compile])
def test_objects_have_advice(door: Any, given: Any, advice: str) -> None:
    with pytest.raises(clew.ClewError, match="I002") as caught:
        door(given)
    assert re.search(advice, caught.value.hint), caught.value


@pytest.mark.parametrize("more", [((torch.ones(1, 2),),), (torch.ones(1, 2),), (1, 2)])
def test_a_module_with_its_inputs_has_advice(more: tuple[Any, ...]) -> None:
    with pytest.raises(clew.ClewError, match=r"I002.*torch.nn.modules.linear.Linear") as caught:
        clew.compile(_NETWORK, *more)
    assert "clew.from_torch(model.eval(), (x,))" in caught.value.hint


def test_wrong_options_of_a_model_are_reported() -> None:
    module = clew.from_torch(_NETWORK, (torch.ones(1, 2),))
    with pytest.raises(clew.ClewError, match="I010"):
        clew.compile(module, (torch.ones(1, 2),))  # type: ignore[arg-type]
    with pytest.raises(clew.ClewError, match=r"I014.*2 options"):
        clew.compile(module, "cpu", 2)  # type: ignore[call-arg]
    with pytest.raises(clew.ClewError, match="I010"):
        clew.compile("model.onnx", ())  # type: ignore[arg-type]


def test_a_compiled_model_is_no_model() -> None:
    compiled = clew.compile(clew.from_torch(_NETWORK, (torch.ones(1, 2),)))
    with pytest.raises(clew.ClewError, match=r"I002(?s:.*)compiled already"):
        clew.compile(compiled)  # type: ignore[arg-type]


def test_exported_programs_are_models() -> None:
    x = torch.randn(3, 2)
    compiled = clew.compile(torch.export.export(_NETWORK, (x,)))  # type: ignore[arg-type]
    np.testing.assert_allclose(compiled(x), _NETWORK(x).detach(), atol=1e-6)


def test_objects_that_hold_an_onnx_model() -> None:
    """Those of `torch.onnx.export`, onnxscript and onnx_ir."""
    graph = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    program = type(
        "ONNXProgram",
        (),
        {"__module__": "torch.onnx._internal.exporter._onnx_program", "model_proto": graph},
    )
    function = type(
        "OnnxFunction",
        (),
        {"__module__": "onnxscript.values", "to_model_proto": lambda self: graph},
    )
    for held in (program(), function()):
        np.testing.assert_array_equal(clew.compile(held)(np.array([1, -2], np.float32)), [-1, 2])
