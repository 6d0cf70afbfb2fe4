"""Matrix diagonals, and updates of slices."""

from __future__ import annotations

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr


def _on_diagonal(rows: Dim, columns: Dim) -> Expr:
    """Returns whether each element of a matrix is on its diagonal."""
    row, column = (
        reshaped(call("arange", start=0, stop=size, step=1, dtype="i64"), shape)
        for size, shape in ((rows, (rows, 1)), (columns, (1, columns)))
    )
    return call("equal", row, column)


@converter("MATRIX_DIAG", codes=True)
def matrix_diag(layer: TfliteLayer) -> Result:
    """Matrices with the given diagonals and zeros elsewhere."""
    x = layer.input(0)
    *outer, size = x.tensor.shape
    rows = reshaped(x, (*outer, 1, size))
    return call("where", _on_diagonal(size, size), rows, scalar(0, x.tensor.dtype))


@converter("MATRIX_SET_DIAG", codes=True)
def matrix_set_diag(layer: TfliteLayer) -> Result:
    """Replaces the diagonals of matrices."""
    x, diagonal = layer.input(0), layer.input(1)
    *outer, rows, columns = x.tensor.shape
    if rows != columns:
        own = call("arange", start=0, stop=columns, step=1, dtype="i64")
        places = call("minimum", own, _last(diagonal, len(outer)))
        diagonal = call("gather", diagonal, places, axis=len(outer))
    row = reshaped(diagonal, (*outer, 1, columns))
    return call("where", _on_diagonal(rows, columns), row, x)


@converter("DYNAMIC_UPDATE_SLICE", codes=True)
def dynamic_update_slice(layer: TfliteLayer) -> Result:
    """Replaces a slice, whose start is clamped so that it lies inside the tensor."""
    x, update = layer.input(0), layer.input(1)
    rank = x.tensor.rank
    begin = cast(layer.input(2), "i64")
    inside: Expr | None = None
    for axis, size in enumerate(x.tensor.shape):
        first = reshaped(
            call("slice", begin, begin=(axis,), end=(axis + 1,), strides=(1,), axes=(0,)), ()
        )
        last = _last(update, axis)
        room = call("subtract", _last(x, axis), last)
        first = call("maximum", call("minimum", first, room), scalar(0, "i64"))
        own = call("subtract", call("arange", start=0, stop=size, step=1, dtype="i64"), first)
        held = call("maximum", call("minimum", own, last), scalar(0, "i64"))
        update = call("gather", update, held, axis=axis)
        shape = [1] * rank
        here = reshaped(call("equal", own, held), [*shape[:axis], size, *shape[axis + 1 :]])
        inside = here if inside is None else call("logical_and", inside, here)
    return update if inside is None else call("where", inside, update, x)


def _last(x: Expr, axis: int) -> Expr:
    """Returns the last index along an axis."""
    sizes = call("shape_of", x)
    return call("subtract", call("gather", sizes, scalar(axis, "i64"), axis=0), scalar(1, "i64"))
