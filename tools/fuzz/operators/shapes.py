"""Operators that move elements: shapes, slices, joins, indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from fuzz.dtypes import BOOL, EVERYDAY, FLOATS, INTEGERS
from fuzz.graph import MOST_ELEMENTS, Grower, Unfit, Value
from fuzz.operators import operator

INT64, INT32 = TensorProto.INT64, TensorProto.INT32


def axes_of(g: Grower, axes: list[int]) -> tuple[list[Value | None], dict[str, Any]]:
    """Returns axes as the operator's version takes them: an input or an attribute."""
    if g.takes("axes"):
        return [g.ints(axes)], {}
    return [], {"axes": axes}


def indices(
    g: Grower, size: int, shape: tuple[int, ...], dtypes: tuple[int, ...] = (INT64, INT32)
) -> Value:
    """Returns indices into an axis of a size, counted from the front and the back.

    Errors: Unfit where the axis is empty and the indices are not.
    """
    if size == 0 and np.prod(shape):
        raise Unfit
    low = 0 if g.choices.one_in(2) else -size
    return g.leaf(g.choices.pick(dtypes), shape, f"{low}:{size}")


@operator("Reshape", weight=4)
def reshape(g: Grower) -> object:
    x = g.tensor()
    sizes = list(x.sizes)
    way = g.choices.integer(0, 4)
    allow_zero = 0
    if way == 0 and sizes:
        n = g.choices.integer(0, len(sizes) - 1)
        sizes = [*sizes[:n], int(np.prod(sizes[n:]))]
    elif way == 1:
        sizes.insert(g.choices.integer(0, len(sizes)), 1)
    elif way == 2 and sizes:
        n = g.choices.integer(0, len(sizes) - 1)
        factors = [f for f in (2, 3, 4, 8) if sizes[n] and sizes[n] % f == 0]
        if factors:
            f = g.choices.pick(factors)
            sizes[n : n + 1] = [sizes[n] // f, f]
    elif way == 3:
        sizes = [int(np.prod(sizes))]
    if sizes and 0 not in sizes and g.choices.one_in(2):
        sizes[g.choices.integer(0, len(sizes) - 1)] = -1
    if 0 in sizes:
        allow_zero = 1
        moved = any(s == 0 and x.sizes[n : n + 1] != (0,) for n, s in enumerate(sizes))
        if moved and g.schema.since_version < 14:
            raise Unfit  # a zero stands for the size that was there
    if g.choices.one_in(6) and sizes and x.rank and x.sizes[0] == sizes[0] and not allow_zero:
        sizes[0] = 0
    return g.emit("Reshape", [x, g.ints(sizes)], allowzero=allow_zero or None)


@operator("Flatten")
def flatten(g: Grower) -> object:
    x = g.tensor()
    axis = g.choices.integer(0, x.rank)
    if g.schema.since_version >= 11 and g.choices.one_in(3):
        axis -= x.rank if x.rank and axis < x.rank else 0
    return g.emit("Flatten", [x], axis=axis)


@operator("Squeeze")
def squeeze(g: Grower) -> object:
    x = g.tensor()
    ones = [n for n, s in enumerate(x.sizes) if s == 1]
    if g.choices.one_in(4):
        return g.emit("Squeeze", [x])
    chosen = g.choices.some(ones, 0, len(ones))
    if not chosen:
        raise Unfit
    if g.version("") >= 11:
        chosen = [a - x.rank if g.choices.one_in(3) else a for a in chosen]
    else:
        chosen = sorted(chosen)  # ONNX's inference of old versions takes them to be so
    inputs, attributes = axes_of(g, chosen)
    return g.emit("Squeeze", [x, *inputs], **attributes)


@operator("Unsqueeze")
def unsqueeze(g: Grower) -> object:
    x = g.tensor(ranks=(0, 4))
    rank = x.rank + g.choices.pick((1, 2))
    axes = g.choices.some(range(rank), rank - x.rank, rank - x.rank)
    if g.version("") >= 11:
        axes = [a - rank if g.choices.one_in(3) else a for a in axes]
    inputs, attributes = axes_of(g, axes)
    return g.emit("Unsqueeze", [x, *inputs], **attributes)


@operator("Transpose", weight=4)
def transpose(g: Grower) -> object:
    x = g.tensor()
    return g.emit("Transpose", [x], perm=None if g.choices.one_in(5) else g.choices.order(x.rank))


@operator("Concat", weight=4)
def concat(g: Grower) -> object:
    x = g.tensor(ranks=(1, 5))
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    parts = [x]
    for _ in range(g.choices.pick((1, 2, 0))):
        sizes = list(x.sizes)
        sizes[axis] = g.size()
        fitting = [
            v for v in g.scope.visible()
            if v.dtype == x.dtype and v.is_known and v.rank == x.rank
            and _but(v.sizes, axis) == _but(tuple(sizes), axis)
        ]  # fmt: skip
        parts.append(
            g.choices.pick(fitting[:4])
            if fitting and not g.choices.one_in(3)
            else g.leaf(x.dtype, tuple(sizes))
        )
    if g.choices.one_in(2):
        parts.reverse()
    return g.emit("Concat", parts, axis=axis)


@operator("Split", weight=3)
def split(g: Grower) -> object:
    x = g.tensor(ranks=(1, 5), nonempty=True)
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    size = x.sizes[axis]
    count = g.choices.pick((2, 1, 3))
    if g.choices.one_in(2):
        if size % count and g.version("") < 18:
            raise Unfit
        if size < count or (size % count and (-(-size // count)) * (count - 1) >= size):
            raise Unfit
        number = count if g.version("") >= 18 else None
        return g.emit("Split", [x], count, axis=axis, num_outputs=number)
    cuts = sorted(g.choices.integer(0, size) for _ in range(count - 1))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    if g.takes("split"):
        return g.emit("Split", [x, g.ints(sizes)], count, axis=axis)
    return g.emit("Split", [x], count, axis=axis, split=sizes)


@operator("Slice", weight=4)
def slice_(g: Grower) -> object:
    x = g.tensor(ranks=(1, 5))
    axes = g.axes(x.rank, 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.sizes[axis]
        step = g.choices.pick((1, 1, 2, -1, 3, -2))
        start, end = (
            g.choices.integer(-1, size),
            g.choices.pick((size, 2**31 - 1, 2**63 - 1, -1, size // 2, 0)),
        )
        if step < 0:
            start, end = (
                g.choices.pick((size - 1, 2**31 - 1, -1)),
                g.choices.pick((-(2**63), -size - 1, 0, -(2**31))),
            )
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if not g.takes("starts"):
        if min(steps) < 1 or max(steps) > 1 or min(axes) < 0:
            raise Unfit
        return g.emit("Slice", [x], starts=starts, ends=ends, axes=axes)
    more = [g.ints(axes), g.ints(steps)] if not g.choices.one_in(6) else []
    if not more:
        starts, ends = starts[: x.rank], ends[: x.rank]
        if min(steps) < 0:
            raise Unfit
    elif all(s == 1 for s in steps) and g.choices.one_in(3):
        more = more[:1]
    if g.choices.one_in(8) and all(abs(v) < 2**31 for v in (*starts, *ends)):
        kinds = [g.known(np.array(v, np.int32), INT32, True) for v in (starts, ends)]
        more = [g.known(np.array(v, np.int32), INT32, True) for v in (axes, steps)][: len(more)]
        return g.emit("Slice", [x, *kinds, *more])
    return g.emit("Slice", [x, g.ints(starts), g.ints(ends), *more])


@operator("Gather", weight=3)
def gather(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4))
    axis = g.axis(x.rank)
    return g.emit("Gather", [x, indices(g, x.sizes[axis], g.shape(0, 2))], axis=axis)


@operator("GatherElements")
def gather_elements(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axis = g.axis(x.rank)
    shape = [g.choices.integer(1, max(s, 1)) for s in x.sizes]
    shape[axis] = g.choices.pick((2, 1, 5))
    return g.emit("GatherElements", [x, indices(g, x.sizes[axis], tuple(shape))], axis=axis)


@operator("GatherND")
def gather_nd(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    batch = 0 if g.version("") < 12 or g.choices.one_in(2) else g.choices.integer(0, x.rank - 1)
    count = g.choices.integer(1, x.rank - batch)
    shape = (*x.sizes[:batch], *g.shape(0 if batch else 1, 2)[:2])
    rows = [np.asarray(indices(g, s, shape).array) for s in x.sizes[batch : batch + count]]
    table = g.known(np.stack(rows, -1).astype(np.int64), INT64, None)
    return g.emit("GatherND", [x, table], batch_dims=batch or None)


@operator("ScatterElements", "Scatter")
def scatter_elements(g: Grower) -> object:
    op = g.schema.name
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axis = g.axis(x.rank)
    shape = tuple(g.choices.integer(1, s) for s in x.sizes)
    ways = [None, "add", "mul", *(["max", "min"] if g.version("") >= 18 else [])]
    reduction = (
        g.choices.pick(ways)
        if g.version("") >= 16 and op != "Scatter" and x.dtype != BOOL
        else None
    )
    size = x.sizes[axis]
    if reduction is None:  # an index twice is for no two to say the same of
        order = np.argsort(
            np.random.default_rng(g.choices.integer(0, 999)).random((*shape, size)), -1
        )
        taken = np.take_along_axis(order, np.zeros((*shape, 1), int), -1)[..., 0]
        places = np.moveaxis(
            np.broadcast_to(
                np.arange(shape[axis]).reshape(-1, *[1] * (x.rank - 1)),
                np.moveaxis(taken, axis, 0).shape,
            ),
            0,
            axis,
        )
        table = g.known(
            np.ascontiguousarray((places + g.choices.integer(0, size - 1)) % size).astype(np.int64),
            INT64,
            None,
        )
    else:
        table = indices(g, size, shape)
    return g.emit(op, [x, table, g.leaf(x.dtype, shape)], axis=axis, reduction=reduction)


@operator("ScatterND")
def scatter_nd(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    count = g.choices.integer(1, x.rank)
    ways = [
        None,
        *(["add", "mul"] if g.version("") >= 16 else []),
        *(["max", "min"] if g.version("") >= 18 else []),
    ]
    reduction = g.choices.pick(ways) if x.dtype != BOOL else None
    total = int(np.prod(x.sizes[:count]))
    rows = g.choices.integer(1, min(total, 6))
    rng = np.random.default_rng(g.choices.integer(0, 999))
    flat = rng.choice(total, rows, replace=reduction is not None)
    table = np.stack(np.unravel_index(flat, x.sizes[:count]), -1).astype(np.int64)
    if g.choices.one_in(3):
        table -= np.array(x.sizes[:count]) * rng.integers(0, 2, table.shape)
    updates = g.leaf(x.dtype, (rows, *x.sizes[count:]))
    return g.emit("ScatterND", [x, g.known(table, INT64, None), updates], reduction=reduction)


@operator("Expand", weight=3)
def expand(g: Grower) -> object:
    x = g.tensor()
    sizes = [g.size() if s == 1 and g.choices.integer(0, 2) else s for s in x.sizes]
    if g.choices.one_in(3):
        sizes = [1 if g.choices.one_in(2) else s for s in sizes]
    if g.choices.one_in(3):
        sizes = [2, *sizes]
    if np.prod(sizes) > MOST_ELEMENTS:
        raise Unfit
    return g.emit("Expand", [x, g.ints(sizes)])


@operator("Tile")
def tile(g: Grower) -> object:
    x = g.tensor()
    return g.emit(
        "Tile",
        [
            x,
            g.ints(
                [
                    g.choices.pick((1, 2, 3, 1, 0))
                    if n or g.zero_sizes
                    else g.choices.pick((1, 2, 3))
                    for n in range(x.rank)
                ]
            ),
        ],
    )


@operator("Pad", weight=3)
def pad(g: Grower) -> object:
    x = g.tensor(ranks=(1, 5))
    modes = ["constant", "reflect", "edge", *(["wrap"] if g.version("") >= 19 else [])]
    mode = g.choices.pick(modes)
    axes = None
    if g.version("") >= 18 and g.choices.one_in(3):
        axes = g.axes(x.rank, 1)
    counted = axes if axes is not None else list(range(x.rank))
    low = -1 if mode == "constant" and g.choices.one_in(4) else 0
    pads = []
    for _ in range(2):
        for axis in counted:
            size = x.sizes[axis]
            most = min(3, size - 1) if mode == "reflect" else min(3, size) if mode == "wrap" else 3
            if size == 0 and mode != "constant":
                raise Unfit
            pads.append(g.choices.integer(min(low, size and low), max(0, most)))
    if low and any(
        size + pads[n] + pads[n + len(counted)] < 0
        for n, size in enumerate(x.sizes[a] for a in counted)
    ):
        raise Unfit
    if not g.takes("pads"):
        return g.emit("Pad", [x], pads=pads, mode=mode)
    value = (
        g.scalar(g.choices.pick((0, 1)), x.dtype, None)
        if mode == "constant" and g.choices.one_in(2)
        else None
    )
    last = g.ints(axes) if axes is not None else None
    return g.emit("Pad", [x, g.ints(pads), value, last], mode=None if mode == "constant" else mode)


@operator("Shape")
def shape(g: Grower) -> object:
    x = g.operand(g.dtypes("T", EVERYDAY))
    start = g.choices.pick((None, 0, 1, -1, -2, 7)) if g.version("") >= 15 else None
    end = g.choices.pick((None, 1, -1, 5)) if g.version("") >= 15 else None
    return g.emit("Shape", [x], start=start, end=end)


@operator("Size")
def size(g: Grower) -> object:
    return g.emit("Size", [g.operand(g.dtypes("T", EVERYDAY))])


@operator("ConstantOfShape")
def constant_of_shape(g: Grower) -> object:
    dtype = g.dtype(g.dtypes("T2", EVERYDAY))
    value = (
        None
        if g.choices.one_in(4)
        else helper.make_tensor(
            "value", dtype, [1], [1 if dtype in INTEGERS or dtype == BOOL else 1.5]
        )
    )
    return g.emit("ConstantOfShape", [g.ints(g.shape())], value=value)


@operator("Constant")
def constant(g: Grower) -> object:
    ways: list[dict[str, Any]] = [
        {"value_float": 0.5},
        {"value_int": 3},
        {"value_ints": [1, 2, 3]},
        {"value_floats": [0.5, -1.0]},
    ]
    if g.version("") < 12:
        raise Unfit
    return g.emit("Constant", [], **g.choices.pick(ways))


@operator("EyeLike")
def eye_like(g: Grower) -> object:
    x = g.tensor(ranks=(2, 2))
    dtype = g.dtype(g.dtypes("T2", EVERYDAY)) if g.choices.one_in(2) else None
    return g.emit("EyeLike", [x], dtype=dtype, k=g.choices.pick((None, 1, -1, 3)))


@operator("Range")
def range_(g: Grower) -> object:
    dtype = g.dtype(g.dtypes("T"))
    start, limit, delta = g.choices.pick(
        ((0.0, 5.0, 1.0), (3, 17, 2), (9, -2, -3), (0, 0, 1), (5, 3, 1))
    )
    if dtype in FLOATS and g.choices.one_in(2):
        start, limit, delta = 0.5, 4.0, 0.25
    return g.emit("Range", [g.scalar(v, dtype, None) for v in (start, limit, delta)])


@operator("OneHot")
def one_hot(g: Grower) -> object:
    depth = g.choices.pick((3, 1, 7, 17))
    kinds = tuple(t for t in g.dtypes("T1") if t in (INT64, INT32, TensorProto.FLOAT))
    x = g.leaf(g.choices.pick(kinds), g.shape(0, 3), f"{-depth - 1}:{depth + 1}")
    dtype = g.dtype(g.dtypes("T3"))
    values = g.known(np.array([0, 1]).astype(_np(dtype)), dtype, None)
    axis = g.choices.integer(-x.rank - 1, x.rank)
    shape = () if g.choices.one_in(2) else (1,)
    amount = g.known(np.full(shape, depth, np.int64), INT64, None)
    return g.emit("OneHot", [x, amount, values], axis=axis)


@operator("Trilu")
def trilu(g: Grower) -> object:
    x = g.tensor(ranks=(2, 4))
    k = g.scalar(g.choices.pick((0, 1, -1, 5, -40)), INT64, None) if g.choices.one_in(2) else None
    return g.emit("Trilu", [x, k], upper=g.choices.pick((None, 0, 1)))


@operator("DepthToSpace", "SpaceToDepth")
def space(g: Grower) -> object:
    op = g.schema.name
    block = g.choices.pick((2, 3))
    deep = op == "DepthToSpace"
    n, c = g.choices.pick((1, 2)), g.choices.pick((1, 3, 2))
    h, w = g.choices.pick((2, 1, 5)), g.choices.pick((3, 1, 4))
    shape = (n, c * block * block, h, w) if deep else (n, c, h * block, w * block)
    x = g.leaf(g.dtype(g.dtypes("T")), shape)
    mode = g.choices.pick((None, "CRD", "DCR")) if deep and g.version("") >= 11 else None
    return g.emit(op, [x], blocksize=block, mode=mode) if deep else g.emit(op, [x], blocksize=block)


@operator("TopK")
def top_k(g: Grower) -> object:
    """Values that tie may come in any order of indices but for the lowest first; see the text."""
    x = g.tensor(ranks=(1, 4))
    axis = g.axis(x.rank) if g.version("") >= 11 else g.choices.integer(0, x.rank - 1)
    k = g.choices.integer(0 if g.zero_sizes else min(1, x.sizes[axis]), x.sizes[axis])
    attributes: dict[str, Any] = {"axis": axis}
    if g.version("") >= 11:
        attributes["largest"] = g.choices.pick((1, 0))
    if not g.takes("K"):
        return g.emit("TopK", [x], 2, k=k, **attributes)
    return g.emit("TopK", [x, g.ints([k])], 2, **attributes)


@operator("CumSum", "CumProd")
def cumulative(g: Grower) -> object:
    op = g.schema.name
    x = g.tensor(ranks=(1, 4))
    axis = g.scalar(g.axis(x.rank), g.choices.pick((INT64, INT32)), None)
    flags: dict[str, Any] = {n: g.choices.pick((None, 1)) for n in ("exclusive", "reverse")}
    return g.emit(op, [x, axis], **flags)


@operator("NonZero")
def nonzero(g: Grower) -> object:
    return g.emit("NonZero", [g.tensor(ranks=(1, 4))])


@operator("Compress")
def compress(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axis = None if g.choices.one_in(3) else g.axis(x.rank)
    size = int(np.prod(x.sizes)) if axis is None else x.sizes[axis]
    return g.emit("Compress", [x, g.leaf(BOOL, (g.choices.integer(1, size),))], axis=axis)


@operator("Unique")
def unique(g: Grower) -> object:
    x = g.leaf(g.dtype(g.dtypes("T")), g.shape(1, 3), "plain")
    axis = None if g.choices.one_in(2) else g.axis(x.rank)
    if 0 in x.sizes:
        raise Unfit
    return g.emit(
        "Unique", [x], g.choices.pick((1, 2, 3, 4)), axis=axis, sorted=g.choices.pick((None, 0, 1))
    )


@operator("ReverseSequence")
def reverse_sequence(g: Grower) -> object:
    x = g.tensor(ranks=(2, 4), nonempty=True)
    time = g.choices.integer(0, 1)
    lengths = g.leaf(INT64, (x.sizes[1 - time],), f"1:{x.sizes[time] + 1}")
    return g.emit("ReverseSequence", [x, lengths], time_axis=time, batch_axis=1 - time)


@operator("TensorScatter")
def tensor_scatter(g: Grower) -> object:
    x = g.tensor(ranks=(3, 4), nonempty=True)
    axis = g.choices.integer(1, x.rank - 1)
    length = g.choices.integer(1, x.sizes[axis])
    shape = tuple(length if n == axis else s for n, s in enumerate(x.sizes))
    where = (
        g.leaf(INT64, x.sizes[:1], f"0:{x.sizes[axis] - length + 1}")
        if g.choices.one_in(2)
        else None
    )
    mode = g.choices.pick((None, "circular", "linear"))
    return g.emit(
        "TensorScatter",
        [x, g.leaf(x.dtype, shape), where],
        axis=axis - x.rank if g.choices.one_in(2) else axis,
        mode=mode,
    )


@operator("CenterCropPad")
def center_crop_pad(g: Grower) -> object:
    x = g.tensor(ranks=(1, 4), nonempty=True)
    axes = g.axes(x.rank, 1) if g.choices.one_in(2) else None
    count = x.rank if axes is None else len(axes)
    return g.emit(
        "CenterCropPad",
        [x, g.ints([g.choices.pick((2, 1, 3, 7)) for _ in range(count)])],
        axes=axes,
    )


@operator("BitCast")
def bit_cast(g: Grower) -> object:
    x = g.tensor()
    width = _np(x.dtype).itemsize
    fitting = [t for t in g.dtypes("T2") if _np(t).itemsize == width and t != BOOL]
    if not fitting or x.dtype == BOOL:
        raise Unfit
    to = g.choices.pick(fitting)
    if to in FLOATS:  # bits drawn at large are NaNs and denormals, of which payloads are nobody's
        raise Unfit
    return g.emit("BitCast", [x], to=to)


def _but(sizes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Returns all sizes but one axis'."""
    return tuple(s for n, s in enumerate(sizes) if n != axis % len(sizes))


def _np(dtype: int) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
