"""Signal processing."""

from __future__ import annotations

import numpy as np

from clew.exporters.onnx.registry import Writing, writes


@writes("dft")
def dft(w: Writing) -> str:
    """`DFT`. The inverse of one-sided spectra has no form with checked shapes."""
    attrs = w.attrs
    if attrs.inverse and attrs.onesided:
        w.refuse("ONNX defines no inverse of one-sided spectra")
    return w.emit(
        "DFT",
        w.inputs[0],
        None if attrs.length is None else w.constant(np.int64(attrs.length)),
        w.constant(np.int64(attrs.axis)),
        inverse=attrs.inverse,
        onesided=attrs.onesided,
    )


@writes("stft")
def stft(w: Writing) -> str:
    """`STFT`."""
    return w.emit(
        "STFT",
        w.inputs[0],
        w.constant(np.int64(w.attrs.step)),
        w.inputs[1] if len(w.inputs) > 1 else None,
        w.constant(np.int64(w.attrs.length)),
        onesided=w.attrs.onesided,
    )


@writes("frames")
def frames(w: Writing) -> str:
    """`Gather` of the positions of each frame."""
    count = w.type.concrete[1]
    places = np.arange(count)[:, None] * w.attrs.step + np.arange(w.attrs.length)
    return w.emit("Gather", w.inputs[0], w.constant(places), axis=1)


@writes("complex_multiply")
def complex_multiply(w: Writing) -> str:
    """The real and the imaginary part, joined."""

    def part(x: str, n: int) -> str:
        return w.emit("Gather", x, w.integers(n), axis=-1)

    (a, b), (c, d) = ([part(x, n) for n in range(2)] for x in w.inputs)
    real = w.emit("Sub", w.emit("Mul", a, c), w.emit("Mul", b, d))
    imaginary = w.emit("Add", w.emit("Mul", a, d), w.emit("Mul", b, c))
    return w.emit("Concat", real, imaginary, axis=-1)
