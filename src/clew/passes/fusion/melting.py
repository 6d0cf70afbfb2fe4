"""Which depthwise convolutions share a kernel with the pointwise ones before and after them.

A kernel of several convolutions computes what lies between at bands of lines, which stay in the
second-level cache. That pays

- after the windows wherever a few lines of all channels stay there: the image between is neither
  written nor read, and no thread reads what another one has written;
- before the windows where the image between would leave the cache, as its lines beside a band are
  computed twice.
"""

from __future__ import annotations

import math
from typing import Final

from clew.ir.expr import Call, Expr
from clew.ir.types import TensorType, bits
from clew.passes.base import Machine

_RANK: Final = 5
# An image beyond this share of the cache comes from the next level when it is read again.
_STAYS: Final = 0.4
# A band's share of the cache; the rest is for weights, and for what the kernel reads.
_SHARE_OF_BAND: Final = 0.6
_SHARE_OF_WEIGHTS: Final = 0.2
# Pixels of a band that use a weight while it is near.
_FEWEST_PIXELS: Final = 96
# What writing a number beyond the second-level cache, and reading it, costs in multiply-adds.
_PRODUCTS_OF_A_MOVE: Final = 16.0


def _line_bytes(image: Expr) -> float:
    """Returns the bytes of a line of all channels of one image."""
    batch, _, height, *_ = image.tensor.concrete
    return _bytes(image) / batch / height


def _bytes(image: Expr) -> float:
    return math.prod(image.tensor.concrete) * bits(image.tensor.dtype) / 8


def is_windows(call: Call, target: Machine) -> bool:
    """Whether a call is a depthwise convolution of f32 in blocks of a vector."""
    groups = call.attrs.groups if _is_convolution(call, target) else 1
    return bool(groups > 1 and groups == call.attrs.channels)


def is_pointwise(call: Call, target: Machine) -> bool:
    """Whether a call is a 1x1 convolution of f32 in blocks of a vector, of all channels."""
    if not _is_convolution(call, target) or call.attrs.groups != 1:
        return False
    plain = not any(call.attrs.padding) and set(call.attrs.strides) == {1}
    return plain and call.args[1].tensor.shape[2:4] == (1, 1)


def _is_convolution(call: Call, target: Machine) -> bool:
    if call.op_name != "nn.conv2d" or not isinstance(call.type, TensorType):
        return False
    tensors = [call.tensor, *(a.tensor for a in call.args)]
    if any(t.dtype != "f32" or not t.is_static for t in tensors):
        return False
    layout = f"NCHW{target.vector_lanes('f32')}c"
    image = call.tensor.concrete
    if len(image) != _RANK or 0 in image:
        return False
    return call.attrs.data_layout == layout and call.attrs.out_layout in ("", layout)


def unfit_after(windows: Call, pointwise: Call, target: Machine) -> str:
    """Returns why a 1x1 convolution is not melted with the windows before it; "" if it is."""
    if _bytes(pointwise.args[1]) > target.l2_bytes * _SHARE_OF_WEIGHTS:
        return "its weights would pass by once for each band"
    _, _, height, width, _ = windows.tensor.concrete
    if -(-height // 2) * width < _FEWEST_PIXELS:
        return "half of its image has too few pixels for the weights to be used again"
    if _lines(windows, target, channels=1.0) < 1:
        return "lines of all channels do not stay in the second-level cache"
    return ""


def unfit_before(pointwise: Call, windows: Call, target: Machine) -> str:
    """Returns why a 1x1 convolution is not melted with the windows after it; "" if it is."""
    if _bytes(pointwise) <= target.l2_bytes * _STAYS:
        return "the image between stays in the second-level cache"
    step = windows.attrs.strides[0]
    lines = _lines(windows, target, channels=2 / pointwise.tensor.concrete[1])
    overlap = windows.args[1].tensor.concrete[2] - step
    _, blocks, _, _, lanes = pointwise.args[0].tensor.concrete
    again = overlap / (lines * step) * blocks * lanes if lines else math.inf
    if again > _PRODUCTS_OF_A_MOVE:
        return "bands overlap too much"
    return ""


def _lines(windows: Call, target: Machine, channels: float) -> int:
    """Returns how many lines of the windows' result a band has, beside what they read of a share of
    the channels.
    """
    _, _, *taps = windows.args[1].tensor.concrete
    step = windows.attrs.strides[0]
    read = _line_bytes(windows.args[0]) * channels
    room = target.l2_bytes * _SHARE_OF_BAND - taps[0] * read
    return max(0, int(room / (_line_bytes(windows) + step * read)))
