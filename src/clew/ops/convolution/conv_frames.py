"""Three-dimensional convolutions of video clips whose frames are the images of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.ir.expr import Attrs
from clew.ir.types import TensorType
from clew.ops.common import f16, f32, i8, u8
from clew.ops.convolution.stages import convolve, convolved, product_group
from clew.ops.movement.layouts import parse_layout, transform
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.te import Tensor

Array = np.ndarray[Any, Any]


@register_op(
    "nn.conv3d_frames",
    traits=Traits(product="weights", packs_weight=True),
    samples=(
        Sample(f32(5, 2, 4, 6), f32(3, 2, 3, 2, 1), frames=5, padding=(1, 0, 1, 1, 1, 0)),
        Sample(f32(8, 4, 4, 4), f32(2, 2, 2, 2, 2), frames=4, groups=2, strides=(2, 1, 2)),
        Sample(f32(6, 2, 4, 4), f32(4, 2, 3, 1, 1), frames=3, padding=(2, 0, 0, 2, 0, 0),
               dilation=(2, 1, 1)),
        Sample(f32(4, 2, 4, 4, 4), f32(1, 2, 3, 1, 1, 4, 8), frames=2, padding=(1, 0, 0, 1, 0, 0),
               data_layout="NCHW4c", weight_layout="OIDHW4i8o", low=-0.5, high=0.5),
        Sample(f32(5, 3, 4, 5), f32(2, 1, 3, 2, 2, 3, 8), frames=5, strides=(2, 1, 2),
               padding=(0, 0, 0, 1, 0, 0), weight_layout="OIDHW3i8o", out_layout="NCHW8c"),
        Sample(f32(4, 2, 3, 3, 4), f32(2, 1, 3, 3, 3, 4), frames=4, groups=8,
               padding=(1, 1, 1, 1, 1, 1), data_layout="NCHW4c", weight_layout="OIDHW4o"),
        Sample(f32(4, 6, 5, 5), f32(4, 1, 3, 3, 3, 3, 4), frames=4, groups=2,
               padding=(1, 1, 1, 1, 1, 1), weight_layout="OIDHW3i4o", out_layout="NCHW4c"),
        Sample(f16(3, 3, 5, 5), f16(4, 3, 3, 3, 3), frames=3),
        Sample(f16(4, 2, 4, 4, 4), f16(1, 3, 3, 1, 4, 8, 2), frames=2, padding=(1, 1, 0, 1, 1, 0),
               data_layout="NCHW4c", weight_layout="ODHWI8o2i", out_dtype="f32"),
        Sample(u8(3, 1, 5, 5, 4), i8(1, 2, 3, 3, 1, 8, 4), frames=3, data_layout="NCHW4c",
               weight_layout="ODHWI8o4i", out_layout="NCHW8c", low=0, high=9),
        Sample(f32(5, 2, 4, 6), f32(3, 2, 3, 2, 1), frames=2, error="T107"),
        Sample(f32(5, 2, 4, 6), f32(3, 2, 3, 2, 1), frames=0, error="T107"),
        Sample(f32(5, 2, 4, 6), f32(3, 3, 3, 2, 1), frames=5, error="T103"),
        Sample(f32(4, 2, 4, 6), f32(3, 2, 3, 2, 1), frames=2, error="T110"),
        Sample(f32(5, 2, 4, 6), f32(3, 2, 3, 2), frames=5, error="T109"),
    ),
)  # fmt: skip
def conv3d_frames(
    data: Tensor,
    weight: Tensor,
    *,
    frames: int,
    strides: tuple[int, ...] = (1, 1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1, 1),
    groups: int = 1,
    channels: int = 0,
    data_layout: str = "NCHW",
    weight_layout: str = "OIDHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> Tensor:
    """`nn.conv3d` on clips of `frames` consecutive images: `data[N * frames, C, H, W]` gives
    `[N * result frames, O, H', W']`. Layouts may be blocked as in `nn.conv2d`.

    Errors: T101, T103, T107, T109, T110.
    """
    return convolve("nn.conv3d_frames", "DHW", data, weight, {
        "strides": strides, "padding": padding, "dilation": dilation, "groups": groups,
        "channels": channels, "data_layout": data_layout, "weight_layout": weight_layout,
        "out_layout": out_layout, "out_dtype": out_dtype,
    }, frames=frames)  # fmt: skip


@conv3d_frames.reference
def _conv3d_frames_reference(data: Array, weight: Array, *, frames: int, **attrs: Any) -> Array:
    images = transform(data, attrs["data_layout"], "NCHW")
    clips = images.reshape(len(images) // frames, frames, *images.shape[1:]).swapaxes(1, 2)
    out_layout = attrs["out_layout"] or attrs["data_layout"]
    plain = attrs | {"data_layout": "NCDHW", "out_layout": ""}
    result = convolved("DHW", clips, weight, plain).swapaxes(1, 2)
    joined = result.reshape(result.shape[0] * result.shape[1], *result.shape[2:])
    return transform(joined, "NCHW", out_layout)


@conv3d_frames.layout
def _conv3d_frames_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str, weight_block: int = 0
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """The layout rule of `nn.conv2d`, except that of depthwise convolutions and of columns that
    fill groups of a dot product.
    """
    block = parse_layout(layout).factor("C")
    channels, inner = types[1].shape[:2]
    if block == 1 or attrs.weight_layout != "OIDHW" or not types[1].is_static:
        return None
    out, groups = int(channels), attrs.groups  # type: ignore[arg-type]
    if groups > 1 and (inner == 1 or (out // groups) % block):
        return None
    data_layout = "NCHW" if inner % block else layout
    if data_layout == "NCHW" and out % block:
        return None
    together = inner if inner % block else block
    of_weight = block if groups > 1 else weight_block or block
    group = product_group(types[0].dtype)
    if group and inner % block == block % group == 0:
        arguments = (data_layout, f"ODHWI{of_weight}o{group}i")
    else:
        arguments = (data_layout, f"OIDHW{together}i{of_weight}o")
    result = layout if out % block == 0 else "NCHW"
    changed = attrs.with_(
        data_layout=data_layout, weight_layout=arguments[1], out_layout=result, channels=out
    )
    return arguments, changed, result
