"""Decides which depthwise convolutions share a kernel with adjacent pointwise convolutions.

A kernel of several convolutions computes intermediate images in bands of lines, which stay in the
second-level cache. That is profitable

- after the windows wherever a few lines of all channels stay in that cache: the intermediate image
  is neither written nor read, and no thread reads what another has written;
- before the windows where the intermediate image would not fit the cache. The lines that overlap
  with the next band are computed twice.
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost import locality
from clew.cost.policy.fusion import PIXELS_PER_WEIGHT
from clew.ir.expr import Call, Expr
from clew.ir.types import TensorType, bits
from clew.machine.target import Target

_RANK: Final = 5


def _line_bytes(image: Expr) -> float:
    """Returns the bytes of a line of all channels of one image."""
    batch, _, height, *_ = image.tensor.concrete
    return _bytes(image) / batch / height


def _bytes(image: Expr) -> float:
    return math.prod(image.tensor.concrete) * bits(image.tensor.dtype) / 8


def is_windows(call: Call, target: Target) -> bool:
    """Whether a call is an f32 depthwise convolution in blocks of one vector."""
    groups = call.attrs.groups if _is_convolution(call, target) else 1
    return bool(groups > 1 and groups == call.attrs.channels)


def is_pointwise(call: Call, target: Target) -> bool:
    """Whether a call is an f32 1x1 convolution over all channels in blocks of one vector."""
    if not _is_convolution(call, target) or call.attrs.groups != 1:
        return False
    plain = not any(call.attrs.padding) and set(call.attrs.strides) == {1}
    return plain and call.args[1].tensor.shape[2:4] == (1, 1)


def _is_convolution(call: Call, target: Target) -> bool:
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


def unfit_after(windows: Call, pointwise: Call, target: Target) -> str:
    """Returns why a 1x1 convolution is not melted with the windows before it; "" if it is."""
    if not locality.weights_stay_near(_bytes(pointwise.args[1]), target):
        return "its weights would be read again for each band"
    _, _, height, width, _ = windows.tensor.concrete
    if -(-height // 2) * width < PIXELS_PER_WEIGHT:
        return "half of its image has too few pixels to reuse the weights"
    if _lines(windows, target, channels=1.0) < 1:
        return "lines of all channels do not stay in the second-level cache"
    return ""


def unfit_before(pointwise: Call, windows: Call, target: Target) -> str:
    """Returns why a 1x1 convolution is not melted with the windows after it; "" if it is."""
    if locality.stays_near(_bytes(pointwise), target):
        return "the intermediate image stays in the second-level cache"
    step = windows.attrs.strides[0]
    lines = _lines(windows, target, channels=2 / pointwise.tensor.concrete[1])
    overlap = windows.args[1].tensor.concrete[2] - step
    _, blocks, _, _, lanes = pointwise.args[0].tensor.concrete
    again = locality.recomputed_products(overlap, lines, step, blocks * lanes)
    if again > locality.products_worth_a_move(target):
        return "bands overlap too much"
    return ""


def _lines(windows: Call, target: Target, channels: float) -> int:
    """Returns the number of result lines in a band that fit the cache together with the lines they
    read of a share of the channels.
    """
    _, _, *taps = windows.args[1].tensor.concrete
    step = windows.attrs.strides[0]
    read = _line_bytes(windows.args[0]) * channels
    return locality.lines_in_band(_line_bytes(windows), read, taps[0], step, target)
