"""The trace of TFLite models: instructions lead to layers, *same* links hold, and the values of
layers are LiteRT's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.formats import by_name
from clew.trace.refs import AsmRef
from tflite_files import Graph

from .litert import draw
from .test_streams import BANDS, Spotter

_WINDOW = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 1}
_WHOLE = ("nop", "push", "pop", "ret", "leave", "vzeroupper")  # of no layer


def _floats() -> tuple[bytes, np.ndarray]:
    graph, shape = Graph(), (1, 6, 5, 8)
    y = graph.input("x", shape, "f32")
    weight, bias = graph.constant(draw(1, 8, 3, 3, 8), "w"), graph.constant(draw(2, 8), "b")
    (y,) = graph.operator(
        "CONV_2D", [y, weight, bias], [("conv", shape, "f32")], ("Conv2DOptions", _WINDOW)
    )
    (y,) = graph.operator("LOGISTIC", [y], [("gate", shape, "f32")])
    return graph.file([y]), draw(3, *shape)


def _codes() -> tuple[bytes, np.ndarray]:
    """Returns a depthwise convolution and a product with channels of their own scales."""
    graph, rng, shape = Graph(), np.random.default_rng(5), (1, 6, 6, 8)
    like: dict[str, Any] = {"scale": [0.05], "zero": [-3]}
    y = graph.input("x", shape, "i8", **like)
    for op, name, size, axis in (
        ("DEPTHWISE_CONV_2D", "depth", (1, 3, 3, 8), 3), ("CONV_2D", "point", (8, 1, 1, 8), 0)
    ):  # fmt: skip
        scale = rng.uniform(0.004, 0.02, 8)
        codes = rng.integers(-127, 128, size, np.int8)
        weight = graph.constant(codes, f"w_{name}", scale=scale, axis=axis)
        bias = graph.constant(rng.integers(-500, 500, 8, np.int32), f"b_{name}", scale=scale * 0.05)
        options = f"{'Depthwise' if axis else ''}Conv2DOptions"
        given = (options, {**_WINDOW, **({"depth_multiplier": 1} if axis else {})})
        (y,) = graph.operator(op, [y, weight, bias], [(name, shape, "i8")], given, 3, **like)
    return graph.file([y]), rng.integers(-128, 128, shape, np.int8)


def _stream() -> tuple[bytes, np.ndarray]:
    return Spotter(1, codes=False).file_of_model(), draw(4, 1, 1, BANDS, 1)


@pytest.mark.parametrize("made", [_floats, _codes, _stream])
def test_models(made: Any, tmp_path: Any) -> None:
    data, x = made()
    path = tmp_path / "model.tflite"
    path.write_bytes(data)
    model = clew.compile(path, threads=1, cache=False)
    trace = model.trace
    assert not trace.check()
    feed = {each.name: x for each in model.inputs if each.name == "x"}
    report = trace.verify(**feed)
    assert report.ok, report
    for kernel, origins in zip(model.kernels, trace.kernels, strict=True):
        for number, instruction in enumerate(origins.asm, 1):
            if instruction.text.split()[0] not in _WHOLE:
                found = trace.backward(AsmRef(origins.call, number)).layers
                assert found, f"{kernel.name}: {instruction.text}"
    values = by_name("tflite").run(path, feed).layers()
    taps = model.tap("*", **feed, force=True)
    assert len(taps) > 1
    for layer, value in taps.items():
        wanted = values[layer, 0]
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
        else:
            np.testing.assert_array_equal(value, wanted)
