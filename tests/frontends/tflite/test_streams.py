"""A keyword spotter of realistic size, frame by frame, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.tflite.loader import load
from tflite_files import Graph

from .litert import frames

FRAMES, BANDS, CHANNELS, UNITS, MEMORY, WORDS = 100, 40, 16, 64, 8, 12
ZERO = {"scale": [0.05], "zero": [-3]}


class Spotter(Graph):
    """A convolution over 40 mel bands, three SVDF layers of 64 units, and a
    classifier: in floats, or in codes.
    """

    def __init__(self, batch: int, codes: bool) -> None:
        super().__init__()
        self.batch, self.codes, self.rng = batch, codes, np.random.default_rng(7)
        self.quantum: dict[str, Any] = ZERO if codes else {}
        self.dtype = "i8" if codes else "f32"

    def weight(self, *shape: int, size: float = 1.0) -> int:
        """Returns drawn weights."""
        value = self.rng.normal(0, size / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        if not self.codes:
            return self.constant(value)
        scale = float(np.abs(value).max() / 127)
        return self.constant(np.round(value / scale).astype(np.int8), scale=[scale])

    def bias(self, count: int, scale: float) -> int:
        """Returns a drawn bias."""
        value = self.rng.normal(0, 0.1, count).astype(np.float32)
        if not self.codes:
            return self.constant(value)
        return self.constant(np.round(value / scale).astype(np.int32), scale=[scale])

    def of(self, weight: int) -> float:
        """Returns the scale of products with a weight."""
        return 0.05 * float(self.scales(weight)[0]) if self.codes else 1.0

    def filtered(self, x: int, size: int, number: int) -> int:
        """Returns a layer of filters over time."""
        features = self.weight(2 * UNITS, size, size=2)
        times = self.rng.normal(0, 0.5, (2 * UNITS, MEMORY)).astype(np.float32)
        state: dict[str, Any] = {"is_variable": True}
        bias_scale, dtype = 1.0, "f32"
        if self.codes:
            dtype, state["scale"] = "i16", [0.001]
            kernel = self.constant(np.round(times / 1e-4).astype(np.int16), scale=[1e-4])
            bias_scale = 1e-7
        else:
            kernel = self.constant(times)
        shape = (max(self.batch, 1), 2 * UNITS * MEMORY)
        memory = self.tensor(f"memory_{number}", shape, dtype, **state)
        inputs = [x, features, kernel, self.bias(UNITS, bias_scale), memory]
        options = ("SVDFOptions", {"rank": 2, "activation": 1})
        result = [(f"svdf_{number}", (self.batch, UNITS), self.dtype)]
        return self.operator(
            "SVDF", inputs, result, options, 3 if self.codes else 1, **self.quantum
        )[0]

    def file_of_model(self) -> bytes:
        """Returns the file."""
        batch, quantum = self.batch, self.quantum
        x = self.input("x", (batch, 1, BANDS, 1), self.dtype, **quantum)
        filters = self.weight(CHANNELS, 1, 8, 1)
        window = ("Conv2DOptions", {"padding": 0, "stride_w": 2, "stride_h": 1, "activation": 1})
        inputs = [x, filters, self.bias(CHANNELS, self.of(filters))]
        result = [("conv", (batch, 1, BANDS // 2, CHANNELS), self.dtype)]
        (y,) = self.operator("CONV_2D", inputs, result, window, 3, **quantum)
        size = BANDS // 2 * CHANNELS
        shape = self.constant(np.int32([-1, size]))
        (y,) = self.operator(
            "RESHAPE", [y, shape], [("rows", (batch, size), self.dtype)], **quantum
        )
        for number in range(3):
            y = self.filtered(y, size if number == 0 else UNITS, number)
        last = self.weight(WORDS, UNITS)
        inputs = [y, last, self.bias(WORDS, self.of(last))]
        result = [("scores", (batch, WORDS), self.dtype)]
        options = ("FullyConnectedOptions", {})
        (y,) = self.operator("FULLY_CONNECTED", inputs, result, options, 4, **quantum)
        return self.file([y])


@pytest.mark.parametrize("codes", [False, True])
def test_a_stream_of_realistic_size(codes: bool) -> None:
    rng = np.random.default_rng(1)
    feeds: list[dict[str, np.ndarray]] = []
    for _ in range(FRAMES):
        drawn = rng.normal(0, 1.5, (2, 1, BANDS, 1))
        drawn = np.clip(np.round(drawn / 0.05) - 3, -128, 127) if codes else drawn
        feeds.append({"x": drawn.astype(np.int8 if codes else np.float32)})
    expected = [each for (each,) in frames(Spotter(2, codes).file_of_model(), feeds)]
    assert len({each.tobytes() for each in expected}) == FRAMES

    def near(found: np.ndarray, wanted: np.ndarray) -> None:
        if codes:
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())

    model = clew.compile(load(Spotter(-1, codes).file_of_model()), threads=1)
    session = model.session()
    for n, (feed, wanted) in enumerate(zip(feeds, expected, strict=True)):
        if n == FRAMES // 2:
            copy = session.copy()
        near(session(feed["x"]), wanted)
    for feed, wanted in zip(feeds[FRAMES // 2 :], expected[FRAMES // 2 :], strict=True):
        near(copy(feed["x"]), wanted)
    session.reset()
    near(session(feeds[0]["x"][:1]), expected[0][:1])  # of another batch size
    near(session(feeds[1]["x"][:1]), expected[1][:1])
    near(model(feeds[0]["x"]), expected[0])
