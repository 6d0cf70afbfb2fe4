"""Whole networks: imported and interpreted, they agree with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import clew
from clew.frontends.onnx import load
from clew.ir.expr import Call, Function
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from zoo import store

# ZFNet and VGG-19 have the operators of AlexNet at up to ten times the cost, a minute of numpy. The
# backend suite has all three.
LIGHT = [n for n in store.names("light") if n not in ("light_vgg19", "light_zfnet512")]
BUILT_HERE = [*LIGHT, *store.names("handmade")]
# The large exports need minutes of numpy; the quick ones have the same operators.
EXPORTED = [n for n in store.names("quick") if n not in BUILT_HERE]
# Exhaustive: the backend suite has AlexNet, whose file alone takes seconds to make; residual blocks
# are in smaller networks, too.
_FAR_LONGER = ["light_bvlc_alexnet"]
_INTERPRETED_LONG = [*_FAR_LONGER, "light_resnet50"]
# Exhaustive: the backend suite compiles light networks; the detector takes half a minute.
_COMPILED_LONG = [*(n for n in LIGHT if n != "light_squeezenet"), "detector_free"]


def quick(names: Iterable[str], long: Iterable[str]) -> list[Any]:
    """Parameters, of which the long ones are left to `make test-all`."""
    marked = {name: pytest.param(name, marks=pytest.mark.exhaustive) for name in long}
    return [marked.get(name, name) for name in names]


@pytest.fixture
def network(request):
    if request.param in EXPORTED:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    return request.param


@pytest.mark.parametrize(
    "network", quick([*BUILT_HERE, *EXPORTED], _INTERPRETED_LONG), indirect=True
)
def test_agrees_with_onnx_runtime(network):
    path, feeds = str(store.path(network)), store.inputs(network)
    module = load(path)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    found = interpret(module, feeds)
    for output, want in zip(session.get_outputs(), expected, strict=True):
        got = found[output.name]
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        limit = 1e-4 * np.abs(want).max()
        assert np.abs(got.astype(np.float64) - want).max() <= limit


@pytest.mark.parametrize("network", quick([*BUILT_HERE, *EXPORTED], _COMPILED_LONG), indirect=True)
def test_new_values_need_no_new_build(network):
    """A network whose activations were taken to decide sizes would be built for each input."""
    path = store.path(network)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    compiled = clew.compile(path, threads=1)
    assert not any(i.decides for i in compiled.inputs)
    for seed in range(3):
        feeds = store.inputs(network, seed)
        found = compiled.run(feeds)
        for output, want in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            limit = 1e-4 * np.abs(want).max()
            assert np.abs(found[output.name].astype(np.float64) - want).max() <= limit
    assert len(compiled._chain.kept) <= 1  # none at all where the cache had it


@pytest.mark.parametrize("network", quick([*BUILT_HERE, *EXPORTED], _FAR_LONGER), indirect=True)
def test_every_layer_and_node_is_accounted_for(network):
    module = load(store.path(network))
    nodes = [n for n in post_order(module.main, into_functions=True) if isinstance(n, Call)]
    assert all(n.span.layers for n in nodes)
    marked = {
        s.layer for n in post_order(module.main, into_functions=True) if not isinstance(n, Function)
        for s in n.span.sources if s.output is not None
    }  # fmt: skip
    served = {layer for n in nodes for layer in n.span.layers}
    assert served <= marked
    gone = {layer for layer, _, _ in module.main.attrs["eliminated"]}
    assert not served & gone


def test_symbolic_sizes_run_at_several_shapes():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name = "bert_tiny_dynamic"
    module = load(store.path(name))
    session = ort.InferenceSession(str(store.path(name)), providers=["CPUExecutionProvider"])
    symbols = {str(d) for p in module.main.params for d in p.type.shape if not isinstance(d, int)}
    assert symbols == set(store.dims(name))
    for scale in (1, 2, 3):
        feeds = store.inputs(name, **{k: v + scale for k, v in store.dims(name).items()})
        expected = session.run(None, feeds)
        found = interpret(module, feeds)
        for output, want in zip(session.get_outputs(), expected, strict=True):
            np.testing.assert_allclose(found[output.name], want, rtol=1e-3, atol=1e-4)
