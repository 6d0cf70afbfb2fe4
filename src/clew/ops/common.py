"""Shared helpers of operators: sample types, checks with coded errors, NumPy broadcasting in te."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from clew.ir.dims import Dim, SymDim, unknown_dim
from clew.ir.expr import ArgRef
from clew.ir.types import STORAGE, TensorType, Type, is_float, is_integer
from clew.support.errors import GraphTypeError, UnsupportedError
from clew.support.scoped import scoped
from clew.te import Scalar, Tensor, cast, minimum
from clew.te import size as size_value
from clew.te.expr import Imm


def f32(*shape: Dim) -> TensorType:
    """Returns an `f32` tensor type."""
    return TensorType(shape, "f32")


def f64(*shape: Dim) -> TensorType:
    """Returns an `f64` tensor type."""
    return TensorType(shape, "f64")


def bf16(*shape: Dim) -> TensorType:
    """Returns a `bf16` tensor type."""
    return TensorType(shape, "bf16")


def f16(*shape: Dim) -> TensorType:
    """Returns an `f16` tensor type."""
    return TensorType(shape, "f16")


def i64(*shape: Dim) -> TensorType:
    """Returns an `i64` tensor type."""
    return TensorType(shape, "i64")


def i32(*shape: Dim) -> TensorType:
    """Returns an `i32` tensor type."""
    return TensorType(shape, "i32")


def i16(*shape: Dim) -> TensorType:
    """Returns an `i16` tensor type."""
    return TensorType(shape, "i16")


def i8(*shape: Dim) -> TensorType:
    """Returns an `i8` tensor type."""
    return TensorType(shape, "i8")


def u8(*shape: Dim) -> TensorType:
    """Returns a `u8` tensor type."""
    return TensorType(shape, "u8")


def boolean(*shape: Dim) -> TensorType:
    """Returns a `bool` tensor type."""
    return TensorType(shape, "bool")


def text(shape: Sequence[Dim]) -> str:
    """Returns a shape as `[1, 64, seq]`."""
    return f"[{', '.join(map(str, shape))}]"


def same_dtype(name: str, *tensors: Tensor) -> str:
    """Returns the common dtype of all inputs.

    Errors: T101 if they differ.
    """
    first = tensors[0]
    for other in tensors[1:]:
        if other.dtype != first.dtype:
            raise GraphTypeError(
                "T101",
                f"{name}: inputs are {first.type} and {other.type}, expected one dtype",
                hint="insert a cast",
            )
    return first.dtype


def need_float(name: str, *tensors: Tensor) -> None:
    """Checks that inputs are floating-point.

    Errors: T105.
    """
    for x in tensors:
        if not is_float(x.dtype):
            raise GraphTypeError("T105", f"{name}: input is {x.type}, expected a float dtype")


def need_integer(name: str, *tensors: Tensor) -> None:
    """Checks that inputs are integers.

    Errors: T105.
    """
    for x in tensors:
        if not is_integer(x.dtype):
            raise GraphTypeError("T105", f"{name}: input is {x.type}, expected an integer dtype")


def need_bool(name: str, *tensors: Tensor) -> None:
    """Checks that inputs are booleans.

    Errors: T105.
    """
    for x in tensors:
        if x.dtype != "bool":
            raise GraphTypeError("T105", f"{name}: input is {x.type}, expected bool")


def need_number(name: str, *tensors: Tensor) -> None:
    """Checks that inputs are integers or floats.

    Errors: T105.
    """
    for x in tensors:
        if x.dtype == "bool":
            raise GraphTypeError("T105", f"{name}: input is {x.type}, expected a number")


def need_rank(name: str, what: str, x: Tensor, rank: int) -> None:
    """Checks the number of axes of an input.

    Errors: T102.
    """
    if x.rank != rank:
        raise GraphTypeError(
            "T102", f"{name}: {what} is {x.type} of rank {x.rank}, expected rank {rank}"
        )


def axis_of(name: str, axis: int | ArgRef, rank: int) -> int:
    """Returns an axis counted from the front; negative ones count from the back.

    Errors: T104 for an axis out of range, U103 for an axis that is only known at run time.
    """
    if isinstance(axis, ArgRef):
        raise UnsupportedError("U103", f"{name}: the axis must be known before the run")
    if not -rank <= axis < rank:
        raise GraphTypeError("T104", f"{name}: axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns axes counted from the front, in ascending order.

    Errors: T104 for an axis out of range or a repeated axis.
    """
    found = sorted(axis_of(name, a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise GraphTypeError("T104", f"{name}: axes {tuple(axes)} name one axis twice")
    return tuple(found)


_assumed: ContextVar[dict[SymDim, None] | None] = ContextVar("assumed", default=None)


@contextmanager
def assumptions() -> Iterator[dict[SymDim, None]]:
    """Collects the dimensions that operators assume to be at least 0 inside the block."""
    found: dict[SymDim, None] = {}
    with scoped(_assumed, found):
        yield found


def assume_at_least(dim: Dim, low: Dim) -> None:
    """Records that a kernel is valid only for sizes at which `dim` is at least `low`."""
    found, difference = _assumed.get(), dim - low
    if found is not None and isinstance(difference, SymDim):
        found[difference] = None


def assume_either(dim: Dim, one: Dim, other: Dim) -> None:
    """Records that a kernel is valid only for sizes at which `dim` equals one of two others."""
    distance = (dim - one) * (dim - other)
    assume_at_least(-1 * distance * distance, 0)


def capped(place: Scalar, size: Dim) -> Scalar:
    """Returns a place on an axis of `size` elements that is at least 0. Correct data give valid
    places; the cap keeps reads inside the buffer for all data.
    """
    return minimum(place, size_value(size) - 1)


def _assume(a: Dim, b: Dim) -> None:
    assume_at_least(a, b)
    assume_at_least(b, a)


def differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes are known to differ; a symbol may equal any size."""
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    _assume(a, b)
    return False


def exceeds(size: Dim, most: Dim) -> bool:
    """Whether a size is known to be larger than another; otherwise it is assumed not to be."""
    if isinstance(size, int) and isinstance(most, int):
        return size > most
    assume_at_least(most, size)
    return False


def divides(factor: Dim, size: Dim) -> bool:
    """Whether a size is a multiple of a factor, which is not 0; a symbol is assumed to be."""
    rest = size % factor
    if isinstance(rest, int):
        return rest == 0
    assume_at_least(0, rest)
    return True


def rounds_up(size: Dim, stored: Dim, block: int) -> bool:
    """Whether a stored size is a size rounded up to whole blocks; a symbol is assumed to be."""
    return not exceeds(size, stored) and not exceeds(stored - block + 1, size)


def _joint(a: Dim, b: Dim) -> Dim | None:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        return None
    _assume(a, b)
    return b if isinstance(b, int) else a


def led_by_ones(shape: Sequence[Dim], rank: int) -> list[Dim]:
    """Returns a shape with axes of size 1 in front, up to a rank, as broadcasting adds them."""
    return [1] * (rank - len(shape)) + list(shape)


def broadcast_shapes(name: str, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
    """Returns the shape that all shapes broadcast to, by NumPy's rules.

    A symbol is assumed to match any size: the result is the int if there is one, else the first
    symbol.

    Errors: T100 if they do not broadcast.
    """
    rank = max(len(s) for s in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for position, dim in enumerate(shape, rank - len(shape)):
            joint = _joint(result[position], dim)
            if joint is None:
                listed = " and ".join(text(s) for s in shapes)
                raise GraphTypeError("T100", f"{name}: shapes {listed} do not broadcast")
            result[position] = joint
    return tuple(result)


def broadcast_place(
    shape: Sequence[Dim], result: Sequence[Dim], indices: Sequence[Scalar]
) -> tuple[Scalar, ...]:
    """Returns the element of `shape` (which broadcasts to `result`) that corresponds to the element
    at `indices` of `result`.
    """
    skipped = len(result) - len(shape)
    return tuple(
        Imm(0, "i64") if size == 1 and result[position] != 1 else indices[position]
        for position, size in enumerate(shape, skipped)
    )


def at(x: Tensor, shape: Sequence[Dim], indices: Sequence[Scalar]) -> Scalar:
    """Returns the element of `x` that corresponds to `indices` of `shape`, to which `x`
    broadcasts.
    """
    return x[broadcast_place(x.shape, shape, indices)]


def joint_layout(rank: int, *tensors: Tensor) -> str:
    """Returns the layout of a broadcast result: the layout of an input with the result's rank."""
    return next((x.layout for x in tensors if x.layout and x.rank == rank), "")


def accumulator(dtype: str) -> str:
    """Returns the dtype that accumulates sums of `dtype`: `f32` for narrow floats."""
    narrow = is_float(dtype) and dtype not in ("f32", "f64")
    return "f32" if narrow else dtype


def computable(x: Scalar) -> Scalar:
    """Returns a value in a dtype that supports arithmetic: `f32` for storage-only floats."""
    return cast("f32", x) if x.dtype in STORAGE and is_float(x.dtype) else x


def widen(x: Scalar) -> Scalar:
    """Returns a value in the dtype that accumulates its sums."""
    return cast(accumulator(x.dtype), x)


# --- attributes that a run tells ------------------------------------------------------------------


def tensor_type(name: str, type_: Type) -> TensorType:
    """Checks that a type is a tensor's, and returns it.

    Errors: T014.
    """
    if not isinstance(type_, TensorType):
        raise GraphTypeError("T014", f"{name}: an input is {type_}, expected a tensor")
    return type_


def held_length(name: str, types: Sequence[Type], value: object) -> int:
    """Returns the number of values that an attribute holds, directly or in an argument.

    Errors: U102 if the number is only known at run time.
    """
    if not isinstance(value, ArgRef):
        assert isinstance(value, tuple)
        return len(value)
    type_ = tensor_type(name, types[value.index])
    if type_.rank != 1 or not isinstance(type_.shape[0], int):
        raise UnsupportedError(
            "U102", f"{name}: the rank of the result depends on a value of type {type_}"
        )
    return type_.shape[0]


def unknown_tensor(name: str, like: Type, rank: int) -> TensorType:
    """Returns a tensor type with the dtype of another and data-dependent sizes."""
    return TensorType(tuple(unknown_dim() for _ in range(rank)), tensor_type(name, like).dtype)
