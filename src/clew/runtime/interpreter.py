"""What native code may read of this interpreter's objects, and the functions that it may call."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np

from clew.codegen.driver import call as native

_NUMPY_ABI: Final = 0x02000000


def python_functions() -> dict[str, int] | None:
    """Returns the addresses of the functions of CPython and NumPy that a native call uses; None if
    it cannot be used.
    """
    if sys.implementation.name != "cpython" or "t" in sys.abiflags or sys.maxsize < 1 << 32:
        return None  # without a GIL, contexts could be taken by two calls at once
    if not _has_layout():
        return None
    numpy = _numpy_functions()
    if numpy is None:
        return None
    python = {name: _address(getattr(ctypes.pythonapi, name)) for name in native.IMPORTS}
    return python | numpy


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _numpy_functions() -> dict[str, int] | None:
    """Returns the addresses of NumPy's functions; None for another binary interface."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    capsule = getattr(np._core._multiarray_umath, "_ARRAY_API", None)  # type: ignore[attr-defined]
    if capsule is None:
        return None
    at = ctypes.cast(pointer, prototype)(capsule, None)
    last = max(native.NUMPY_IMPORTS.values())
    table = (ctypes.c_void_p * (last + 1)).from_address(at)
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[0] or 0)()  # PyArray_GetNDArrayCVersion
    if version != _NUMPY_ABI:
        return None
    return {name: table[place] or 0 for name, place in native.NUMPY_IMPORTS.items()}


def _has_layout() -> bool:
    """Whether the heads of objects and the fields of arrays are where native code reads them."""
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    odd = np.zeros(9, np.uint8)[1:].view(np.float32)
    swapped = np.zeros(2, np.dtype(np.int16).newbyteorder())
    arrays: list[np.ndarray[Any, Any]] = [
        whole,
        whole[1:],
        whole.T,
        whole[:, ::2],
        odd,
        swapped,
        np.zeros(()),
        np.zeros((0, 3)),
    ]
    fits = [_is_laid_out(array) for array in arrays]
    return all(fits) and _word(id((1, 2)) + native.OBJECT_TYPE) == id(tuple)


def _is_laid_out(array: np.ndarray[Any, Any]) -> bool:
    at = id(array)
    flags = ctypes.c_int32.from_address(at + native.ARRAY_FLAGS).value
    ndim = ctypes.c_int32.from_address(at + native.ARRAY_NDIM).value
    expected = (
        (native.CONTIGUOUS, array.flags.c_contiguous),
        (native.ALIGNED, array.flags.aligned),
        (native.WRITEABLE, array.flags.writeable),
    )
    if (
        _word(at + native.OBJECT_TYPE) != id(np.ndarray)
        or _word(at + native.ARRAY_DATA) != array.ctypes.data
        or ndim != array.ndim
        or _word(at + native.ARRAY_BASE) != (0 if array.base is None else id(array.base))
        or _word(at + native.ARRAY_DTYPE) != id(array.dtype)
        or any(bool(flags & bit) != is_set for bit, is_set in expected)
    ):
        return False
    dims = _word(at + native.ARRAY_DIMS)
    return all(_word(dims + 8 * axis) == size for axis, size in enumerate(array.shape))


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
