"""Fourier transforms and complex numbers. Inside a layer, a complex number is a pair of reals."""

from __future__ import annotations

from clew.frontends.building import call, reshaped
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr


@converter("RFFT2D")
def rfft2d(layer: TfliteLayer) -> Result:
    """The real transform along the last two axes, of given sizes; the last axis has half of the
    spectrum.
    """
    x, (height, width) = layer.input(0), layer.numbers(1, "the lengths")
    x = reshaped(x, (*x.tensor.shape, 1))
    x = call("dft", x, axis=x.tensor.rank - 2, length=width, onesided=True)
    x = call("dft", x, axis=x.tensor.rank - 3, length=height)
    return call("complex_of", x)


def _parts(layer: TfliteLayer) -> tuple[Expr, Expr]:
    pairs = call("complex_parts", layer.input(0))
    shape: tuple[Dim, ...] = layer.type(0).shape
    axis = len(shape)
    real, imaginary = (
        reshaped(call("slice", pairs, begin=(n,), end=(n + 1,), strides=(1,), axes=(axis,)), shape)
        for n in range(2)
    )
    return real, imaginary


@converter("REAL")
def real(layer: TfliteLayer) -> Result:
    """The real parts."""
    return _parts(layer)[0]


@converter("IMAG")
def imaginary(layer: TfliteLayer) -> Result:
    """The imaginary parts."""
    return _parts(layer)[1]


@converter("COMPLEX_ABS")
def complex_abs(layer: TfliteLayer) -> Result:
    """The magnitudes of complex numbers."""
    squares = [call("multiply", part, part) for part in _parts(layer)]
    return call("sqrt", call("add", *squares))
