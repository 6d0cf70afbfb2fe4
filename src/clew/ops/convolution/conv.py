"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.ir.dims import Dim
from clew.ir.expr import Attrs
from clew.ir.types import TensorType
from clew.ops.common import (
    f16,
    f32,
    i8,
    u8,
)
from clew.ops.convolution.stages import convolve, convolved, product_group
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.te import Tensor

Array = np.ndarray[Any, Any]

_CONVS = (
    Sample(f32(1, 3, 9, 7), f32(8, 3, 3, 3), padding=(1, 1, 1, 1)),
    Sample(f32(2, 4, 8, 8), f32(6, 4, 1, 1)),
    Sample(f32(1, 3, 11, 11), f32(5, 3, 3, 2), strides=(2, 3), padding=(1, 0, 2, 1),
           dilation=(2, 1)),
    Sample(f32(1, 6, 5, 5), f32(6, 1, 3, 3), groups=6, padding=(1, 1, 1, 1)),
    Sample(f32(1, 6, 5, 5), f32(4, 3, 3, 3), groups=2),
    Sample(f32(1, 3, 8, 8), f32(2, 1, 3, 3, 3, 8), padding=(1, 1, 1, 1), weight_layout="OIHW3i8o",
           out_layout="NCHW8c"),
    Sample(f32(1, 2, 5, 5, 4), f32(1, 2, 3, 3, 4, 8), padding=(1, 1, 1, 1), data_layout="NCHW4c",
           weight_layout="OIHW4i8o"),
    Sample(f32(1, 2, 5, 5, 4), f32(2, 1, 3, 3, 4), groups=8, data_layout="NCHW4c",
           weight_layout="OIHW4o"),
    Sample(f32(1, 4, 5, 5, 2), f32(4, 2, 3, 3, 2, 2), groups=2, data_layout="NCHW2c",
           weight_layout="OIHW2i2o"),
    Sample(f32(1, 6, 5, 5), f32(6, 1, 3, 3, 3, 4), groups=2, padding=(1, 1, 1, 1),
           weight_layout="OIHW3i4o", out_layout="NCHW4c"),
    Sample(f32(1, 2, 4, 4, 4), f32(2, 2, 1, 1, 4, 4), data_layout="NCHW4c",
           weight_layout="OIHW4i4o", out_layout="NCHW"),
    Sample(u8(1, 3, 5, 5), i8(4, 3, 3, 3), low=0, high=9),
    Sample(u8(1, 2, 5, 5, 4), i8(2, 1, 1, 2, 4, 4), data_layout="NCHW4c", low=0, high=9,
           weight_layout="OHWI4o4i", pairs_fit=True),
    Sample(f16(1, 3, 5, 5), f16(4, 3, 3, 3)),
    Sample(f16(1, 3, 5, 5), f16(4, 3, 3, 3), out_dtype="f32"),
    Sample(f16(1, 2, 5, 5, 4), f16(1, 3, 3, 4, 8, 2), padding=(1, 1, 1, 1), data_layout="NCHW4c",
           weight_layout="OHWI8o2i", out_layout="NCHW8c", out_dtype="f32"),
    Sample(u8(1, 2, 5, 5, 4), i8(2, 1, 1, 2, 4, 4), data_layout="NCHW4c", low=0, high=9,
           weight_layout="OHWI4o4i"),
    Sample(u8(1, 2, 5, 5, 8), i8(2, 3, 3, 2, 8, 4), data_layout="NCHW8c", groups=2, low=0, high=9,
           weight_layout="OHWI8o4i"),
    Sample(u8(1, 1, 5, 22), i8(2, 1, 3, 3, 4, 4), strides=(2, 6), low=0, high=9,
           weight_layout="OIHW4o4w", out_layout="NCHW4c"),
    Sample(f32(1, 3, 1, 2), f32(4, 3, 1, 9), padding=(0, 4, 0, 4), live=(0, 3, 1, 3)),
    Sample(f32(1, 3, 1, 2), f32(4, 3, 1, 9), padding=(0, 4, 0, 4), live=(0, 7, 1, 3), error="T107"),
    Sample(f32(1, 64, 8, 8), f32(8, 128, 3, 3), error="T103"),
    Sample(f32(1, 4, 8, 8), f32(8, 2, 3, 3), groups=4, error="T103"),
    Sample(f32(1, 4, 8, 8), f32(5, 2, 3, 3), groups=2, error="T107"),
    Sample(f32(4, 8, 8), f32(8, 4, 3, 3), error="T109"),
    Sample(f32(1, 4, 2, 2), f32(8, 4, 3, 3), error="T110"),
    Sample(f32(1, 4, 8, 8), f32(8, 4, 3, 3), strides=(0, 1), error="T107"),
    Sample(f32(1, 4, 8, 8), f16(8, 4, 3, 3), error="T101"),
    Sample(f32(1, 4, 8, 8), f32(8, 4, 3, 3), pairs_fit=True, error="T107"),
    Sample(f32(1, 4, 8, 8), f32(8, 4, 3, 3), out_dtype="f16", error="T107"),
    Sample(f32(1, 4, 8, 8), f32(8, 4, 3, 3), data_layout="NC", error="T109"),
)  # fmt: skip


@register_op(
    "nn.conv2d", traits=Traits(product="weights", convolves="HW", packs_weight=True), samples=_CONVS
)
def conv2d(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
    channels: int = 0,
    data_layout: str = "NCHW",
    weight_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
    live: tuple[int, ...] = (),
    pairs_fit: bool = False,
) -> Tensor:
    """Two-dimensional cross-correlation of `data[N, C, H, W]` with `weight[O, C/groups, KH, KW]`.

    `padding` is (top, left, bottom, right). Layouts may be blocked (`NCHW16c`, `OIHW16i64o`); an
    empty `out_layout` means the layout of the data. `channels` is the number of output channels if
    the weight's blocks round it up. Small integers give `i32`. Narrow floats are accumulated in
    `f32`, which is also the dtype of the result with `out_dtype="f32"`.

    `live` holds the first tap along each axis, then the tap counts. Other taps meet only padding
    and are not summed. Both may be symbolic. Empty means all taps.

    `pairs_fit` states, for operands of 8 bits, that 16 bits hold the sum of any two products of a
    result. Instructions that add these in 16 bits may then be used; they saturate.

    Errors: T101, T103, T107, T109, T110. Source: ONNX Conv-22.
    """
    return convolve("nn.conv2d", "HW", data, weight, {
        "strides": strides, "padding": padding, "dilation": dilation, "groups": groups,
        "channels": channels, "data_layout": data_layout, "weight_layout": weight_layout,
        "out_layout": out_layout, "out_dtype": out_dtype, "live": live,
        "pairs_fit": pairs_fit,
    })  # fmt: skip


@conv2d.reference
def _conv2d_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return convolved("HW", data, weight, attrs)


@conv2d.layout
def _conv2d_layout(
    attrs: Attrs, types: Sequence[TensorType], layout: str, weight_block: int = 0
) -> tuple[tuple[str, ...], Attrs, str] | None:
    """Returns the layouts of data and weight for a result in `layout` (`NCHW16c`), or None.

    `weight_block` is the number of output channels in a block of the weight; 0 means the layout's
    block. Input channels that fill no block (those of a first layer or of small groups) stay plain.
    A depthwise weight is blocked by output channel. Weights of `bf16`, `i16` and 8 bits hold as
    many input channels as fit 32 bits together, innermost, as dot products and matrix tiles
    require; with one input channel, as many columns if these fill whole groups.
    """
    wanted = parse_layout(layout)
    block = wanted.factor("C")
    channels, inner = types[1].shape[:2]
    if block == 1 or attrs.weight_layout != "OIHW" or not types[1].is_static:
        return None
    out, groups = int(channels), attrs.groups  # type: ignore[arg-type]
    together = weight_block or block
    if inner == 1 and groups == out and out % block == 0:
        arguments = (layout, f"OIHW{block}o")
    elif groups > 1:
        if (out // groups) % block:
            return None
        group = product_group(types[0].dtype)
        if inner % block:  # few channels in each group
            arguments = ("NCHW", f"OIHW{inner}i{block}o")
        elif group and block % group == 0:
            arguments = (layout, f"OHWI{block}o{group}i")
        else:
            arguments = (layout, f"OIHW{block}i{block}o")
    elif inner % block == 0 and (group := product_group(types[0].dtype)) and block % group == 0:
        arguments = (layout, f"OHWI{together}o{group}i")
    elif inner % block == 0:
        arguments = (layout, f"OIHW{block}i{together}o")
    elif inner == 1 and _fills_groups(types[1].shape[3], types[0].dtype):
        arguments = ("NCHW", f"OIHW{together}o{product_group(types[0].dtype)}w")
    elif isinstance(inner, int):
        arguments = ("NCHW", f"OIHW{inner}i{together}o")
    else:
        return None
    result = layout if out % block == 0 else "NCHW"
    changed = attrs.with_(
        data_layout=arguments[0], weight_layout=arguments[1], out_layout=result, channels=out
    )
    return arguments, changed, result


def _fills_groups(columns: Dim, dtype: str) -> bool:
    """Whether the columns of a window make whole groups of a dot product."""
    group = product_group(dtype)
    return bool(group) and columns % group == 0


@register_op(
    "nn.conv1d",
    traits=Traits(convolves="W"),
    samples=(
        Sample(f32(2, 3, 9), f32(4, 3, 3), padding=(1, 0), strides=(2,)),
        Sample(f32(1, 4, 8), f32(4, 1, 3), groups=4, dilation=(2,)),
        Sample(f32(1, 3, 2), f32(4, 3, 8), padding=(4, 4), live=(2, 4)),
        Sample(f32(1, 4, 8), f32(4, 3, 3), error="T103"),
        Sample(f32(1, 4, 8), f32(4, 4, 3), strides=(1, 1), error="T107"),
    ),
)
def conv1d(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1,),
    padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
    channels: int = 0,
    data_layout: str = "NCW",
    weight_layout: str = "OIW",
    out_layout: str = "",
    live: tuple[int, ...] = (),
) -> Tensor:
    """`nn.conv2d` over one spatial axis; `padding` is (left, right). Source: ONNX Conv-22."""
    return convolve("nn.conv1d", "W", data, weight, {
        "strides": strides, "padding": padding, "dilation": dilation, "groups": groups,
        "channels": channels, "data_layout": data_layout, "weight_layout": weight_layout,
        "out_layout": out_layout, "live": live,
    })  # fmt: skip


@conv1d.reference
def _conv1d_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return convolved("W", data, weight, attrs)


@register_op(
    "nn.conv3d",
    traits=Traits(convolves="DHW"),
    samples=(
        Sample(f32(1, 2, 5, 4, 6), f32(3, 2, 3, 2, 1), padding=(1, 0, 1, 1, 1, 0)),
        Sample(f32(1, 4, 4, 4, 4), f32(2, 2, 2, 2, 2), groups=2, strides=(2, 1, 2)),
        Sample(f32(1, 2, 5, 4, 6), f32(3, 3, 3, 2, 1), error="T103"),
        Sample(f32(1, 2, 5, 4), f32(3, 2, 3, 2, 1), error="T109"),
    ),
)
def conv3d(
    data: Tensor,
    weight: Tensor,
    *,
    strides: tuple[int, ...] = (1, 1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1, 1),
    groups: int = 1,
    channels: int = 0,
    data_layout: str = "NCDHW",
    weight_layout: str = "OIDHW",
    out_layout: str = "",
) -> Tensor:
    """`nn.conv2d` over three spatial axes; `padding` lists all leading paddings, then all trailing
    ones.

    Source: ONNX Conv-22.
    """
    return convolve("nn.conv3d", "DHW", data, weight, {
        "strides": strides, "padding": padding, "dilation": dilation, "groups": groups,
        "channels": channels, "data_layout": data_layout, "weight_layout": weight_layout,
        "out_layout": out_layout,
    })  # fmt: skip


@conv3d.reference
def _conv3d_reference(data: Array, weight: Array, **attrs: Any) -> Array:
    return convolved("DHW", data, weight, attrs)
