"""The long tail: which networks are in it, and that one of them can be built."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import zoo
from zoo import store

# Figures of different versions are compared by these names: the list never changes.
UNSEEN = {
    "dla34", "res2net50_26w_4s", "hrnet_w18_small", "ghostnetv2_100", "mobilevit_s",
    "edgenext_small", "poolformer_s12", "mixer_s16_224", "xcit_tiny_12_p16_224",
    "deeplabv3_mobilenet", "r3d_18", "deberta_v3_small", "mobilebert", "hifigan",
    "depth_anything_small",
}  # fmt: skip


def test_groups() -> None:
    assert set(zoo.names("unseen")) == UNSEEN
    tail = set(zoo.names("tail"))
    assert {"gru_bidirectional", "segformer_b0", "whisper_tiny_encoder", "unet"} < tail
    known = {name for group in ("full", "heldout", "light", "batch") for name in zoo.names(group)}
    assert not known & (UNSEEN | tail)
    assert not UNSEEN & tail


@pytest.mark.parametrize("name", [*zoo.names("tail"), *zoo.names("unseen")])
def test_inputs_are_one_example_and_differ_by_seed(name: str) -> None:
    first, other = zoo.inputs(name, seed=0), zoo.inputs(name, seed=1)
    for key, value in first.items():
        assert value.shape[0] == 1
        assert value.shape == other[key].shape
        assert np.isfinite(value).all()
    assert any((value != other[key]).any() for key, value in first.items())


def test_a_version_of_a_library_makes_models_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = {entry.sources[0] for entry in store._catalog().values() if entry.name == "dla34"}
    plain = store._freshness((source,), ())
    monkeypatch.setattr(store.metadata, "version", lambda name: "1" if name == "timm" else "0")
    store._freshness.cache_clear()
    other, again = store._freshness((source,), ("timm",)), store._freshness((source,), ())
    store._freshness.cache_clear()
    assert len({plain, other, again}) == 3


def test_a_model_is_exported_with_weights_that_let_inputs_through() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    path = zoo.path("gru_bidirectional")
    opsets = {each.domain: each.version for each in onnx.load(path).opset_import}
    assert opsets[""] == 20
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (first,), (other,) = (session.run(None, zoo.inputs("gru_bidirectional", s)) for s in (0, 1))
    assert first.shape == (1, 100, 512)
    assert np.isfinite(first).all()
    assert np.abs(first - other).max() > 0.1 * np.abs(first).max()
