"""Which layers a narrow precision's error is laid to, and which are kept in f32 for a bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops  # registers the operators
import zoo
from clew.compare import precision
from clew.ir.expr import Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.support.errors import ClewError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

EXACT, ROUGH = "exact", "rough[1]"


def _module(*layers: tuple[str, Any], last: str = "") -> Module:
    """Dense layers, each with its name ("" for none) and weights."""
    x = Var("x", TensorType((4, layers[0][1].shape[1]), "f32"))
    y: Expr = x
    for name, weight in layers:
        with building(Span([Source(name)] if name else [])):
            y = get_op("nn.dense")(y, Constant(weight))
    if last:
        y = get_op(last)(y, axis=1)
    return Module({"main": Function([x], Tuple([y]), {"outputs": ("y",)})})


def _weights(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((32, 32)).astype(np.float32)


def _feeds(count: int) -> list[dict[str, Any]]:
    """Inputs that bf16 holds exactly."""
    rngs = [np.random.default_rng(seed) for seed in range(count)]
    return [{"x": rng.integers(-8, 9, (4, 32)).astype(np.float32)} for rng in rngs]


def test_the_layer_that_rounds_is_named() -> None:
    module = _module((EXACT, 2 * np.eye(32, dtype=np.float32)), (ROUGH, _weights(0)))
    said: list[str] = []
    report = clew.precision_report(
        module, _feeds(3), bound=1e-4, savings=1, threads=1, on_progress=said.append
    )
    first, second = report.layers
    assert (first.names, second.names) == ((ROUGH,), (EXACT,))
    assert first.share == pytest.approx(1)
    assert first.alone == report.error
    assert report.error.rms > 1e-3
    assert second.alone.worst < 1e-6
    assert first.without is not None
    assert first.without.worst < 1e-6
    assert second.without is None
    assert report.independent == pytest.approx(report.error.rms)
    assert report.kept is not None
    assert report.kept.met
    assert report.kept.keep_f32 == ("rough[[]1]",)
    kept = clew.compile(
        module, precision=clew.Precision("bf16", keep_f32=report.kept.keep_f32), threads=1
    )
    narrow = [k.layers for k in kept.kernels if "bf16" in k.loops]
    assert any(EXACT in layers for layers in narrow)
    assert not any(ROUGH in layers for layers in narrow)
    assert said[0] == "all in f32"
    assert report.to_json()["layers"][0]["alone"]["rms"] == first.alone.rms


def test_a_bound_that_holds_already_keeps_nothing() -> None:
    module = _module((ROUGH, _weights(0)), ("other", _weights(1)))
    report = clew.precision_report(module, _feeds(1)[0], bound=0.5, savings=0, threads=1)
    assert report.kept is not None
    assert report.kept.keep_f32 == ()
    assert report.kept.left == report.error
    assert all(layer.without is None for layer in report.layers)


def test_what_is_kept_throughout_is_no_candidate() -> None:
    module = _module(("one", _weights(0)), ("two", _weights(1)))
    report = clew.precision_report(
        module, _feeds(1), precision=clew.Precision("bf16", keep_f32=["o*"]), threads=1
    )
    assert [layer.names for layer in report.layers] == [("two",)]


def test_layers_without_a_name_cannot_be_kept() -> None:
    report = clew.precision_report(_module(("", _weights(0))), _feeds(1), bound=1e-6, threads=1)
    assert report.layers == ()
    assert report.kept is not None
    assert not report.kept.met


def test_products_with_a_name_in_common_are_one_layer() -> None:
    products = [("norm", "a"), ("b",), ("a", "c"), ("d", "e"), ("e", "f"), ("f", "g")]
    found = precision._layers(products, frozenset("g"))
    assert sorted(found) == [("a",), ("b",), ("d", "e", "f")]
    assert precision._layers([("norm", "a"), ()], frozenset("a")) == [("a",)]


def test_a_network_of_images() -> None:
    shape = zoo.inputs("resnet_tiny")
    feeds = [
        {n: np.random.default_rng(seed).standard_normal(v.shape).astype(np.float32)
         for n, v in shape.items()} for seed in range(2)
    ]  # fmt: skip
    path = zoo.path("resnet_tiny")
    report = clew.precision_report(path, feeds, bound=2e-3, threads=1)
    assert report.inputs == 2
    assert sum(layer.share for layer in report.layers) == pytest.approx(1)
    alone = [layer.alone.rms for layer in report.layers]
    assert alone == sorted(alone, reverse=True)
    assert report.kept is not None
    assert 0 < len(report.kept.keep_f32) < len(report.layers)
    assert report.kept.left.worst <= 2e-3 < report.error.worst
    exact, narrow, kept = (
        clew.compile(path, threads=1, precision=clew.Precision(p, keep_f32=k))
        for p, k in (("f32", ()), ("bf16", ()), ("bf16", report.kept.keep_f32))
    )
    for compiled, expected in ((narrow, report.error), (kept, report.kept.left)):
        pairs = [(compiled.run(f), exact.run(f)) for f in feeds]
        errors = [np.abs(a[n] - b[n]).max() / np.abs(b[n]).max() for a, b in pairs for n in b]
        assert max(errors) == pytest.approx(expected.worst)


def test_what_cannot_be_compared_is_refused() -> None:
    module = _module((ROUGH, _weights(0)))
    with pytest.raises(ClewError, match="I013"):
        clew.precision_report(module, _feeds(1), precision="f32")
    with pytest.raises(ClewError, match="I047"):
        clew.precision_report(module, [])
    with pytest.raises(ClewError, match="I047"):
        clew.precision_report(_module((ROUGH, _weights(0)), last="argmax"), _feeds(1))
