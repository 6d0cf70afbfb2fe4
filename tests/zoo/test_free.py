"""The networks with free sizes that are written by hand run at any size; the others are built where
they are measured.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import zoo


def run(name: str, **dims: int) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(zoo.path(name)), options)
    names = [each.name for each in session.get_outputs()]
    values = session.run(None, zoo.inputs(name, **dims))
    return dict(zip(names, map(np.asarray, values), strict=True))


def test_group() -> None:
    assert sorted(zoo.names("free")) == [
        "decoder_free",
        "detector_free",
        "encoder_free",
        "encoder_small_free",
        "speech_free",
    ]
    assert all(zoo.dims(name) for name in zoo.names("free"))


def test_keys_and_values_grow() -> None:
    ids, *past = zoo.inputs("decoder_free", past=0).values()
    assert ids.shape == (1, 1)
    assert {value.shape for value in past} == {(1, 2, 0, 64)}


@pytest.mark.parametrize(("batch", "sequence"), [(1, 1), (3, 40)])
def test_encoder(batch: int, sequence: int) -> None:
    hidden = run("encoder_small_free", batch=batch, sequence=sequence)["hidden"]
    assert hidden.shape == (batch, sequence, 256)
    assert 0.5 < hidden.std() < 2


@pytest.mark.parametrize(("height", "width"), [(64, 96), (77, 131)])
def test_detector(height: int, width: int) -> None:
    found = run("detector_free", height=height, width=width)
    places = sum(-(-height // stride) * -(-width // stride) for stride in (8, 16, 32))
    assert found["boxes"].shape == (1, places, 4)
    assert found["scores"].shape == (1, 8, places)
    detections = found["detections"]
    assert 0 < len(detections) < places
    assert detections[:, 4].min() > 0.3
    assert set(detections[:, 5]) <= set(range(8))
