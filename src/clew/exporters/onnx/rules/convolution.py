"""Convolutions and transposed convolutions."""

from __future__ import annotations

from typing import Any, Final

from clew.exporters.onnx.registry import Writing, writes

_SPATIAL: Final = {1: "W", 2: "HW", 3: "DHW"}
_BYTES: Final = ("i8", "u8")


def window_of(w: Writing) -> dict[str, Any]:
    """Returns ONNX's attributes for strides, dilations and padding."""
    if any(p < 0 for p in w.attrs.padding):
        w.refuse(f"padding={w.attrs.padding} crops")
    return {
        "strides": list(w.attrs.strides),
        "dilations": list(w.attrs.dilation),
        "pads": list(w.attrs.padding),
    }


def window_of_conv(w: Writing) -> dict[str, Any]:
    """Returns ONNX's attributes of a convolution. `live` has no attribute: the taps that it omits
    read only zeros.
    """
    attrs, spatial = w.attrs, _SPATIAL[w.types[0].rank - 2]
    plain = f"NC{spatial}"
    if attrs.data_layout != plain or attrs.get("out_layout", "") not in ("", plain):
        w.refuse(f"images are laid out as {attrs.data_layout}, {attrs.get('out_layout')}")
    if attrs.weight_layout != f"OI{spatial}":
        w.refuse(f"the weight is laid out as {attrs.weight_layout}")
    if attrs.channels not in (0, w.shape(1)[0]):
        w.refuse(f"channels={attrs.channels} are not all of the weight's")
    return {**window_of(w), "group": attrs.groups, "kernel_shape": list(w.shape(1)[2:])}


@writes("nn.conv1d", "nn.conv2d", "nn.conv3d")
def conv(w: Writing) -> str:
    """`Conv`, or `ConvInteger` for bytes; other short integers have no ONNX form."""
    return conv_of(w)


def conv_of(w: Writing, bias: str | None = None) -> str:
    """Returns a convolution with a bias, a vector of the channels."""
    window, dtype = window_of_conv(w), w.type.dtype
    data, weight = w.inputs
    if w.types[0].dtype in _BYTES and w.types[1].dtype in _BYTES:
        assert bias is None
        return w.emit("ConvInteger", data, weight, **window)
    return w.emit("Conv", w.cast(data, dtype), w.cast(weight, dtype), bias, **window)


@writes("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def conv_transpose(w: Writing) -> str:
    """`ConvTranspose`."""
    return conv_transpose_of(w)


def conv_transpose_of(w: Writing, bias: str | None = None) -> str:
    """Returns a transposed convolution with a bias, a vector of the channels."""
    extra = list(w.attrs.output_padding) or None
    return w.emit(
        "ConvTranspose",
        *w.inputs,
        bias,
        **window_of(w),
        group=w.attrs.groups,
        kernel_shape=list(w.shape(1)[2:]),
        output_padding=extra,
    )
