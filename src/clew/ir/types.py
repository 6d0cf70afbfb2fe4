"""Types of graph values: tensors with shape, dtype and layout; tuples; functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from clew.ir.dims import Dim, SymDim, dim_max, product, substitute, unknown_dim
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT

_NUMPY: Final[dict[str, Any]] = {
    "bool": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "i4": ml_dtypes.int4,
    "u4": ml_dtypes.uint4,
    "i2": ml_dtypes.int2,
    "u2": ml_dtypes.uint2,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "f6e2m3fn": ml_dtypes.float6_e2m3fn,
    "f6e3m2fn": ml_dtypes.float6_e3m2fn,
    "f4e2m1fn": ml_dtypes.float4_e2m1fn,
    # Only host operators hold and move them.
    "c64": np.complex64,
    "c128": np.complex128,
    "str": TEXT,
}
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    name: np.dtype(scalar) for name, scalar in _NUMPY.items()
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
# Storage-only number formats, converted before computing. Each takes one byte in memory, in its low
# bits.
STORAGE: Final = (
    "i4", "u4", "i2", "u2", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu",
    "f6e2m3fn", "f6e3m2fn", "f4e2m1fn",
)  # fmt: skip
_BITS: Final = {"str": 64, "bool": 8, "bf16": 16} | {name: int(name[1]) for name in STORAGE}
DTYPES: Final = tuple(_NUMPY)
# Dtypes that kernels do not support: operators on them run on the host.
HOST_DTYPES: Final = frozenset({"c64", "c128", "str"})


def to_numpy(dtype: str) -> np.dtype[Any]:
    """Returns NumPy's dtype for a clew dtype name such as `f32`."""
    return _DTYPES[dtype]


def from_numpy(dtype: np.dtype[Any]) -> str:
    """Returns the clew name of a NumPy dtype.

    Errors: T001 for a dtype that tensors do not support.
    """
    name = _NAMES.get(np.dtype(dtype))
    if name is None:
        raise GraphTypeError("T001", f"dtype {dtype} is not one of {', '.join(DTYPES)}")
    return name


@cache
def bits(dtype: str) -> int:
    """Returns the size of one element in bits; `memory_bytes` gives its size in memory."""
    return _BITS.get(dtype) or int(re.sub(r"\D", "", dtype))


def memory_bytes(dtype: str) -> int:
    """Returns the size of one element in memory in bytes, at least one (files may pack more
    densely).
    """
    return max(8, bits(dtype)) // 8


NARROW_FLOATS: Final = ("f16", "bf16")
"""Floats that kernels compute in f32 and round where they are stored."""


def is_float(dtype: str) -> bool:
    """Whether the dtype is a floating-point dtype."""
    return dtype[0] == "f" or dtype == "bf16"


def is_integer(dtype: str) -> bool:
    """Whether the dtype is a signed or unsigned integer (bool is not)."""
    return dtype[0] in "iu"


@cache
def integer_limits(dtype: str) -> tuple[int, int]:
    """Returns the lowest and the highest number of an integer dtype."""
    if dtype[0] == "u":
        return 0, (1 << bits(dtype)) - 1
    half = 1 << (bits(dtype) - 1)
    return -half, half - 1


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: `f32[1, 64, seq]`, with the layout of its axes if one is set (`NCHW16c`).

    `shape` is the shape in memory: the blocked one if the layout is blocked.
    """

    shape: tuple[Dim, ...]
    dtype: str
    layout: str = ""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype, self.layout)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        layout = f":{self.layout}" if self.layout else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{layout}"

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is an int."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def concrete(self) -> tuple[int, ...]:
        """The shape as ints. Asserts that it is static."""
        assert self.is_static, f"{self} has symbolic dimensions"
        return self.shape  # type: ignore[return-value]

    @property
    def size_bytes(self) -> int:
        """Size in memory in bytes. Asserts a static shape."""
        size = self.size
        assert isinstance(size, int)
        return size * memory_bytes(self.dtype)

    @property
    def memory_bytes(self) -> Dim:
        """Size in memory in bytes, a polynomial if the shape has symbolic dimensions."""
        return self.size * memory_bytes(self.dtype)

    def with_(self, **changes: Any) -> TensorType:
        """Returns the type with some of shape, dtype and layout changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class UnrankedType:
    """A tensor of a rank known only during the run, held by host operators only: an element of a
    sequence, or the result of branches of different ranks.
    """

    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[*]"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of types. `is_static`: whether it consists of tensors of known shape only."""

    fields: tuple[Type, ...]
    is_static: bool = field(init=False, repr=False, compare=False, default=False)
    is_native: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        # Computed once, since it is read for each field of a large tuple.
        tensors = all(isinstance(f, (TensorType, TupleType)) for f in self.fields)
        static = tensors and all(f.is_static for f in self.fields)  # type: ignore[union-attr]
        object.__setattr__(self, "is_static", static)
        object.__setattr__(self, "is_native", all(map(is_native, self.fields)))

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))})"


@dataclass(frozen=True, slots=True)
class FunctionType:
    """A function's type."""

    params: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"fn({', '.join(map(str, self.params))}) -> {self.result}"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A run-time list of tensors of one dtype, held by host operators only. Shapes may differ: an
    unknown size in `element` may differ between elements. `empty`: whether the list is known to be
    empty.
    """

    element: Type
    empty: bool = False

    def __str__(self) -> str:
        return f"seq<{self.element}{', empty' if self.empty else ''}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent, held by host operators only."""

    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A run-time dict with keys of one dtype (`i64`, `str`), held by host operators only."""

    key: str
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


Type: TypeAlias = (
    TensorType | UnrankedType | TupleType | FunctionType | SequenceType | OptionalType | MapType
)


def is_unranked(type_: Type) -> bool:
    """Whether a value is, or contains, a tensor of unknown rank."""
    match type_:
        case UnrankedType():
            return True
        case SequenceType(element) | OptionalType(element):
            return is_unranked(element)
    return False


def leaves(type_: Type) -> list[Type]:
    """Returns the types of a value's parts in order, with nested tuples flattened."""
    if isinstance(type_, TupleType):
        return [t for f in type_.fields for t in leaves(f)]
    return [type_]


def is_empty(type_: Type) -> bool:
    """Whether a value is a tensor known to have no elements."""
    return isinstance(type_, TensorType) and 0 in type_.shape and type_.is_static


MAX_EXTENT: Final = 1 << 62
"""Kernels compute positions and sums of them in 64 bits. Sizes of values stay below this."""


def extent(type_: TensorType) -> Dim:
    """Returns the number of bytes of a value if its empty axes had one element: a bound of all
    positions, strides and numbers of iterations that its shape leads to.
    """
    return product(tuple(dim_max(d, 1) for d in type_.shape)) * memory_bytes(type_.dtype)


def is_addressable(type_: TensorType) -> bool:
    """Whether positions in a value fit in 64 bits, as far as its shape is known."""
    known = [max(d, 1) for d in type_.shape if isinstance(d, int)]
    return math.prod(known) * memory_bytes(type_.dtype) <= MAX_EXTENT


def empty_array(type_: Type) -> np.ndarray[Any, Any]:
    """Returns the value of a type for which `is_empty` is true."""
    assert isinstance(type_, TensorType)
    return np.empty(type_.concrete, to_numpy(type_.dtype))


def is_native(type_: Type) -> bool:
    """Whether kernels support a value: tensors of numbers, and tuples of them."""
    if isinstance(type_, TensorType):
        return type_.dtype not in HOST_DTYPES
    return isinstance(type_, TupleType) and type_.is_native


def dims_in(type_: Type) -> set[SymDim]:
    """Returns the symbolic dimensions in a type."""
    shapes = (getattr(leaf, "shape", ()) for leaf in leaves(type_))
    return {dim for shape in shapes for dim in shape if isinstance(dim, SymDim)}


def sizes_in(type_: Type) -> set[str]:
    """Returns the names of the sizes in a type."""
    return {name for dim in dims_in(type_) for name in dim.symbols}


def unknown_sizes(type_: Type) -> set[str]:
    """Returns the names of sizes in a type that are known only during the run."""
    return {name for name in sizes_in(type_) if name.startswith("?")}


def substitute_type(type_: Type, sizes: Mapping[str, Dim]) -> Type:
    """Returns the type with named sizes replaced."""
    return map_dims(type_, lambda dim: substitute(dim, sizes))


def map_dims(type_: Type, change: Callable[[Dim], Dim]) -> Type:
    """Returns the type with each dimension in it changed."""
    match type_:
        case TensorType(shape, dtype, layout):
            return TensorType(tuple(change(d) for d in shape), dtype, layout)
        case UnrankedType():
            return type_
        case TupleType(fields):
            return TupleType(tuple(map_dims(f, change) for f in fields))
        case FunctionType(params, result):
            return FunctionType(
                tuple(map_dims(p, change) for p in params), map_dims(result, change)
            )
        case SequenceType(element, empty):
            return SequenceType(map_dims(element, change), empty)
        case OptionalType(element):
            return OptionalType(map_dims(element, change))
        case MapType(key, value):
            return MapType(key, map_dims(value, change))


def dtype_of(type_: Type) -> str:
    """Returns the dtype of a tensor type, "" for other types."""
    return type_.dtype if isinstance(type_, (TensorType, UnrankedType)) else ""


def join(left: Type, right: Type) -> Type:
    """Returns a type that covers two alternatives; differing sizes become unknown.

    Errors: T007 if no type covers both.
    """
    if left == right:
        return left
    match left, right:
        case TupleType(a), TupleType(b) if len(a) == len(b):
            return TupleType(tuple(join(x, y) for x, y in zip(a, b, strict=True)))
        case TensorType(a, dtype, layout), TensorType(b, other, _) if dtype == other and len(
            a
        ) == len(b):
            dims = tuple(x if x == y else unknown_dim() for x, y in zip(a, b, strict=True))
            return TensorType(dims, dtype, layout)
        case (TensorType() | UnrankedType(), TensorType() | UnrankedType()) if (
            left.dtype == right.dtype
        ):
            return UnrankedType(left.dtype)
        case SequenceType(a, True), SequenceType(b) if dtype_of(a) == dtype_of(b):
            return right
        case SequenceType(a), SequenceType(b, True) if dtype_of(a) == dtype_of(b):
            return left
        case SequenceType(a), SequenceType(b):
            return SequenceType(join(a, b))
        case OptionalType(a), OptionalType(b):
            return OptionalType(join(a, b))
        # A present value is also an optional: during a run they are the same.
        case (OptionalType(a), b) | (b, OptionalType(a)):
            return OptionalType(join(a, b))
    raise GraphTypeError("T007", f"branches give {left} and {right}, which no type covers")
