"""Pooling over windows, and over all spatial axes."""

from __future__ import annotations

from typing import Any

from clew.exporters.onnx.registry import Writing, writes
from clew.exporters.onnx.rules.convolution import window_of
from clew.ir.types import is_float


def _pool(w: Writing) -> dict[str, Any]:
    """Returns ONNX's attributes for the windows of a pooling."""
    layout = w.attrs.get("layout", "")
    if layout:
        _need_plain(w, layout)
    return {
        **window_of(w),
        "kernel_shape": list(w.attrs.kernel),
        "ceil_mode": w.attrs.ceil_mode,
    }


def _need_plain(w: Writing, layout: str) -> None:
    plain = layout.startswith("NC") and layout.isalpha() and layout.isupper()
    if not plain or len(layout) != w.types[0].rank:
        w.refuse(f"images are laid out as {layout}")


@writes("nn.max_pool2d")
def max_pool(w: Writing) -> str:
    """`MaxPool` over one or more axes."""
    return w.emit("MaxPool", *w.inputs, **_pool(w))


@writes("nn.max_pool_places")
def max_pool_places(w: Writing) -> str:
    """The second result of `MaxPool`."""
    _, places = w.emit_many(
        "MaxPool", *w.inputs, outputs=2, **_pool(w), storage_order=w.attrs.column_major
    )
    return places


@writes("nn.avg_pool2d")
def avg_pool(w: Writing) -> str:
    """`AveragePool` over one or more axes."""
    counts = w.attrs.count_include_pad
    return w.emit("AveragePool", *w.inputs, **_pool(w), count_include_pad=counts)


@writes("nn.lp_pool2d")
def lp_pool(w: Writing) -> str:
    """`LpPool` over one or more axes."""
    return w.emit("LpPool", *w.inputs, **_pool(w), p=w.attrs.p)


@writes("nn.global_avg_pool2d")
def global_avg_pool(w: Writing) -> str:
    """`GlobalAveragePool`."""
    _need_plain(w, w.attrs.layout)
    return w.emit("GlobalAveragePool", *w.inputs)


@writes("nn.global_max_pool2d")
def global_max_pool(w: Writing) -> str:
    """`GlobalMaxPool`, or for integers `ReduceMax`."""
    _need_plain(w, w.attrs.layout)
    if is_float(w.types[0].dtype):
        return w.emit("GlobalMaxPool", *w.inputs)
    axes = range(2, w.types[0].rank)
    return w.emit("ReduceMax", *w.inputs, w.integers(*axes), keepdims=1)
