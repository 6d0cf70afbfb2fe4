"""Tensors of a model file as arrays; sizes are checked before anything is allocated or read."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import SparseTensorProto, TensorProto

from clew.frontends.file_parts import FilePart
from clew.frontends.limits import checked_size
from clew.frontends.names import display
from clew.frontends.onnx.file.external import ExternalData, entries_of
from clew.ir.expr import Constant
from clew.ir.types import NARROW_FLOATS, STORAGE, TensorType, bits, from_numpy, to_numpy
from clew.support.budgets import Budgets
from clew.support.errors import ModelError, UnsupportedError
from clew.support.text_arrays import zeros

_DTYPES: Final[dict[int, str]] = {
    TensorProto.FLOAT: "f32",
    TensorProto.UINT8: "u8",
    TensorProto.INT8: "i8",
    TensorProto.UINT16: "u16",
    TensorProto.INT16: "i16",
    TensorProto.INT32: "i32",
    TensorProto.INT64: "i64",
    TensorProto.BOOL: "bool",
    TensorProto.FLOAT16: "f16",
    TensorProto.DOUBLE: "f64",
    TensorProto.UINT32: "u32",
    TensorProto.UINT64: "u64",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.FLOAT8E4M3FN: "f8e4m3fn",
    TensorProto.FLOAT8E5M2: "f8e5m2",
    TensorProto.FLOAT8E4M3FNUZ: "f8e4m3fnuz",
    TensorProto.FLOAT8E5M2FNUZ: "f8e5m2fnuz",
    TensorProto.FLOAT8E8M0: "f8e8m0fnu",
    TensorProto.UINT4: "u4",
    TensorProto.INT4: "i4",
    TensorProto.UINT2: "u2",
    TensorProto.INT2: "i2",
    TensorProto.FLOAT6E2M3: "f6e2m3fn",
    TensorProto.FLOAT6E3M2: "f6e3m2fn",
    TensorProto.FLOAT4E2M1: "f4e2m1fn",
    TensorProto.COMPLEX64: "c64",
    TensorProto.COMPLEX128: "c128",
    TensorProto.STRING: "str",
}
_NUMBERS: Final = {name: number for number, name in _DTYPES.items()}
# Parameters of at least this size are read from their file only while they are used.
_LAZY_FROM_BYTES: Final = 64 << 10
# The field that holds the elements of a tensor without raw bytes.
_FIELDS: Final = {
    "f32": "float_data",
    "f64": "double_data",
    "c64": "float_data",
    "c128": "double_data",
    "str": "string_data",
    "i64": "int64_data",
    "u64": "uint64_data",
    "u32": "uint64_data",
}


def dtype_of(number: int, what: str) -> str:
    """Returns clew's name of an ONNX element type.

    Errors: U004 for an element type that ONNX does not define for tensors.
    """
    name = _DTYPES.get(number)
    if name is None:
        known = TensorProto.DataType.Name(number) if number in _known_numbers() else str(number)
        raise UnsupportedError(
            "U004",
            f"{what} has the element type {known}",
            hint=f"the supported types are {', '.join(_NUMBERS)}",
        )
    return name


def number_of(dtype: str) -> int:
    """Returns the ONNX element type of a dtype."""
    return _NUMBERS[dtype]


def _known_numbers() -> Sequence[int]:
    return list(TensorProto.DataType.values())


def to_array(
    tensor: TensorProto,
    external: ExternalData,
    budgets: Budgets,
    part: FilePart | None = None,
) -> NDArray[Any]:
    """Returns a tensor's elements, without a copy if they are stored as raw bytes.

    `part` is the location of its raw bytes if the message does not contain them.

    Errors: M005 for rejected external data, M006 if dims, bytes and budget do not match, U004 for
    an element type that tensors cannot have.
    """
    what = f"tensor {display(tensor.name)!r}"
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    size = checked_size(shape, dtype, budgets, what)
    has_bytes = tensor.data_location == TensorProto.EXTERNAL or tensor.HasField("raw_data")
    if dtype == "str" and (part is not None or has_bytes):
        raise ModelError("M006", f"{what} is of type string, which has no raw bytes")
    if tensor.HasField("segment"):
        raise ModelError("M006", f"{what} is stored in segments, which ONNX does not define")
    expected = (size * bits(dtype) + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        beside = external.part(tensor.name, entries_of(tensor), expected)
        return _from_bytes(beside.read(), dtype, shape, size)
    if part is None and not tensor.HasField("raw_data"):
        return _from_field(tensor, dtype, shape, size, what)
    given = part.size_bytes if part is not None else len(tensor.raw_data)
    if given != expected:
        raise _mismatch(what, shape, dtype, f"{given} bytes", f"{expected}")
    apart = part.read() if part is not None else np.frombuffer(tensor.raw_data, np.uint8)
    return _from_bytes(apart, dtype, shape, size)


def to_constant(
    tensor: TensorProto, external: ExternalData, budgets: Budgets, part: FilePart | None
) -> Constant:
    """Returns a tensor as a constant; a large one is read from its file only while it is used.

    Errors: as `to_array`; later M013 if the file has changed.
    """
    beside = tensor.data_location == TensorProto.EXTERNAL
    unusual = tensor.HasField("segment") or tensor.data_type == TensorProto.STRING
    if unusual or not (beside or (part is not None and part.size_bytes >= _LAZY_FROM_BYTES)):
        return Constant(to_array(tensor, external, budgets, part), name=tensor.name)
    what = f"tensor {display(tensor.name)!r}"
    dtype = dtype_of(tensor.data_type, what)
    shape = tuple(tensor.dims)
    size = checked_size(shape, dtype, budgets, what)
    if beside:
        expected = (size * bits(dtype) + 7) // 8
        part = external.part(tensor.name, entries_of(tensor), expected)
        if part.size_bytes < _LAZY_FROM_BYTES:
            return Constant(_from_bytes(part.read(), dtype, shape, size), name=tensor.name)
    assert part is not None
    if part.size_bytes != (size * bits(dtype) + 7) // 8:
        raise _mismatch(what, shape, dtype, f"{part.size_bytes} bytes", f"{size} elements")
    return Constant.lazy(
        TensorType(shape, dtype),
        lambda: _from_bytes(part.read(), dtype, shape, size),
        name=tensor.name,
        token=part.token,
    )


def _from_bytes(
    raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...], size: int
) -> NDArray[Any]:
    if bits(dtype) < 8:
        return _unpacked(raw, dtype, size).reshape(shape)
    if dtype == "bool":  # any nonzero byte is true; NumPy needs exactly 1
        truths: NDArray[Any] = raw != 0
        return truths.reshape(shape)
    native = to_numpy(dtype)
    elements: NDArray[Any] = raw.view(native).reshape(shape)
    if sys.byteorder == "big":  # the file is little-endian
        elements = elements.byteswap()
    return elements


def _unpacked(raw: NDArray[np.uint8], dtype: str, size: int) -> NDArray[Any]:
    """Returns elements of less than a byte, stored without gaps, the first in the lowest bits."""
    width = bits(dtype)
    period = math.lcm(width, 8)
    words, places = _words(raw, period // 8), np.arange(0, period, width, dtype=np.uint8)
    elements = (words[:, None] >> places) & (2**width - 1)
    codes: NDArray[np.uint8] = elements.astype(np.uint8, copy=False).reshape(-1)[:size]
    return codes.view(to_numpy(dtype))


def packed(array: NDArray[Any]) -> bytes:
    """Returns an array as stored in a file: elements of less than a byte without gaps."""
    width = bits(from_numpy(array.dtype))
    flat = np.ascontiguousarray(array).reshape(-1)
    if width >= 8:
        return flat.tobytes()
    period = math.lcm(width, 8)
    codes = _words(flat.view(np.uint8) & np.uint8(2**width - 1), period // width, width)
    raw = codes.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : period // 8]
    return raw.tobytes()[: (array.size * width + 7) // 8]


def _words(parts: NDArray[np.uint8], count: int, width: int = 8) -> NDArray[Any]:
    """Returns numbers stored as `count` parts each, the least significant part first."""
    if count == 1:
        return parts
    filled = np.append(parts, np.zeros(-parts.size % count, np.uint8)).reshape(-1, count)
    shifted = filled.astype(np.uint32) << np.arange(0, count * width, width, dtype=np.uint32)
    words: NDArray[Any] = np.bitwise_or.reduce(shifted, axis=1)
    return words


def _from_field(
    tensor: TensorProto, dtype: str, shape: tuple[int, ...], size: int, what: str
) -> NDArray[Any]:
    stored = getattr(tensor, _FIELDS.get(dtype, "int32_data"))
    dense = bits(dtype) in (2, 4)
    expected = (
        (size * bits(dtype) + 7) // 8 if dense else size * 2 if dtype in ("c64", "c128") else size
    )
    if len(stored) != expected:
        raise _mismatch(what, shape, dtype, f"{len(stored)} elements", f"{expected}")
    if dense:
        return _unpacked(np.array(stored, np.int32).astype(np.uint8), dtype, size).reshape(shape)
    if dtype in NARROW_FLOATS or dtype in STORAGE:  # kept as bit patterns
        codes = np.array(stored, np.int32) & np.int32(2 ** bits(dtype) - 1)
        pattern = codes.astype(f"u{to_numpy(dtype).itemsize}")
        return pattern.view(to_numpy(dtype)).reshape(shape)
    if dtype == "str":
        return _texts(stored, what).reshape(shape)
    source = np.array(stored, dtype=_source_dtype(dtype))
    if dtype in ("c64", "c128"):  # real and imaginary parts alternate
        return source.view(to_numpy(dtype)).reshape(shape)
    return source.astype(to_numpy(dtype), copy=False).reshape(shape)


def _texts(stored: Sequence[bytes], what: str) -> NDArray[Any]:
    try:
        return np.array([text.decode() for text in stored], to_numpy("str"))
    except UnicodeDecodeError as error:
        raise ModelError("M006", f"{what} has a string that is not UTF-8") from error


def _source_dtype(dtype: str) -> type[np.generic]:
    wide: dict[str, type[np.generic]] = {
        "f32": np.float32,
        "f64": np.float64,
        "c64": np.float32,
        "c128": np.float64,
        "i64": np.int64,
        "u64": np.uint64,
        "u32": np.uint64,
    }
    return wide.get(dtype, np.int32)


def _mismatch(
    what: str, shape: tuple[int, ...], dtype: str, found: str, expected: str
) -> ModelError:
    return ModelError(
        "M006",
        f"{what} is {dtype}{list(shape)} but has {found}, expected {expected}",
        hint="the file is damaged: export the model again",
    )


def sparse_to_array(
    sparse: SparseTensorProto, external: ExternalData, budgets: Budgets
) -> NDArray[Any]:
    """Returns a sparse tensor as a dense array.

    Errors: as `to_array`; M006 for indices outside the shape.
    """
    values = to_array(sparse.values, external, budgets)
    indices = to_array(sparse.indices, external, budgets)
    shape = tuple(sparse.dims)
    what = f"sparse tensor {display(sparse.values.name)!r}"
    if indices.dtype != np.int64:
        raise ModelError("M006", f"{what} has indices of {indices.dtype}, expected int64")
    size = checked_size(shape, dtype_of(sparse.values.data_type, what), budgets, what)
    if values.ndim != 1 or indices.shape not in (values.shape, (len(values), len(shape))):
        raise ModelError(
            "M006",
            f"{what} has values of shape {list(values.shape)} at indices of shape "
            f"{list(indices.shape)}, expected [n] at [n] or [n, {len(shape)}]",
        )
    limits = np.array(size if indices.ndim == 1 else shape, np.int64)
    if ((indices < 0) | (indices >= limits)).any():
        raise ModelError("M006", f"{what} has indices outside its shape {list(shape)}")
    places = indices
    if indices.ndim == 2:
        places = np.ravel_multi_index(tuple(indices.T), shape) if shape else indices.sum(1)
    flat = zeros((size,), values.dtype)
    flat[places] = values
    return flat.reshape(shape)
