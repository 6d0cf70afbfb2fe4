"""Signal processing, determinants, and moves along an axis by lengths or positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.frontends.building import call, filled, reshaped
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr


@converter("DFT", since=17)
def transform_along_attribute(layer: Layer) -> Result:
    """The axis as an attribute, to version 19."""
    return _transform(layer, {"axis": Constant(np.int64(layer.integer("axis")))})


@converter("DFT", since=20)
def transform(layer: Layer) -> Result:
    """The axis as an input, by default the last one before that of complex numbers."""
    axis = Constant(np.int64(-2)) if layer.optional(2) is None else layer.input(2)
    return _transform(layer, {"axis": axis})


def _transform(layer: Layer, sources: dict[str, Expr]) -> Result:
    axis = layer.builder.known.get(sources["axis"])
    if axis is not None and axis.size == 1:
        rank = layer.rank()
        place = layer.positive(int(axis.reshape(-1)[0]), rank)
        if place == rank - 1:
            raise layer.wrong(f"has axis {rank - 1}, which is that of complex numbers")
    if layer.optional(1) is not None:
        sources["length"] = layer.input(1)
    sources = {name: reshaped(source, ()) for name, source in sources.items()}
    flags = {name: layer.flag(name) for name in ("inverse", "onesided")}
    return held(layer, "dft", [layer.input(0)], sources, **flags)


@converter("STFT")
def short_time_transform(layer: Layer) -> Result:
    """Frames of the given length, else of the window's, else of the signal's."""
    signal, window = layer.input(0), layer.optional(2)
    if layer.rank() != 3:
        raise layer.wrong(f"takes 3 axes, got {layer.type(0)}")
    given: dict[str, Expr] = {"step": reshaped(layer.input(1), ())}
    attrs: dict[str, Any] = {"onesided": layer.flag("onesided")}
    if layer.optional(3) is not None:
        given["length"] = reshaped(layer.input(3), ())
    else:
        attrs["length"] = layer.type(0).shape[1] if window is None else layer.type(2).shape[0]
    inputs = [signal] if window is None else [signal, window]
    return held(layer, "stft", inputs, given, **attrs)


@converter("MelWeightMatrix")
def mel_weight_matrix(layer: Layer) -> Result:
    """A matrix made from five numbers."""
    names = ("bins", "length", "rate", "lower", "upper")
    given = {name: reshaped(layer.input(n), ()) for n, name in enumerate(names)}
    dtype = dtype_of(layer.integer("output_datatype"), "the result")
    return held(layer, "mel_weight_matrix", [], given, dtype=dtype)


@converter("ReverseSequence")
def reverse_sequence(layer: Layer) -> Result:
    """The first elements of each sequence in reverse."""
    batch, time = layer.integer("batch_axis"), layer.integer("time_axis")
    if {batch, time} != {0, 1}:
        raise layer.wrong(f"has batch_axis={batch} and time_axis={time}, expected 0 and 1")
    return call(
        "reverse_sequence", layer.input(0), layer.input(1), batch_axis=batch, time_axis=time
    )


@converter("TensorScatter")
def tensor_scatter(layer: Layer) -> Result:
    """New elements of a cache, at the front by default."""
    mode = layer.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise layer.wrong(f"has the mode {mode!r}")
    begin = layer.optional(2)
    if begin is None:
        begin = filled(0, "i64", layer.type(0).shape[:1])
    return call(
        "tensor_scatter",
        layer.input(0),
        layer.input(1),
        begin,
        axis=layer.axis(),
        circular=mode == "circular",
    )


# --- windows --------------------------------------------------------------------------------------


def _window(layer: Layer, weights: tuple[float, ...]) -> Result:
    """`w0 - w1 * cos(2πn / N) + w2 * cos(4πn / N)`: N is the size, or one less if symmetric."""
    dtype = dtype_of(layer.integer("output_datatype"), "the result")
    periodic = layer.flag("periodic")
    size = reshaped(layer.input(0), ())
    given = {"size": size}
    return held(layer, "window", [], given, weights=weights, periodic=periodic, dtype=dtype)


@converter("HannWindow")
def hann_window(layer: Layer) -> Result:
    """Source: ONNX HannWindow-17."""
    return _window(layer, (0.5, 0.5, 0.0))


@converter("HammingWindow")
def hamming_window(layer: Layer) -> Result:
    """Its two weights are 25/46 and 21/46. Source: ONNX HammingWindow-17."""
    return _window(layer, (25 / 46, 21 / 46, 0.0))


@converter("BlackmanWindow")
def blackman_window(layer: Layer) -> Result:
    """Source: ONNX BlackmanWindow-17."""
    return _window(layer, (0.42, 0.5, 0.08))
