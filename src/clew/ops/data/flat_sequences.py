"""Flat sequences: sequences of tensors of different sizes, stored as two tensors that kernels can
read and write.

The first tensor holds the rows of all elements, one element after the other. The second one holds
the sizes of the first axes of each element, which may differ. For elements `f32[?, 4]`, these are
`rows: f32[n, 4]` and `sizes: i64[count, 1]`, the number of rows of each element. If several axes
differ, as in `f32[?, ?, 4]`, the number of rows of an element is the product of their sizes.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, is_unknown, unknown_dim
from clew.ir.types import (
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
    is_native,
    to_numpy,
)
from clew.ops.common import (
    boolean,
    differ,
    f32,
    i64,
    need_integer,
    need_rank,
    same_dtype,
    tensor_type,
)
from clew.ops.data.sequences import (
    PIECE_BYTES,
    any_tensor,
    check_parts,
    sequence_type,
    sizes_of_pieces,
)
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.bounds import Places, held
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError, RunError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_SIZES: Final = np.array([[2], [0], [3]])
_TWO_SIZES: Final = np.array([[2, 1], [0, 4], [1, 3]])
_THIRD: Final = np.array([2, 2, 3])  # the result of `flat.place` for the third element


def shape_of_elements(type_: Type) -> tuple[int, ...] | None:
    """Returns the sizes of the first axes of a sequence's elements up to the last one that differs,
    but at least of one axis; -1 for those that differ. None if elements have no flat form.
    """
    element = type_.element if isinstance(type_, SequenceType) else None
    if not isinstance(element, TensorType) or not element.rank or not is_native(element):
        return None
    if not all(isinstance(size, int) or is_unknown(size) for size in element.shape):
        return None
    differ = [n for n, size in enumerate(element.shape) if not isinstance(size, int)]
    sizes = element.shape[: max(differ, default=0) + 1]
    return tuple([size if isinstance(size, int) else -1 for size in sizes])


def _check(name: str, rows: Type, sizes: Type) -> tuple[TensorType, int]:
    """Checks the types of a flat sequence; returns that of the rows, and the number of axes whose
    sizes may differ.

    Errors: T102, T105.
    """
    source, of_each = tensor_type(name, rows), tensor_type(name, sizes)
    if of_each.dtype != "i64":
        raise GraphTypeError("T105", f"{name}: sizes are {of_each}, expected i64[n, axes]")
    axes = of_each.shape[1] if of_each.rank == 2 else 0
    if not source.rank or not isinstance(axes, int) or axes < 1:
        raise GraphTypeError("T102", f"{name}: {source} with the sizes {of_each}")
    return source, axes


@register_op(
    "sequence.pack",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(SequenceType(f32(2, 4)), axes=1, row=(4,), dtype="f32"),
        Sample(SequenceType(f32(2, 3, 4)), axes=2, row=(4,), dtype="f32"),
        Sample(f32(2), axes=1, row=(), dtype="f32", error="T150"),
        Sample(SequenceType(f32(2)), axes=1, row=(), dtype="i64", error="T101"),
        Sample(SequenceType(f32(2)), axes=0, row=(2,), dtype="f32", error="T102"),
        Sample(SequenceType(f32(2, 3)), axes=1, row=(4,), dtype="f32", error="T102"),
        Sample(SequenceType(UnrankedType("f32")), axes=1, row=(), dtype="f32", error="T102"),
    ),
)
def pack(
    sequence: list[Array], *, axes: int, row: tuple[int, ...], dtype: str
) -> tuple[Array, Array]:
    """The rows and sizes of a sequence of tensors of one dtype: `f32[n, *row]` and
    `i64[count, axes]`. The sizes of the first `axes` axes may differ; `row` has the others'.

    Errors: I265, T101, T102, T150.
    """
    if not sequence:
        return np.zeros((0, *row), to_numpy(dtype)), np.zeros((0, axes), np.int64)
    if axes == 1:
        rows, counts = sequence, list(map(len, sequence))
        sizes = np.array(counts, np.int64).reshape(-1, 1)
    else:
        shapes = [e.shape[:axes] for e in sequence]
        counts = list(map(prod, shapes))
        rows = [e.reshape(count, *row) for e, count in zip(sequence, counts, strict=True)]
        sizes = np.array(shapes, np.int64)
    check_run_bytes("the rows of sequence.pack", sum(counts) * prod(row) * sequence[0].itemsize)
    return np.concatenate(rows), sizes


@pack.types
def _pack_types(sequence: Type, *, axes: int, row: tuple[int, ...], dtype: str) -> Type:
    name = "sequence.pack"
    element = any_tensor(name, sequence_type(name, sequence).element)
    if element.dtype != dtype:
        raise GraphTypeError("T101", f"{name}: {sequence} has no elements of {dtype}")
    shape = element.shape if isinstance(element, TensorType) else ()
    fits = axes > 0 and len(shape) == axes + len(row) and shape[axes:] == row
    if not fits or not isinstance(element, TensorType):
        raise GraphTypeError("T102", f"{name}: {sequence} has no rows of {list(row)}")
    rows = element.with_(shape=(unknown_dim(), *row))
    return TupleType((rows, TensorType((unknown_dim(), axes), "i64")))


@register_op(
    "sequence.unpack",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(f32(5, 4), _SIZES),
        Sample(f32(5), _TWO_SIZES),
        Sample(f32(5), i64(3), error="T102"),
        Sample(f32(5), f32(3, 1), error="T105"),
    ),
)
def unpack(rows: Array, sizes: Array) -> list[Array]:
    """The sequence with these rows and sizes.

    Errors: I265, T102, T105.
    """
    check_run_bytes("the result of sequence.unpack", rows.nbytes + len(sizes) * PIECE_BYTES)
    found, start, row = [], 0, rows.shape[1:]
    if sizes.shape[1] == 1:
        for count in sizes[:, 0].tolist():
            found.append(rows[start : start + count].copy())
            start += count
        return found
    for shape in sizes.tolist():
        end = start + prod(shape)
        found.append(rows[start:end].reshape(*shape, *row).copy())
        start = end
    return found


@unpack.types
def _unpack_types(rows: Type, sizes: Type) -> Type:
    source, axes = _check("sequence.unpack", rows, sizes)
    shape = (*(unknown_dim() for _ in range(axes)), *source.shape[1:])
    return SequenceType(source.with_(shape=shape))


@register_op(
    "sequence.split_sizes",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(f32(5, 3), np.array(2)),
        Sample(f32(5, 3), np.array([1, 0, 4])),
        Sample(f32(), i64(2), error="T102"),
        Sample(f32(4, 3), i64(2, 2), error="T153"),
        Sample(f32(4, 3), f32(), error="T153"),
    ),
)
def split_sizes(x: Array, parts: Array) -> Array:
    """The sizes of the pieces that `sequence.split` makes along axis 0: `i64[count, 1]`.

    Errors: T102, T153; I265 and I274 as for `sequence.split`.
    """
    return np.array(sizes_of_pieces(len(x), parts), np.int64).reshape(-1, 1)


@split_sizes.types
def _split_sizes_types(x: Type, parts: Type) -> Type:
    name = "sequence.split_sizes"
    if not tensor_type(name, x).rank:
        raise GraphTypeError("T102", f"{name}: {x} has no rows")
    check_parts(name, parts)
    return TensorType((unknown_dim(), 1), "i64")


@register_op(
    "sequence.joined",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(f32(5, 4), _SIZES),
        Sample(f32(5, 4), i64(0, 1), error="I272"),
        Sample(f32(5), _TWO_SIZES, error="T102"),
    ),
)
def joined(rows: Array, sizes: Array) -> Array:
    """The concatenation of the elements of a flat sequence along axis 0: its rows.

    Errors: T102, T105; I272 if the sequence is empty.
    """
    if not len(sizes):
        raise RunError("I272", "sequence.joined: the sequence is empty")
    return rows


@joined.types
def _joined_types(rows: Type, sizes: Type) -> Type:
    source, axes = _check("sequence.joined", rows, sizes)
    if axes > 1:
        raise GraphTypeError("T102", f"sequence.joined: {axes} axes of the elements differ")
    if tensor_type("sequence.joined", sizes).shape[0] == 0:
        raise RunError("I272", "sequence.joined: the sequence is empty")
    return source


@register_op(
    "flat.place",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(_SIZES, np.array(2)),
        Sample(_TWO_SIZES, np.array(-2, "i4")),
        Sample(_TWO_SIZES, np.array(3), behind=True),
        Sample(_SIZES, np.array(3), error="I320"),
        Sample(_SIZES, np.array(-4), behind=True, error="I320"),
        Sample(_SIZES, i64(1), error="T102"),
        Sample(_SIZES, f32(), error="T105"),
        Sample(i64(3), i64(), error="T102"),
    ),
)
def flat_place(sizes: Tensor, position: Tensor, *, behind: bool = False) -> Tensor:
    """The place of an element of a flat sequence: its position from the front, its first row, and
    its sizes, `i64[2 + axes]`. A negative position counts from the end. With `behind`, the position
    after the last element is valid, too; its sizes are 0.

    Errors: T102, T105; I320 for a position out of range.
    """
    name = "flat.place"
    _, axes = _check(name, f32(1), sizes.type)
    need_integer(name, position)
    need_rank(name, "the position", position, 0)
    count = sizes.shape[0]

    def front() -> Scalar:
        given = te.cast("i64", position[()])
        return te.Checked(
            te.select(given < 0, given + te.size(count), given), _places(count, behind)
        )

    at = te.compute((), front, "at")
    over = te.reduce_axis(count, "k")

    def begin() -> Scalar:
        size = te.as_scalar(1)
        for n in range(axes):
            size = size * sizes[(over, n)]
        return te.sum(te.select(over < at[()], size, te.as_scalar(0)), over)

    first = te.compute((), begin, "first")

    def body(i: Scalar) -> Scalar:
        inside = te.minimum(at[()], te.size(count) - 1)
        size = sizes[(inside, te.minimum(te.maximum(i - 2, 0), axes - 1))]
        if behind:
            size = te.select(at[()] < te.size(count), size, te.as_scalar(0))
        return te.select(i.equal(0), at[()], te.select(i.equal(1), first[()], size))

    return te.compute((axes + 2,), body, name)


def _places(count: Dim, behind: bool) -> Places:
    """Returns the positions of elements, counted from the front."""
    return Places(
        "flat.place", 0, count, count + behind, from_end=False, noun="position from the front"
    )


@flat_place.reference
def _flat_place_reference(sizes: Array, position: Array, *, behind: bool) -> Array:
    count, given = len(sizes), np.asarray(position).astype(np.int64)
    at = int(held(np.where(given < 0, given + count, given), _places(count, behind)))
    own = sizes[at] if at < count else np.zeros(sizes.shape[1], np.int64)
    return np.array([at, sizes[:at].prod(axis=1).sum(), *own], np.int64)


def _need_place(name: str, place: Tensor) -> None:
    """Errors: T102, T105."""
    need_integer(name, place)
    need_rank(name, "the place", place, 1)
    if isinstance(place.shape[0], int) and place.shape[0] < 3:
        raise GraphTypeError("T102", f"{name}: {place.type} is no place of an element")


@register_op(
    "flat.at",
    samples=(
        Sample(f32(5, 4), _THIRD, boolean(3), shape=(-1,)),
        Sample(f32(5, 4), np.array([2, 2, 3]), shape=(3,)),
        Sample(f32(5), np.array([2, 2, 3, 1]), boolean(3), shape=(-1, 1)),
        Sample(f32(5), np.array([2, 2, 1, 3]), boolean(1), boolean(3), shape=(-1, -1)),
        Sample(f32(5, 4), _THIRD, shape=(-1,), error="T102"),
        Sample(f32(5, 4), _THIRD, boolean(3, 1), shape=(-1,), error="T102"),
        Sample(f32(5, 4), i64(2), boolean(3), shape=(-1,), error="T102"),
        Sample(f32(), _THIRD, boolean(3), shape=(-1,), error="T102"),
        Sample(f32(5), f32(3), boolean(3), shape=(-1,), error="T105"),
    ),
)
def flat_at(rows: Tensor, place: Tensor, *rooms: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The element of a flat sequence at a place (`flat.place`). `shape` has the sizes of its first
    axes. Each -1 stands for the size of the next of `rooms`, vectors whose elements are not read.

    Errors: T102, T105.
    """
    name = "flat.at"
    _need_place(name, place)
    given = [room.shape[0] for room in rooms if room.rank == 1]
    if len(given) != len(rooms) or len(given) != shape.count(-1) or not rows.rank:
        raise GraphTypeError(
            "T102", f"{name}: {rows.type} in {list(shape)} with {len(rooms)} vectors as sizes"
        )
    sizes = iter(given)
    first: list[Dim] = [next(sizes) if size == -1 else size for size in shape]

    def body(*i: Scalar) -> Scalar:
        row = te.as_scalar(0)
        for index, size in zip(i, first, strict=False):
            row = row * te.size(size) + index
        return rows[(_inside(place[(1,)] + row, rows), *i[len(first) :])]

    return te.compute((*first, *rows.shape[1:]), body, name)


def _inside(row: Scalar, rows: Tensor) -> Scalar:
    """Returns a row index, clamped so that a wrong place cannot read outside of the rows."""
    return te.minimum(te.maximum(row, 0), te.size(rows.shape[0]) - 1)


@flat_at.reference
def _flat_at_reference(rows: Array, place: Array, *rooms: Array, shape: tuple[int, ...]) -> Array:
    sizes = iter(map(len, rooms))
    first = [next(sizes) if size == -1 else size for size in shape]
    taken = _taken(rows, np.arange(prod(first)) + int(place[1]))
    return taken.reshape(*first, *rows.shape[1:])


def _taken(rows: Array, row: Array) -> Array:
    """Returns rows by number, capped as in `_inside`; zeros if there are none."""
    if not len(rows):
        return np.zeros((len(row), *rows.shape[1:]), rows.dtype)
    return rows.take(np.clip(row, 0, len(rows) - 1), 0)


@register_op(
    "flat.insert",
    samples=(
        Sample(f32(5, 4), f32(2, 4), _THIRD),
        Sample(f32(5), f32(1), np.array([3, 5, 0, 0])),
        Sample(f32(5, 4), f32(2, 3), _THIRD, error="T108"),
        Sample(f32(5, 4), i64(2, 4), _THIRD, error="T101"),
        Sample(f32(5, 4), f32(2), _THIRD, error="T102"),
        Sample(f32(5, 4), f32(2, 4), f32(3), error="T105"),
    ),
)
def flat_insert(rows: Tensor, new: Tensor, place: Tensor) -> Tensor:
    """The rows of a flat sequence, with the rows of a new element inserted before the element at a
    place.

    Errors: T101, T102, T105, T108.
    """
    name = "flat.insert"
    same_dtype(name, rows, new)
    _need_place(name, place)
    if not rows.rank or new.rank != rows.rank:
        raise GraphTypeError("T102", f"{name}: {new.type} into {rows.type}")
    if any(differ(a, b) for a, b in zip(rows.shape[1:], new.shape[1:], strict=True)):
        raise GraphTypeError("T108", f"{name}: {new.type} into {rows.type}")
    more = new.shape[0]

    def body(i: Scalar, *rest: Scalar) -> Scalar:
        begin = place[(1,)]
        behind = i - te.size(more)
        old = rows[(_inside(te.select(i < begin, i, behind), rows), *rest)]
        is_new = (i >= begin) & (behind < begin)
        return te.select(is_new, new[(_inside(i - begin, new), *rest)], old)

    return te.compute((rows.shape[0] + more, *rows.shape[1:]), body, name)


@flat_insert.reference
def _flat_insert_reference(rows: Array, new: Array, place: Array) -> Array:
    begin, more = int(place[1]), len(new)
    row = np.arange(len(rows) + more)
    found = _taken(rows, np.where(row < begin, row, row - more))
    places = (row >= begin) & (row < begin + more)
    found[places] = new[: places.sum()]
    return found


@register_op(
    "flat.rest",
    traits=Traits(sizes="computed"),
    samples=(
        Sample(f32(5, 4), _THIRD),
        Sample(f32(5), np.array([1, 2, 0, 4])),
        Sample(f32(), _THIRD, error="T102"),
        Sample(f32(5), i64(2), error="T102"),
        Sample(f32(5), f32(3), error="T105"),
    ),
)
def flat_rest(rows: Tensor, place: Tensor) -> Tensor:
    """The number of rows of a flat sequence without the element at a place: `i64[]`.

    Errors: T102, T105.
    """
    name = "flat.rest"
    _need_place(name, place)
    if not rows.rank or not isinstance(place.shape[0], int):
        raise GraphTypeError("T102", f"{name}: {rows.type} without the element at {place.type}")

    def body() -> Scalar:
        return te.maximum(te.size(rows.shape[0]) - _row_count(place), 0)

    return te.compute((), body, name)


def _row_count(place: Tensor) -> Scalar:
    count = te.as_scalar(1)
    assert isinstance(place.shape[0], int)
    for n in range(2, place.shape[0]):
        count = count * place[(n,)]
    return count


@flat_rest.reference
def _flat_rest_reference(rows: Array, place: Array) -> Array:
    return np.asarray(max(len(rows) - prod(place[2:].tolist()), 0), np.int64)


@register_op(
    "flat.erase",
    samples=(
        Sample(f32(5, 4), np.array([0, 0, 2]), boolean(3)),
        Sample(f32(5), np.array([1, 2, 1, 2]), boolean(3)),
        Sample(f32(5), np.array([1, 2, 2]), boolean(3, 1), error="T102"),
        Sample(f32(), _THIRD, boolean(2), error="T102"),
        Sample(f32(5), f32(3), boolean(2), error="T105"),
    ),
)
def flat_erase(rows: Tensor, place: Tensor, room: Tensor) -> Tensor:
    """The rows of a flat sequence without the element at a place. `room`, whose elements are not
    read, has as many elements as the result has rows.

    Errors: T102, T105.
    """
    name = "flat.erase"
    _need_place(name, place)
    if not rows.rank or room.rank != 1 or not isinstance(place.shape[0], int):
        raise GraphTypeError("T102", f"{name}: {rows.type} into {room.type}")

    def body(i: Scalar, *rest: Scalar) -> Scalar:
        old = te.select(i < place[(1,)], i, i + _row_count(place))
        return rows[(_inside(old, rows), *rest)]

    return te.compute((room.shape[0], *rows.shape[1:]), body, name)


@flat_erase.reference
def _flat_erase_reference(rows: Array, place: Array, room: Array) -> Array:
    row = np.arange(len(room))
    return _taken(rows, np.where(row < place[1], row, row + prod(place[2:].tolist())))
