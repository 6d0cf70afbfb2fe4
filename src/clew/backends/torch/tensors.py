"""Arrays as tensors of torch, and tensors as arrays: both share the memory."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import torch

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES: Final[dict[str, torch.dtype]] = {
    "bool": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
"""The dtypes that torch computes in, by clew's names. It only stores unsigned integers of more than
8 bits.
"""
_BF16: Final = np.dtype(ml_dtypes.bfloat16)


class _Writable:
    """An array that NumPy sees as writable. Torch warns of others, even if nothing writes."""

    def __init__(self, array: Array) -> None:
        self._array = array  # kept alive by the arrays made of this object
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def tensor_of(array: Array) -> torch.Tensor:
    """Returns an array as a tensor on its memory, which must not be written. Arrays with negative
    strides, which torch lacks, are copied.
    """
    if array.dtype == _BF16:
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    try:
        found: torch.Tensor = torch.from_numpy(array)
    except ValueError:
        found = torch.from_numpy(np.array(array, order="C"))
    return found


def array_of(tensor: torch.Tensor) -> Array:
    """Returns a tensor as an array on its memory."""
    if tensor.dtype == torch.bfloat16:
        return array_of(tensor.view(torch.int16)).view(_BF16)
    found: Array = tensor.numpy()
    return found
