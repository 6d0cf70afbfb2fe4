"""Which axis of an operand corresponds to an axis of a result, element by element.

If axis 1 of a result corresponds to axis 0 of an operand, then element i along the one depends only
on element i along the other. Rules that select, drop or merge elements along an axis follow it
through the graph by this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.ir.expr import Call
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.te.analysis import Kind

Axes: TypeAlias = tuple[int | None, ...]
"""The axis of each operand; None if all elements along the result's axis use the same operand."""
_FUSED: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)


def operand_axes(call: Call, axis: int) -> Axes | None:
    """Returns the axes of a call's operands that correspond to an axis of its result; None if there
    are none, or if they are not known.
    """
    if not isinstance(call.op, Op) or not isinstance(call.type, TensorType):
        return None
    if not all(isinstance(a.type, TensorType) and a.tensor.is_static for a in call.args):
        return None
    if not call.type.is_static:
        return None
    rule = _RULES.get(call.op.name)
    if rule is not None:
        return rule(call, axis)
    if call.op.kind([a.tensor for a in call.args], call.attrs) in _FUSED:
        return _broadcast(call, axis)
    return None


def result_axis(call: Call, operand: int, axis: int) -> int | None:
    """Returns the axis of a call's result that corresponds to an operand's; None if none does."""
    if not isinstance(call.type, TensorType):
        return None
    for candidate in range(call.type.rank):
        found = operand_axes(call, candidate)
        if found is not None and found[operand] == axis:
            return candidate
    return None


def _shape(call: Call, operand: int) -> tuple[int, ...]:
    return call.args[operand].tensor.concrete


def _broadcast(call: Call, axis: int) -> Axes | None:
    rank, extent = call.tensor.rank, call.tensor.concrete[axis]
    found: list[int | None] = []
    for operand in range(len(call.args)):
        shape = _shape(call, operand)
        place = axis - rank + len(shape)
        if place < 0 or (shape[place] == 1 and extent != 1):
            found.append(None)
        elif shape[place] == extent:
            found.append(place)
        else:
            return None
    return tuple(found)


def _dense(call: Call, axis: int) -> Axes | None:
    if len(call.args) != 2 or call.attrs.rows or call.attrs.start or call.attrs.parts != 1:
        return None
    if axis < call.tensor.rank - 1:
        return (axis, None)
    layout = call.attrs.weight_layout
    return (None, layout.index("N")) if layout in ("NK", "KN") else None


def _matmul(call: Call, axis: int) -> Axes | None:
    if len(call.args) != 2 or call.attrs.units:
        return None
    rank = call.tensor.rank
    shapes = _shape(call, 0), _shape(call, 1)
    if min(map(len, shapes)) < 2:
        return None
    if axis == rank - 2:
        return (len(shapes[0]) - 2, None)
    if axis == rank - 1:
        column = 1 if call.attrs.b_layout == "KN" else 2
        return (None, len(shapes[1]) - column)
    found: list[int | None] = []
    for shape in shapes:
        place = axis - rank + len(shape)
        found.append(place if place >= 0 and shape[place] == call.tensor.concrete[axis] else None)
    return None if found == [None, None] else tuple(found)


def _convolution(call: Call, axis: int) -> Axes | None:
    attrs = call.attrs
    plain = attrs.weight_layout.startswith("OI") and attrs.data_layout.startswith("NC")
    if not plain or attrs.out_layout or attrs.live or len(call.args) != 2:
        return None
    if axis == 0:
        return (0, None)
    if axis == 1 and attrs.groups == 1:
        return (None, 0)
    if axis == 1 and is_depthwise(call):
        return (1, 0)
    if axis > 1 and is_pointwise(call):
        return (axis, None)
    return None


def is_depthwise(call: Call) -> bool:
    """Whether a convolution computes each channel from the same channel of its data."""
    groups = call.attrs.groups
    return bool(groups > 1 and groups == _shape(call, 0)[1] == _shape(call, 1)[0])


def is_pointwise(call: Call) -> bool:
    """Whether a convolution computes each pixel from the same pixel of its data."""
    attrs = call.attrs
    kernel = _shape(call, 1)[2:]
    return not any(attrs.padding) and {*kernel, *attrs.strides} == {1}


def _image(call: Call, axis: int) -> Axes | None:
    layout = call.attrs.get("layout", "NCHW")
    return (axis,) if layout.startswith("NC") and axis < 2 else None


def _batch_norm(call: Call, axis: int) -> Axes | None:
    return (1, 0, 0, 0, 0) if axis == 1 else (axis, None, None, None, None)


def _instance_norm(call: Call, axis: int) -> Axes | None:
    if not call.attrs.layout.startswith("NC") or axis > 1:
        return None
    return (1, 0, 0) if axis == 1 else (0, None, None)


def _along(call: Call, axis: int) -> Axes | None:
    """Operators that combine the elements of one axis."""
    own = call.attrs.axis % call.tensor.rank
    return (axis, *[None] * (len(call.args) - 1)) if axis != own else None


def _from(call: Call, axis: int) -> Axes | None:
    """Operators that combine the elements of all axes from one on."""
    own = call.attrs.axis % call.tensor.rank
    return (axis, *[None] * (len(call.args) - 1)) if axis < own else None


def _reduction(call: Call, axis: int) -> Axes | None:
    rank = call.args[0].tensor.rank
    gone = {a % rank for a in call.attrs.axes} or set(range(rank))
    if call.attrs.keepdims:
        return (axis,) if axis not in gone else None
    return ([a for a in range(rank) if a not in gone][axis],)


def _transpose(call: Call, axis: int) -> Axes | None:
    return (call.attrs.axes[axis],)


def _reshape(call: Call, axis: int) -> Axes | None:
    before, after = _shape(call, 0), call.tensor.concrete
    lead, extent = math.prod(after[:axis]), after[axis]
    if extent == 1:
        return None
    for place, size in enumerate(before):
        if size == extent and math.prod(before[:place]) == lead:
            return (place,)
    return None


def _concatenate(call: Call, axis: int) -> Axes | None:
    own = call.attrs.axis % call.tensor.rank
    return (axis,) * len(call.args) if axis != own else None


def _slice(call: Call, axis: int) -> Axes | None:
    cut = {a % call.tensor.rank for a in call.attrs.axes}
    return (axis,) if axis not in cut else None


def _pad(call: Call, axis: int) -> Axes | None:
    pads, rank = call.attrs.pads, call.tensor.rank
    return (axis,) if len(pads) == 2 * rank and not pads[axis] and not pads[rank + axis] else None


def _gather(call: Call, axis: int) -> Axes | None:
    own = call.attrs.axis % call.args[0].tensor.rank
    count = call.args[1].tensor.rank
    if axis < own:
        return (axis, None)
    if axis < own + count:
        return (None, axis - own)
    return (axis - count + 1, None)


def _resize(call: Call, axis: int) -> Axes | None:
    before, after = _shape(call, 0), call.tensor.concrete
    rest = [None] * (len(call.args) - 1)
    return (axis, *rest) if axis < 2 and before[axis] == after[axis] else None


def _per_tensor(call: Call, axis: int) -> Axes | None:
    others = [_shape(call, n) for n in range(1, len(call.args))]
    if call.attrs.get("block", 0) or any(math.prod(shape) != 1 for shape in others):
        return None
    return (axis, *[None] * len(others))


_RULES: Final[dict[str, Callable[[Call, int], Axes | None]]] = {
    "nn.dense": _dense,
    "nn.matmul": _matmul,
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv3d": _convolution,
    "nn.batch_norm": _batch_norm,
    "nn.instance_norm": _instance_norm,
    "nn.avg_pool2d": _image,
    "nn.max_pool2d": _image,
    "nn.global_avg_pool2d": _image,
    "nn.global_max_pool2d": _image,
    "nn.softmax": _along,
    "nn.log_softmax": _along,
    "nn.layer_norm": _from,
    "nn.rms_norm": _from,
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square"), _reduction),
    "transpose": _transpose,
    "reshape": _reshape,
    "concatenate": _concatenate,
    "slice": _slice,
    "pad": _pad,
    "gather": _gather,
    "resize": _resize,
    "quantize": _per_tensor,
    "dequantize": _per_tensor,
}


def contraction(call: Call, operand: int, axis: int) -> tuple[int, int] | None:
    """Returns the other operand of a product, and the axis of it that is contracted with an axis of
    an operand; None if that axis is not contracted.
    """
    if not isinstance(call.op, Op) or len(call.args) != 2:
        return None
    name, rank = call.op.name, call.args[operand].tensor.rank
    if name == "nn.dense" and operand == 0 and axis == rank - 1:
        layout = call.attrs.weight_layout
        plain = layout in ("NK", "KN") and not call.attrs.rows and call.attrs.parts == 1
        return (1, layout.index("K")) if plain else None
    if name == "nn.matmul" and operand == 0 and axis == rank - 1 and not call.attrs.units:
        other = call.args[1].tensor.rank
        return (1, other - (2 if call.attrs.b_layout == "KN" else 1))
    is_convolution = name in ("nn.conv1d", "nn.conv2d", "nn.conv3d")
    if is_convolution and operand == 0 and axis == 1 and call.attrs.groups == 1:
        plain = call.attrs.weight_layout.startswith("OI") and not call.attrs.live
        return (1, 1) if plain and call.attrs.data_layout.startswith("NC") else None
    return None


def sizes(shape: Sequence[int]) -> str:
    """Returns a shape as text: `1x3x224x224`."""
    return "x".join(map(str, shape))
