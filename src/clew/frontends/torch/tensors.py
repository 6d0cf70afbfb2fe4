"""Tensors of torch as arrays, and arrays as tensors: both share the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import torch

Array: TypeAlias = "np.ndarray[Any, Any]"
# Dtypes that NumPy lacks are handed over as integers of their width.
_BITS: Final[dict[torch.dtype, tuple[torch.dtype, Any, Any]]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16), np.dtype(np.int16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.uint8)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.uint8)),
}


def reader(dtype: torch.dtype) -> Callable[[torch.Tensor], Array]:
    """Returns a function from tensors of a dtype to arrays on their memory."""
    bits = _BITS.get(dtype)
    if bits is None:
        return _plain
    return lambda tensor: _plain(tensor.view(bits[0])).view(bits[1])


def _plain(tensor: torch.Tensor) -> Array:
    try:
        found: Array = tensor.numpy()
    except RuntimeError:  # it requires gradients, or is a lazy conjugate or negative
        found = tensor.detach().resolve_conj().resolve_neg().numpy()
    return found


def writer(dtype: torch.dtype) -> Callable[[Array], torch.Tensor]:
    """Returns a function from arrays to tensors of a dtype on their memory."""
    bits = _BITS.get(dtype)
    if bits is None:
        return _from_array
    integers = bits[2]
    return lambda array: _from_array(array.view(integers)).view(dtype)


def _from_array(array: Array) -> torch.Tensor:
    """Returns an array as a contiguous tensor; a read-only one, such as a constant of the model, is
    copied. A tensor without elements owns its memory, so that `out=` can resize it.
    """
    is_ready = array.flags.writeable and array.flags.c_contiguous
    found: torch.Tensor = torch.from_numpy(array if is_ready else array.copy("C"))
    return found if array.size else torch.empty_like(found)


def memory_of(tensor: torch.Tensor) -> int:
    """Returns the identity of a tensor's memory, which traced tensors have as well."""
    try:
        found: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor
        return id(tensor)
    return found
