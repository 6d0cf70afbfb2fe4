"""Trained models inside Python packages. Left out where they cannot be downloaded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from exports import packages
from exports.packages import MODELS, NotThere, Packaged, checked

# Of small packages, models that compile in a second or two: a classifier of bytes, and recurrent
# networks of speech, in f32 and f16, at a time and in sequences. The others are exhaustive.
_QUICK = (
    "magika/standard_v3_3/model", "silero-vad/data/silero_vad", "silero-vad/data/silero_vad_half",
    "silero-vad/data/silero_vad_openvino_16k", "silero-vad/data/silero_vad_16k_sequence",
)  # fmt: skip
# To download, to compile, or to run; `python -m exports packages` runs these, too. They stay out of
# the exhaustive tests.
_SLOW = (
    "ch_PP", "dnsmos", "aecmos", "PP-OCRv6", "ch_ppocr_mobile_v2.0_cls_mobile", "P3_0017_full",
    "atspm-detector", "deepcut", "oskut", "tagger", "bilstm", "rawi", "traceforge", "livekit",
    "voicefilter", "embedder", "attacut-sc", "slovorez", "swift",
)  # fmt: skip
# It rounds values to 8 bits in each call, where another last digit may be another integer.
_ROUNDS = "common_old"
_MOST_ROUNDED = 0.02


def test_quick_models_are_models() -> None:
    assert {model.name for model in MODELS} >= set(_QUICK)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            model, id=model.name, marks=[] if model.name in _QUICK else [pytest.mark.exhaustive]
        )
        for model in MODELS
    ],
)
def test_they_agree_with_onnx_runtime(model: Packaged) -> None:
    if any(part in model.name for part in _SLOW):
        pytest.skip("slow: python -m exports packages")
    try:
        found = checked(model)
    except NotThere as error:
        pytest.skip(str(error))
    if _ROUNDS in model.name and found.status == "differs":
        assert found.difference < _MOST_ROUNDED, found.error
    else:
        assert found.status in ("agrees", "noisy"), found.error  # as far apart as its own levels
    assert not found.built_later


def test_what_cannot_be_downloaded_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        tried.append(command)
        return subprocess.CompletedProcess(command, 1, "", "no such package")

    monkeypatch.setattr(packages, "_FOLDER", tmp_path)
    monkeypatch.setattr(packages, "_failed", [])
    monkeypatch.setattr(packages.subprocess, "run", fail)
    for model in MODELS[:5]:
        with pytest.raises(NotThere, match="no such package"):
            model.path()
    assert len(tried) == 1
