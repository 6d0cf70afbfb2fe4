"""Folding of sequences and optionals whose elements are known before the run (`folded`).

A sequence of known elements needs no list: reading one returns the element itself, and joining them
is a concatenation. Models that use sequences only as notation therefore stay native. Importers fold
each call as they build it, so that the types after it are exact; a pass folds again when more is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import (
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    is_native,
    unknown_sizes,
)
from clew.ir.values import is_symbolic
from clew.ops.registry import Op, get_op

Known: TypeAlias = "Callable[[Expr], np.ndarray[Any, Any] | None]"
Rule: TypeAlias = "Callable[[Call, Known], Expr | None]"
# The most slices that a split is expanded to.
_MOST_PIECES: Final = 1024
_CUT: Final = ("begin", "end", "axes", "strides")


def elements_of(expr: Expr) -> Sequence[Expr] | None:
    """Returns the elements of a sequence if they are known, else None."""
    if isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == "sequence.construct":
        return expr.args
    return None


def sequence_of(elements: Sequence[Expr], type_: Type) -> Call:
    """Returns the sequence of the elements. If there are none, `type_`, the type of a similar
    sequence, gives the dtype.
    """
    if elements:
        return get_op("sequence.construct")(*elements)
    assert isinstance(type_, SequenceType)
    assert isinstance(type_.element, (TensorType, UnrankedType))
    return get_op("sequence.construct")(dtype=type_.element.dtype)


def folded(call: Call, known: Known) -> Expr:
    """Returns the call, or an expression with the same value if it is known before the run. `known`
    returns values of small tensors.
    """
    rule = _RULES.get(call.op_name) if isinstance(call.op, Op) else None
    found = rule(call, known) if rule is not None else None
    return call if found is None else found


def _place(position: Expr, known: Known, count: int, *, end: bool = False) -> int | None:
    """Returns a position counted from the front; None if it is unknown, or out of range and left to
    the run to report.
    """
    value = known(position)
    if value is None or is_symbolic(value) or value.size != 1:
        return None
    index = int(value.reshape(-1)[0])
    if not -count <= index < count + end:
        return None
    return index + count if index < 0 else index


def stacked(elements: Sequence[Expr]) -> Expr | None:
    """Returns elements of one known type as the rows of a tensor; None for others."""
    types = {element.type for element in elements}
    if len(types) != 1:
        return None
    (type_,) = types
    if not isinstance(type_, TensorType) or not is_native(type_) or unknown_sizes(type_):
        return None
    rows = _rows_of_one(elements)
    if rows is not None:
        return rows
    row = (1, *type_.shape)
    parts = [get_op("reshape")(element, shape=row) for element in elements]
    return parts[0] if len(parts) == 1 else get_op("concatenate")(*parts, axis=0)


def _rows_of_one(elements: Sequence[Expr]) -> Expr | None:
    """Returns the elements as rows if they are all pieces of one tensor along an axis, in order."""
    pieces = [e.args[0] if (e := _made_by(x, "reshape")) else x for x in elements]
    first = _made_by(pieces[0], "slice")
    if first is None or not isinstance(first.args[0].type, TensorType):
        return None
    x, axes = first.args[0], first.attrs.axes
    if axes is None or len(axes) != 1:
        return None
    axis, place = axes[0] % x.tensor.rank, 0
    step = first.tensor.shape[axis]
    if not isinstance(step, int) or x.tensor.shape[axis] != step * len(elements):
        return None
    for piece in pieces:
        cut = _made_by(piece, "slice")
        ends = None if cut is None else (cut.args[0] is x, *map(cut.attrs.get, _CUT))
        if ends != (True, (place,), (place + step,), axes, first.attrs.get("strides")):
            return None
        place += step
    if first.attrs.get("strides") not in (None, (), (1,)):
        return None
    shape = x.tensor.shape
    apart = get_op("reshape")(x, shape=(*shape[:axis], len(elements), step, *shape[axis + 1 :]))
    rows = axis_moved(apart, axis, 0)
    return get_op("reshape")(rows, shape=(len(elements), *elements[0].tensor.shape))


def _of_rows(rows: Expr, type_: Type) -> Expr:
    """Returns the sequence of a tensor's rows, whose number is known."""
    count, *shape = rows.tensor.shape
    assert isinstance(count, int)
    cuts = [get_op("slice")(rows, begin=(n,), end=(n + 1,), axes=(0,)) for n in range(count)]
    return sequence_of([get_op("reshape")(cut, shape=tuple(shape)) for cut in cuts], type_)


def _as_place(position: Expr) -> Expr | None:
    """Returns a position that only the run knows as `i64[]`; None if it is no single number."""
    if not isinstance(position.type, TensorType) or position.tensor.size != 1:
        return None
    return position if not position.tensor.rank else get_op("reshape")(position, shape=())


def _at(call: Call, known: Known) -> Expr | None:
    elements = elements_of(call.args[0])
    if elements is None:
        return None
    place = _place(call.args[1], known, len(elements))
    if place is not None:
        return elements[place]
    at = _as_place(call.args[1])
    if at is None or known(call.args[1]) is not None:
        return None
    rows = stacked(elements)
    return None if rows is None else get_op("gather")(rows, at, axis=0)


def _insert(call: Call, known: Known) -> Expr | None:
    elements = elements_of(call.args[0])
    if elements is None:
        return None
    count = len(elements)
    place: int | None = count
    if len(call.args) > 2:
        place = _place(call.args[2], known, count, end=True)
    if place is None:
        return _inserted(call, known, elements)
    return sequence_of([*elements[:place], call.args[1], *elements[place:]], call.type)


def _inserted(call: Call, known: Known, elements: Sequence[Expr]) -> Expr | None:
    """Returns the sequence with an element at a position that only the run knows."""
    (_, row, position), at = call.args, _as_place(call.args[2])
    if at is None or known(position) is not None or len(elements) >= _MOST_PIECES:
        return None
    rows = stacked(elements) if elements and elements[0].type == row.type else None
    return None if rows is None else _of_rows(get_op("insert_row")(rows, row, at), call.type)


def _erase(call: Call, known: Known) -> Expr | None:
    elements = elements_of(call.args[0])
    if not elements:
        return None
    place: int | None = len(elements) - 1
    if len(call.args) > 1:
        place = _place(call.args[1], known, len(elements))
    if place is None:
        return _erased(call, known, elements)
    return sequence_of([*elements[:place], *elements[place + 1 :]], call.args[0].type)


def _erased(call: Call, known: Known, elements: Sequence[Expr]) -> Expr | None:
    """Returns the sequence without the element at a position that only the run knows. If none is
    left, the run checks the position.
    """
    at = _as_place(call.args[1])
    if at is None or known(call.args[1]) is not None or len(elements) < 2:
        return None
    rows = stacked(elements)
    return None if rows is None else _of_rows(get_op("erase_row")(rows, at), call.type)


def _length(call: Call, known: Known) -> Expr | None:
    elements = elements_of(call.args[0])
    count = _rows(call.args[0]) if elements is None else len(elements)
    return None if count is None else Constant(np.asarray(count, np.int64))


def _rows(sequence: Expr) -> int | None:
    """Returns the known number of a tensor's parts of size 1 along an axis; None for other
    sequences.
    """
    split = _made_by(sequence, "sequence.split")
    if split is None or len(split.args) > 1 or not isinstance(split.args[0].type, TensorType):
        return None
    size = split.args[0].tensor.shape[split.attrs.axis]
    return size if isinstance(size, int) else None


def _split(call: Call, known: Known) -> Expr | None:
    """Expands a split of a known size into known parts to slices."""
    x, attrs = call.args[0], call.attrs
    if not isinstance(x.type, TensorType):
        return None
    axis = attrs.axis % x.tensor.rank
    size = x.tensor.shape[axis]
    value = known(call.args[1]) if len(call.args) > 1 else None
    if len(call.args) > 1 and (value is None or is_symbolic(value)):
        return None
    if value is not None and value.ndim == 1:
        sizes = [int(n) for n in value]
        fits = isinstance(size, int) and sum(sizes) == size and min(sizes, default=0) >= 0
    else:
        step = 1 if value is None else int(value)
        if not isinstance(size, int) or step < 1 or size > step * _MOST_PIECES:
            return None
        fits, sizes = True, [min(step, size - start) for start in range(0, size, step)]
    if not fits or len(sizes) > _MOST_PIECES:
        return None
    starts = np.cumsum([0, *sizes]).tolist()
    pieces: list[Expr] = []
    for start, length in zip(starts, sizes, strict=False):
        end = (start + length,)
        piece: Expr = get_op("slice")(x, begin=(start,), end=end, axes=(axis,))
        if value is None and not attrs.keepdims:
            piece = get_op("reshape")(
                piece, shape=(*x.tensor.shape[:axis], *x.tensor.shape[axis + 1 :])
            )
        pieces.append(piece)
    return sequence_of(pieces, call.type)


def _concat(call: Call, known: Known) -> Expr | None:
    if _rows(call.args[0]) != 0 and _is_of_rows(call.args[0]):
        return _concat_of_rows(call)
    elements = elements_of(call.args[0])
    if not elements or not all(isinstance(e.type, TensorType) for e in elements):
        return None
    first = elements[0].tensor
    if any(e.tensor.rank != first.rank for e in elements):
        return None
    axis = call.attrs.axis % (first.rank + call.attrs.new_axis)
    kept = [n for n in range(first.rank) if call.attrs.new_axis or n != axis]
    if any(e.tensor.shape[n] != first.shape[n] for e in elements for n in kept):
        return None  # the run reports whether they fit
    rows = _rows_of_one(elements)
    if rows is not None and all(e.tensor == first for e in elements):
        return axis_moved(rows, 0, axis) if call.attrs.new_axis else rows_joined(rows, 0, axis)
    parts = list(elements)
    if call.attrs.new_axis:
        shape = (*first.shape[:axis], 1, *first.shape[axis:])
        parts = [get_op("reshape")(e, shape=shape) for e in elements]
    if len(parts) == 1:
        return parts[0]
    return get_op("concatenate")(*parts, axis=axis)


def _is_of_rows(sequence: Expr) -> bool:
    """Whether a sequence consists of a tensor's parts of size 1 along an axis."""
    split = _made_by(sequence, "sequence.split")
    return (
        split is not None
        and len(split.args) == 1
        and isinstance(split.args[0].type, TensorType)
        and is_native(split.args[0].type)
    )


def _concat_of_rows(call: Call) -> Expr | None:
    """Returns the concatenation of the parts of a tensor: its elements, reordered. The run reports
    that there are none.
    """
    (split,) = call.args
    assert isinstance(split, Call)
    x, source = split.args[0], split.attrs.axis % split.args[0].tensor.rank
    rank, is_new = x.tensor.rank, call.attrs.new_axis
    is_counted = _rows(split) is not None
    if split.attrs.keepdims:
        return x if is_counted and not is_new and call.attrs.axis % rank == source else None
    axis = call.attrs.axis % (rank if is_new else rank - 1)
    if is_counted:
        return axis_moved(x, source, axis) if is_new else rows_joined(x, source, axis)
    return None if is_new or source or axis else get_op("sequence.join_rows")(x)


def rows_joined(x: Expr, source: int, axis: int) -> Expr:
    """Returns the rows of a tensor along `source`, one after another along `axis` of a row."""
    moved = axis_moved(x, source, axis)
    shape = moved.tensor.shape
    joined = shape[axis] * shape[axis + 1]
    return get_op("reshape")(moved, shape=(*shape[:axis], joined, *shape[axis + 2 :]))


def axis_moved(x: Expr, source: int, axis: int) -> Expr:
    """Returns a tensor with axis `source` in the place of `axis`."""
    order = [n for n in range(x.tensor.rank) if n != source]
    order.insert(axis, source)
    return x if order == sorted(order) else get_op("transpose")(x, axes=tuple(order))


def _made_by(expr: Expr, name: str) -> Call | None:
    if isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == name:
        return expr
    return None


def _has(call: Call, known: Known) -> Expr | None:
    held = _made_by(call.args[0], "optional.some") or _made_by(call.args[0], "optional.none")
    return None if held is None else Constant(np.asarray(held.op_name == "optional.some"))


def _get(call: Call, known: Known) -> Expr | None:
    held = _made_by(call.args[0], "optional.some")
    return None if held is None else held.args[0]


def _known_rank(call: Call, known: Known) -> Expr | None:
    return call.args[0] if isinstance(call.args[0].type, TensorType) else None


def _scalar(call: Call, known: Known) -> Expr | None:
    x = call.args[0]
    if not isinstance(x.type, TensorType) or not is_native(x.type):
        return None
    if x.tensor.rank == 0:
        return x
    return get_op("reshape")(x, shape=()) if x.tensor.size == 1 else None


_RULES: Final[dict[str, Rule]] = {
    "sequence.at": _at,
    "sequence.insert": _insert,
    "sequence.erase": _erase,
    "sequence.length": _length,
    "sequence.split": _split,
    "sequence.concat": _concat,
    "optional.has": _has,
    "optional.get": _get,
    "rank.known": _known_rank,
    "rank.scalar": _scalar,
}
"""The folding rule of each operator that has one."""
