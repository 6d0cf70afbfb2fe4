"""`clew.diff` of a float model and its quantized form, as a file and as a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from small_models import convolutional, drawn

import clew
from clew.compare.show import as_text

DATA = drawn(6, 3, 8, 8)
OPTIONS: dict[str, Any] = {"threads": 1, "target": "cpu-avx2"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: Any) -> dict[str, clew.DiffReport]:
    """The differences from the file that was written, and from the module."""
    folder: Path = tmp_path_factory.mktemp("differences")
    onnx.save(convolutional(), folder / "float.onnx")
    q = clew.quantize(folder / "float.onnx", DATA, threads=1)
    assert q.recipe.layers[1].numbers, "an operand with a step per channel"
    q.save(folder / "int8.onnx")
    plain = clew.compile(folder / "float.onnx", **OPTIONS)
    found = {}
    for kind, other in (("file", folder / "int8.onnx"), ("module", q.module)):
        model = clew.compile(other, **OPTIONS)
        found[kind] = clew.diff(
            plain, model, DATA[:1], time=False, reference=False, bound=0.05, names=("f32", "int8")
        )
    return found


@pytest.mark.parametrize("kind", ["file", "module"])
def test_layers_are_paired_by_name(reports: dict[str, clew.DiffReport], kind: str) -> None:
    report = reports[kind]
    pairs = [(x.a, x.b, x.how) for x in report.layers if x.a and x.b]
    # The file has no node for the norm, which is part of the convolution.
    names = [a for a, _, _ in pairs]
    assert [n for n in names if n != "norm"] == [
        "stem.conv", "stem.act", "body.conv", "pool", "flat", "head",
    ]  # fmt: skip
    assert all(a == b and how == "name" for a, b, how in pairs)


@pytest.mark.parametrize("kind", ["file", "module"])
def test_conversions_are_shown_as_such(reports: dict[str, clew.DiffReport], kind: str) -> None:
    report = reports[kind]
    only = [x for x in report.layers if x.a is None]
    assert only
    assert all(set(x.differs) == {"conversion"} for x in only)
    quantize = {"file": "r.quantized", "module": "quantize(stem.act)"}[kind]
    told = report.layer(quantize).differs["conversion"]
    for text in ("quantize f32 → u8 of stem.act for body.conv", "zero point 0", "requantize"):
        assert text in told
    text = as_text(report)
    assert f"{len(only)} of the layers only in B are conversions" in text
    assert "quantize f32 → u8" in text


@pytest.mark.parametrize("kind", ["file", "module"])
def test_errors_by_layer_in_order(reports: dict[str, clew.DiffReport], kind: str) -> None:
    report = reports[kind]
    errors = {x.a: x.numerics for x in report.layers if x.numerics is not None}
    stored = errors["stem.act"]
    # The value is compared although only its integers are stored, each channel with its step.
    assert stored.at == "stem.act"
    assert stored.quantized
    assert 1e-3 < stored.between.rms < 0.03
    assert all(1e-5 < n.between.rms < 0.03 for n in errors.values())
    assert report.summary.first_beyond is None
    assert "no layer that can be compared is off by more than 0.05 (rms)" in as_text(report)
    assert "rms" in as_text(report)


def test_the_first_layer_beyond_a_bound() -> None:
    coarse = clew.quantization.Scheme(weight_bits=4, granularity="tensor", migration=False)
    net = clew.load(convolutional())
    q = clew.quantize(net, DATA, scheme=coarse, keep="stem.conv", threads=1)
    models = [clew.compile(m, **OPTIONS) for m in (net, q.module)]
    report = clew.diff(*models, DATA[:1], time=False, reference=False, bound=0.03)
    first = report.summary.first_beyond
    assert first == "body.conv"
    found = report.layer("body.conv").numerics
    assert found is not None
    assert found.between.rms > 0.03
    before = report.layer("stem.act").numerics
    assert before is not None
    assert before.between.rms < 0.03
    assert "the first layer off by more than 0.03 (rms) is body.conv (Conv)" in str(report)
    np.testing.assert_allclose(report.summary.bound, 0.03)
