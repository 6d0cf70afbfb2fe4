"""Values of other libraries as arrays on the same memory."""

from __future__ import annotations

import sys
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.arrays import number_dtype

Array: TypeAlias = "np.ndarray[Any, Any]"
# By torch's name, the dtypes that NumPy lacks, and the integers in whose place they are read.
_BITS: Final = {
    "torch.bfloat16": ("int16", "bfloat16"),
    "torch.float8_e4m3fn": ("uint8", "float8_e4m3fn"),
    "torch.float8_e4m3fnuz": ("uint8", "float8_e4m3fnuz"),
    "torch.float8_e5m2": ("uint8", "float8_e5m2"),
    "torch.float8_e5m2fnuz": ("uint8", "float8_e5m2fnuz"),
}


def array_of(given: Any) -> Array:
    """Returns an array, a list, a number, or another library's tensor as an array.

    Errors: any of the other library's, for tensors that are not in this process's memory.
    """
    if isinstance(given, np.ndarray) or not hasattr(given, "__dlpack__"):
        return np.asarray(given)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        return _of_torch(given, torch)
    return np.from_dlpack(given)


def _of_torch(tensor: Any, torch: Any) -> Array:
    """Returns the elements of a tensor of torch. DLPack would ignore that they are to be negated,
    and lacks tensors that are part of a gradient's graph.
    """
    found: Array
    try:
        found = tensor.numpy()
        return found
    except (RuntimeError, TypeError):  # one of these, or a dtype that NumPy lacks
        pass
    bits = _BITS.get(str(tensor.dtype))
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if bits is None:
        found = tensor.numpy()
        return found
    found = tensor.view(getattr(torch, bits[0])).numpy()
    return found.view(number_dtype(bits[1]))
