"""Decoding of image files: a host operator that uses Pillow."""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.types import TensorType, Type
from clew.ops.common import f32, tensor_type, u8
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.support.libraries import optional_library

Array = np.ndarray[Any, Any]

MAX_PIXELS: Final = 1 << 26
"""The most pixels of an image: a file of a few bytes can declare billions."""
_CHANNELS: Final = {"RGB": 3, "BGR": 3, "Grayscale": 1}
# The formats that ONNX names; other formats of Pillow are not tried.
_FORMATS: Final = ("BMP", "DIB", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
_DOT: Final = np.frombuffer(b"P6 2 1 255\n\x01\x02\x03\xff\x00\x80", np.uint8)


@register_op(
    "image.decode",
    host=True,
    samples=(
        Sample(_DOT),
        Sample(_DOT, pixel_format="BGR"),
        Sample(_DOT, pixel_format="Grayscale"),
        Sample(_DOT[:9]),
        Sample(u8(0)),
        Sample(_DOT, pixel_format="CMYK", error="T107"),
        Sample(u8(3, 4), error="T102"),
        Sample(f32(3), error="T105"),
    ),
)
def image_decode(stream: Array, *, pixel_format: str = "RGB") -> Array:
    """The image encoded in a file's bytes, `u8[height, width, channels]`, as RGB, BGR or Grayscale
    (one channel): BMP, JPEG, JPEG 2000, TIFF, PNG, WebP and PNM. Data that cannot be decoded gives
    no pixels: `u8[0, 0, channels]`.

    Errors: T102, T105, T107; at run time T166 if Pillow is not installed, T167 for an image of more
    than `MAX_PIXELS`. Source: ONNX ImageDecoder-20.
    """
    pillow = _pillow()
    mode = "L" if pixel_format == "Grayscale" else "RGB"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(io.BytesIO(stream.tobytes()), formats=_FORMATS) as image:
                pixels = image.width * image.height
                if pixels <= MAX_PIXELS:
                    decoded = np.asarray(image.convert(mode), np.uint8)
    except pillow.DecompressionBombError:
        pixels = MAX_PIXELS + 1
    except Exception:  # of any kind, since the decoders of seven formats raise it
        return np.zeros((0, 0, _CHANNELS[pixel_format]), np.uint8)
    if pixels > MAX_PIXELS:
        raise GraphTypeError(
            "T167",
            f"image.decode: the image has more than {MAX_PIXELS} pixels",
            hint="decode it beforehand, or increase clew.ops.images.decode_image.MAX_PIXELS",
        )
    if mode == "L":
        return decoded[:, :, None]
    return np.ascontiguousarray(decoded[:, :, ::-1]) if pixel_format == "BGR" else decoded


def _pillow() -> Any:
    """Returns Pillow's image module.

    Errors: T166.
    """
    absent = GraphTypeError(
        "T166", "image.decode: Pillow is not installed", hint="pip install 'clew[image]'"
    )
    return optional_library("PIL.Image", absent)


@image_decode.types
def _image_decode_types(stream: Type, *, pixel_format: str) -> Type:
    source = tensor_type("image.decode", stream)
    if source.dtype != "u8":
        raise GraphTypeError("T105", f"image.decode: input is {source}, expected u8[n]")
    if source.rank != 1:
        raise GraphTypeError("T102", f"image.decode: input is {source}, expected u8[n]")
    channels = _CHANNELS.get(pixel_format)
    if channels is None:
        raise GraphTypeError(
            "T107",
            f"image.decode: pixel_format={pixel_format!r}",
            hint=f"it is {', '.join(_CHANNELS)}",
        )
    return TensorType((unknown_dim(), unknown_dim(), channels), "u8")
