"""Sequences, run-time lists of tensors, and the host operators on them.

A sequence is an immutable Python list: operators return new lists. If its elements are known before
the run, `ops.structure` eliminates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from clew.ir.dims import Dim, is_unknown, unknown_dim
from clew.ir.types import (
    DTYPES,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    is_integer,
    join,
)
from clew.ops.common import axis_of, f32, i64
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError, RunError

Array = np.ndarray[Any, Any]

PIECE_BYTES: Final = 128
"""NumPy's overhead of an array, besides its elements."""
_PAIR: Final = SequenceType(f32(2, 3))
_RAGGED: Final = SequenceType(UnrankedType("f32"))


def sequence_type(name: str, type_: Type) -> SequenceType:
    """Checks that a type is a sequence's, and returns it.

    Errors: T150.
    """
    if not isinstance(type_, SequenceType):
        raise GraphTypeError("T150", f"{name}: an input is {type_}, expected a sequence")
    return type_


def any_tensor(name: str, type_: Type) -> TensorType | UnrankedType:
    """Checks that a type is a tensor's, of any rank, and returns it.

    Errors: T014.
    """
    if not isinstance(type_, (TensorType, UnrankedType)):
        raise GraphTypeError("T014", f"{name}: an input is {type_}, expected a tensor")
    return type_


def one_of(type_: Type) -> Type:
    """Returns the type of one element. Sizes that differ between elements get new unknown symbols
    each time an element is read.
    """
    if isinstance(type_, TensorType):
        shape = tuple(unknown_dim() if is_unknown(d) else d for d in type_.shape)
        return type_.with_(shape=shape)
    return type_


def _place(name: str, type_: Type | None) -> None:
    """Checks the type of an index.

    Errors: T151.
    """
    if type_ is None:
        return
    fits = isinstance(type_, UnrankedType) or (
        isinstance(type_, TensorType) and (type_.rank == 0 or type_.shape == (1,))
    )
    dtype = getattr(type_, "dtype", "")
    if not fits or dtype not in ("i32", "i64"):
        raise GraphTypeError("T151", f"{name}: the index is {type_}, expected i64[]")


def _index(name: str, place: Any, count: int, *, end: bool = False) -> int:
    """Returns an index counted from the front; `end` also allows the position after the last
    element.

    Errors: I270.
    """
    array = place if type(place) is np.ndarray else np.asarray(place)
    index = int(array.item()) if array.size == 1 else count + 1
    if not -count <= index < count + end:
        raise RunError(
            "I270",
            f"{name}: index {index} in a sequence of {count}",
            hint=f"it may be from {-count} to {count - 1 + end}" if count or end else "it is empty",
        )
    return index + count if index < 0 else index


@register_op(
    "sequence.construct",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(f32(2, 3), f32(4)),
        Sample(f32(2, 3), f32(2, 3)),
        Sample(dtype="i64"),
        Sample(f32(2), i64(2), error="T152"),
        Sample(_PAIR, error="T014"),
        Sample(dtype="f31", error="T152"),
    ),
)
def construct(*elements: Array, dtype: str = "") -> list[Array]:
    """A sequence of tensors of one dtype; `dtype` gives it if there are no tensors.

    Source: ONNX SequenceConstruct-11, SequenceEmpty-11.
    """
    return list(elements)


@construct.types
def _construct_types(*elements: Type, dtype: str) -> Type:
    name = "sequence.construct"
    if not elements:
        if dtype not in DTYPES:
            raise GraphTypeError("T152", f"{name}: no dtype {dtype!r}")
        return SequenceType(UnrankedType(dtype), empty=True)
    types = [any_tensor(name, e) for e in elements]
    found: Type = types[0]
    for other in types[1:]:
        if other.dtype != types[0].dtype:
            raise GraphTypeError(
                "T152", f"{name}: elements are {types[0]} and {other}, expected one dtype"
            )
        found = join(found, other)
    return SequenceType(found)


@register_op(
    "sequence.at",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(_PAIR, np.int64(1)),
        Sample(_RAGGED, np.int64(-2)),
        Sample(f32(2), np.int64(0), error="T150"),
        Sample(_PAIR, f32(), error="T151"),
        Sample(_PAIR, i64(2), error="T151"),
    ),
)
def at(sequence: list[Array], position: Array) -> Array:
    """The element at a position; negative positions count from the end.

    Errors: I270 for a position out of range. Source: ONNX SequenceAt-11.
    """
    return sequence[_index("sequence.at", position, len(sequence))]


@at.types
def _at_types(sequence: Type, position: Type) -> Type:
    _place("sequence.at", position)
    return one_of(sequence_type("sequence.at", sequence).element)


@register_op(
    "sequence.insert",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(_PAIR, f32(2, 3)),
        Sample(_PAIR, f32(5), np.int64(0)),
        Sample(_RAGGED, f32(), np.int64(2)),
        Sample(_PAIR, i64(2), error="T152"),
        Sample(_PAIR, f32(2), f32(2), error="T151"),
    ),
)
def insert(sequence: list[Array], element: Array, position: Any = None) -> list[Array]:
    """The sequence with an element inserted before a position (at the end without one).

    Errors: I270. Source: ONNX SequenceInsert-11.
    """
    count = len(sequence)
    place = count if position is None else _index("sequence.insert", position, count, end=True)
    whole = sequence.copy()
    whole.insert(place, element)
    return whole


@insert.types
def _insert_types(sequence: Type, element: Type, position: Type | None = None) -> Type:
    name = "sequence.insert"
    whole, new = sequence_type(name, sequence), any_tensor(name, element)
    _place(name, position)
    held = any_tensor(name, whole.element)
    if held.dtype != new.dtype:
        raise GraphTypeError("T152", f"{name}: {new} into a {whole}, expected one dtype")
    return join(whole, SequenceType(new))


@register_op(
    "sequence.erase",
    host=True,
    traits=Traits(passes_on=True),
    samples=(
        Sample(_PAIR),
        Sample(_PAIR, np.int64(-2)),
        Sample(f32(2), error="T150"),
        Sample(_PAIR, f32(), error="T151"),
    ),
)
def erase(sequence: list[Array], position: Any = None) -> list[Array]:
    """The sequence without the element at a position (the last element without one).

    Errors: I270. Source: ONNX SequenceErase-11.
    """
    place = _index("sequence.erase", -1 if position is None else position, len(sequence))
    rest = sequence.copy()
    del rest[place]
    return rest


@erase.types
def _erase_types(sequence: Type, position: Type | None = None) -> Type:
    _place("sequence.erase", position)
    return sequence_type("sequence.erase", sequence)


@register_op(
    "sequence.length",
    traits=Traits(sizes="read", collects=True),
    host=True,
    samples=(Sample(_PAIR), Sample(_RAGGED), Sample(f32(2), error="T150")),
)
def length(sequence: list[Array]) -> Array:
    """The number of elements, `i64[]`. Source: ONNX SequenceLength-11."""
    return np.asarray(len(sequence), np.int64)


@length.types
def _length_types(sequence: Type) -> Type:
    sequence_type("sequence.length", sequence)
    return TensorType((), "i64")


@register_op(
    "sequence.split",
    host=True,
    traits=Traits(splits=True),
    samples=(
        Sample(f32(4, 3)),
        Sample(f32(4, 3), axis=-1, keepdims=False),
        Sample(f32(5, 3), np.int64(2)),
        Sample(f32(5, 3), np.array([1, 0, 4]), keepdims=False),
        Sample(f32(), error="T104"),
        Sample(f32(4, 3), axis=2, error="T104"),
        Sample(f32(4, 3), i64(2, 2), error="T153"),
        Sample(f32(4, 3), f32(), error="T153"),
    ),
)
def split(x: Array, parts: Any = None, *, axis: int = 0, keepdims: bool = True) -> list[Array]:
    """Pieces of a tensor along an axis. Without `parts` they have size 1, and the axis is removed
    unless `keepdims`. With one number they have that size (the last may be smaller), with several
    those sizes.

    Errors: I265, I274 for sizes that do not add up to the size of the axis.
    Source: ONNX SplitToSequence-11.
    """
    # Calls take microseconds: `np.ndim` and indices in tuples would be much of that.
    size = x.shape[axis]
    if parts is None or not parts.shape:
        count = size if parts is None else -(-size // max(int(parts), 1))
        check_run_bytes("the result of sequence.split", x.nbytes + count * PIECE_BYTES)
    if parts is None and not keepdims:
        if axis == 0 and x.ndim > 1:
            return list(x)
        before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
        return [x[(*before, n, ...)] for n in range(size)]  # arrays, also of rank 0
    ends: Sequence[int] = (
        range(size + 1) if parts is None else [0, *accumulate(sizes_of_pieces(size, parts))]
    )
    if axis == 0:
        return [x[start:end] for start, end in pairwise(ends)]
    before = (slice(None),) * (axis % x.ndim)
    return [x[(*before, slice(start, end))] for start, end in pairwise(ends)]


def sizes_of_pieces(size: int, parts: Array) -> list[int]:
    """Returns the sizes of the pieces of an axis of `size` elements: `parts` each (the last may be
    smaller), or those in `parts`.

    Errors: I265, I274.
    """
    given: Any = np.asarray(parts).tolist()
    if isinstance(given, int):
        if given > 0:
            count = -(-size // given)
            check_run_bytes("the sizes of the pieces of sequence.split", 8 * count)
            return [given] * (count - 1) + [size - given * (count - 1)] if count else []
        shown = [given]
    elif sum(given) == size and min(given, default=0) >= 0:
        return list(given)
    else:
        shown = given[:8]
    raise RunError("I274", f"sequence.split: pieces of {shown} do not fit an axis of {size}")


@split.types
def _split_types(x: Type, parts: Type | None = None, *, axis: int, keepdims: bool) -> Type:
    name = "sequence.split"
    source = any_tensor(name, x)
    if parts is not None:
        check_parts(name, parts)
    if not isinstance(source, TensorType):
        return SequenceType(source)
    n = axis_of(name, axis, source.rank)
    own: tuple[Dim, ...] = (unknown_dim(),)
    if parts is None:
        own = (1,) if keepdims else ()
    return SequenceType(source.with_(shape=(*source.shape[:n], *own, *source.shape[n + 1 :])))


def check_parts(name: str, parts: Type) -> None:
    """Checks the type of the sizes of pieces.

    Errors: T153.
    """
    if not isinstance(parts, TensorType) or parts.rank > 1 or not is_integer(parts.dtype):
        raise GraphTypeError("T153", f"{name}: sizes of the pieces are {parts}, expected integers")


@register_op(
    "sequence.concat",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(_PAIR, axis=0),
        Sample(_PAIR, axis=-1),
        Sample(_PAIR, axis=-1, new_axis=True),
        Sample(f32(2), axis=0, error="T150"),
        Sample(_PAIR, axis=2, error="T104"),
        Sample(_PAIR, axis=3, new_axis=True, error="T104"),
    ),
)
def concat(sequence: list[Array], *, axis: int, new_axis: bool = False) -> Array:
    """The elements concatenated along an axis, which is new with `new_axis`.

    Errors: I272 for an empty sequence, and for elements with incompatible shapes.
    Source: ONNX ConcatFromSequence-11.
    """
    name = "sequence.concat"
    if not sequence:
        raise RunError("I272", f"{name}: the sequence is empty")
    try:
        return np.stack(sequence, axis) if new_axis else np.concatenate(sequence, axis)
    except ValueError as error:
        shapes = ", ".join(str(list(np.shape(e))) for e in sequence[:4])
        raise RunError("I272", f"{name}: elements have incompatible shapes {shapes}") from error


@concat.types
def _concat_types(sequence: Type, *, axis: int, new_axis: bool) -> Type:
    name = "sequence.concat"
    element = any_tensor(name, sequence_type(name, sequence).element)
    if not isinstance(element, TensorType):
        return element
    n = axis_of(name, axis, element.rank + new_axis)
    shape: list[Dim] = [unknown_dim() if is_unknown(d) else d for d in element.shape]
    if new_axis:
        shape.insert(n, unknown_dim())
    else:
        shape[n] = unknown_dim()
    return element.with_(shape=tuple(shape))


@register_op(
    "sequence.join_rows",
    host=True,
    traits=Traits(reinterprets=True),
    samples=(
        Sample(f32(4, 3, 2)),
        Sample(i64(5, 1)),
        Sample(f32(4), error="T102"),
        Sample(f32(0, 3), error="I272"),
    ),
)
def join_rows(x: Array) -> Array:
    """The rows of a tensor, one after another along their first axis: `sequence.concat` of their
    sequence, as a view of the tensor's memory.

    Errors: T102 for rows without axes; I272 if there are no rows.
    """
    count, size, *rest = x.shape
    return x.reshape(count * size, *rest)


@join_rows.types
def _join_rows_types(x: Type) -> Type:
    name = "sequence.join_rows"
    source = any_tensor(name, x)
    if not isinstance(source, TensorType):
        return source
    if source.rank < 2:
        raise GraphTypeError("T102", f"{name}: rows of {source} have no axes")
    count, size, *rest = source.shape
    if count == 0:
        raise RunError("I272", f"{name}: the sequence is empty")
    return source.with_(shape=(count * size, *rest))
