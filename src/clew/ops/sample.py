"""Sampling a grid at places that a tensor gives."""

from __future__ import annotations

from clew import te
from clew.ir.dims import Dim
from clew.ops.common import differ, f32, f64, need_float, same_dtype
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import unary

_PADDINGS = ("zeros", "border", "reflection")
_MODES = ("linear", "nearest")


def _unnormalised(place: Scalar, size: Dim, align_corners: bool) -> Scalar:
    """Returns the index that a coordinate in [-1, 1] stands for."""
    n = te.cast(place.dtype, te.size(size))
    if align_corners:
        return (place + 1.0) * 0.5 * (n - 1.0)
    return ((place + 1.0) * n - 1.0) * 0.5


def _reflected(place: Scalar, size: Dim, align_corners: bool) -> Scalar:
    """Returns an index folded back at the edges as often as needed."""
    n = te.cast(place.dtype, te.size(size))
    low = te.as_scalar(0.0 if align_corners else -0.5, place.dtype)
    span = te.maximum(n - 1.0 if align_corners else n, 1.0)
    away = unary("abs", place - low)
    turns = te.call("floor", away / span)
    rest = away - turns * span
    odd = (turns - te.call("floor", turns * 0.5) * 2.0).equal(1.0)
    return te.select(odd, span - rest, rest) + low


def _limited(place: Scalar, size: Dim) -> Scalar:
    """Returns an index within one element of the axis, so that its integer part exists."""
    n = te.cast(place.dtype, te.size(size))
    known = te.select(te.call("isnan", place), te.as_scalar(-1.0, place.dtype), place)
    return te.minimum(te.maximum(known, -2.0), n + 1.0)


@register_op(
    "grid_sample",
    samples=(
        Sample(f32(2, 3, 5, 4), f32(2, 3, 6, 2), low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), mode="nearest", low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), padding="border", align_corners=True),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 3, 2), padding="reflection", low=-3, high=3),
        Sample(f32(1, 2, 3, 4, 5), f32(1, 2, 3, 4, 3), low=-1.3, high=1.3),
        Sample(f32(1, 2, 5, 4), f32(2, 3, 6, 2), error="T108"),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 3), error="T108"),
        Sample(f32(1, 2, 5, 4), f64(1, 3, 6, 2), error="T101"),
        Sample(f32(1, 2, 5, 4), f32(1, 3, 6, 2), mode="cubic", error="T107"),
    ),
)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """`x[N, C, (D,) H, W]` at the places `grid[N, ..., axes]` names, innermost axis first, in [-1,
    1].

    `mode` is linear or nearest. Beyond the edge lie zeros, the border's elements, or the
    reflection.

    Errors: T101, T105, T107, T108. Source: ONNX GridSample-22, without cubic.
    """
    need_float("grid_sample", x)
    same_dtype("grid_sample", x, grid)
    if mode not in _MODES or padding not in _PADDINGS:
        raise GraphTypeError(
            "T107",
            f"grid_sample: mode={mode!r}, padding={padding!r}",
            hint=f"modes are {', '.join(_MODES)}; paddings {', '.join(_PADDINGS)}",
        )
    spatial = x.rank - 2
    fits = spatial > 0 and grid.rank == x.rank and not differ(grid.shape[0], x.shape[0])
    if not fits or differ(grid.shape[-1], spatial):
        raise GraphTypeError("T108", f"grid_sample: {x.type} sampled at {grid.type}")

    def place(i: tuple[Scalar, ...], axis: int) -> Scalar:
        size = x.shape[2 + axis]
        value = grid[(i[0], *i[2:], spatial - 1 - axis)]
        value = _unnormalised(value, size, align_corners)
        if padding == "reflection":
            value = _reflected(value, size, align_corners)
        if padding != "zeros":
            last = te.cast(x.dtype, te.size(size - 1))
            value = te.minimum(te.maximum(value, 0.0), last)
        return _limited(value, size)

    def read(i: tuple[Scalar, ...], indices: list[Scalar]) -> Scalar:
        inside = te.as_scalar(True, "bool")
        for index, size in zip(indices, x.shape[2:], strict=True):
            inside = inside & (index >= 0) & (index < te.size(size))
        return te.select(inside, x[(i[0], i[1], *indices)], 0.0)

    def body(*i: Scalar) -> Scalar:
        places = [place(i, axis) for axis in range(spatial)]
        if mode == "nearest":
            return read(i, [te.cast("i64", te.call("round", p)) for p in places])
        low = [te.call("floor", p) for p in places]
        first = [te.cast("i64", p) for p in low]
        total: Scalar | None = None
        for corner in range(2**spatial):
            weight: Scalar | None = None
            indices = []
            for axis in range(spatial):
                up = corner >> axis & 1
                part = places[axis] - low[axis]
                part = part if up else 1.0 - part
                weight = part if weight is None else weight * part
                indices.append(first[axis] + up)
            assert weight is not None
            value = read(i, indices) * weight
            total = value if total is None else total + value
        assert total is not None
        return total

    return te.compute((x.shape[0], x.shape[1], *grid.shape[1:-1]), body, "grid_sample")
