"""A network of 1-D convolutions on a single signal."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from zoo import builder
from zoo.builder import Builder
from zoo.entries import Entry, Input, normal

_FRAMES = 40
_BANDS = 80
_CHANNELS = 128
_UPSAMPLING = ((8, 16), (8, 16), (2, 4), (2, 4))  # stride and width of the kernel
_WIDTHS = (3, 7, 11)
_DILATIONS = (1, 3, 5)


def entries() -> Iterator[Entry]:
    """Yields the vocoder."""
    spectrum = Input("spectrum", (1, _BANDS, _FRAMES), normal)
    sources = (Path(__file__), Path(builder.__file__))
    yield Entry("vocoder", frozenset({"audio"}), _build, (spectrum,), sources)


def _build(path: Path) -> None:
    """A generator of waves from mel spectra: upsampling, each followed by residual blocks.

    Source: Kong, Kim and Bae, HiFi-GAN: Generative Adversarial Networks for Efficient and High
    Fidelity Speech Synthesis, 2020.
    """
    b = Builder(seed=11)
    channels = _CHANNELS
    x = _conv(b, "first", "spectrum", _BANDS, channels, 7)
    for level, (stride, width) in enumerate(_UPSAMPLING):
        name = f"up{level}"
        given, channels = channels, channels // 2
        x = b.node("LeakyRelu", f"{name}.relu", [x], alpha=0.1)
        deviation = (stride / (given * width)) ** 0.5
        weight = b.drawn(f"{name}.weight", (given, channels, width), deviation)
        bias = b.drawn(f"{name}.bias", (channels,), 0.1)
        pads = [(width - stride) // 2] * 2
        x = b.node("ConvTranspose", name, [x, weight, bias], strides=[stride], pads=pads)
        parts = [_block(b, f"{name}.block{w}", x, channels, w) for w in _WIDTHS]
        total = b.node("Sum", f"{name}.sum", parts)
        count = b.weight(f"{name}.count", np.array(len(parts), np.float32))
        x = b.node("Div", f"{name}.mean", [total, count])
    x = b.node("LeakyRelu", "last.relu", [x], alpha=0.01)
    x = _conv(b, "last", x, channels, 1, 7)
    b.result("Tanh", "audio", [x])
    samples = _FRAMES * int(np.prod([stride for stride, _ in _UPSAMPLING]))
    b.save(
        "vocoder",
        [make_tensor_value_info("spectrum", TensorProto.FLOAT, [1, _BANDS, _FRAMES])],
        [make_tensor_value_info("audio", TensorProto.FLOAT, [1, 1, samples])],
        path,
    )


def _block(b: Builder, name: str, x: str, channels: int, width: int) -> str:
    for dilation in _DILATIONS:
        inside = x
        for half, apart in enumerate((dilation, 1)):
            own = f"{name}.{dilation}.{half}"
            inside = b.node("LeakyRelu", f"{own}.relu", [inside], alpha=0.1)
            inside = _conv(b, own, inside, channels, channels, width, apart)
        x = b.node("Add", f"{name}.{dilation}.add", [inside, x])
    return x


def _conv(
    b: Builder, name: str, x: str, given: int, made: int, width: int, dilation: int = 1
) -> str:
    weight = b.drawn(f"{name}.weight", (made, given, width), (given * width) ** -0.5)
    bias = b.drawn(f"{name}.bias", (made,), 0.1)
    pads = [(width - 1) * dilation // 2] * 2
    return b.node("Conv", name, [x, weight, bias], dilations=[dilation], pads=pads)
