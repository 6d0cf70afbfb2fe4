"""Dtypes and tensors of torch as those of the graph IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from clew.support.errors import UnsupportedError
from clew.support.shared_arrays import in_use, shared

_NAMES: Final[Mapping[torch.dtype, str]] = {
    torch.bool: "bool",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
}
# Dtypes that NumPy lacks: torch hands their bits over as integers.
_AS_BITS: Final[Mapping[torch.dtype, tuple[torch.dtype, Any]]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
}

# Complex numbers inside a program are pairs of real ones.
_COMPLEX: Final = {torch.complex64: "c64", torch.complex128: "c128"}
PARTS: Final[Mapping[torch.dtype, torch.dtype]] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def dtype_of(dtype: torch.dtype, what: str = "a tensor is of") -> str:
    """Returns clew's name of a dtype of torch.

    Errors: U061 for a dtype that clew lacks.
    """
    name = _NAMES.get(dtype)
    if name is None:
        other = "torch.view_as_real(x)" if dtype.is_complex else "another dtype"
        hint = f"compute with {other}"
        raise UnsupportedError("U061", f"{what} {dtype}, which is not supported", hint=hint)
    return name


def given_dtype(dtype: torch.dtype, what: str = "a tensor is of") -> str:
    """Returns clew's name of the dtype of an input, which may be complex.

    Errors: U061 for a dtype that clew lacks.
    """
    return _COMPLEX.get(dtype) or dtype_of(dtype, what)


def check_tensor(tensor: torch.Tensor, what: str) -> None:
    """Checks that a tensor, which may be fake, is of a kind that clew has: dense, on the CPU.

    Errors: U061 (dtypes), U062 (another layout or device).
    """
    check_layout(tensor, what)
    check_device(tensor, what)
    given_dtype(tensor.dtype, f"{what} is of")


def check_layout(tensor: torch.Tensor, what: str) -> None:
    """Checks that a tensor is dense and not quantized. Errors: U062."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise UnsupportedError(
            "U062", f"{what} is a {kind} tensor", hint="convert it: x.to_dense(), x.dequantize()"
        )


def check_device(tensor: torch.Tensor, what: str) -> None:
    """Checks that a tensor is on the CPU. Errors: U062."""
    if tensor.device.type != "cpu":
        hint = "load the weights first" if tensor.device.type == "meta" else "model.cpu()"
        raise UnsupportedError("U062", f"{what} is on the device {tensor.device}", hint=hint)


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a copy of a tensor's elements, in rows; complex ones as pairs."""
    return np.array(_elements(tensor), order="C")


def frozen(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns what `to_numpy` does, read-only. Equal weights of all models are one array."""
    elements = _elements(tensor)
    found = in_use(elements)
    return shared(np.array(elements, order="C")) if found is None else found


def _elements(tensor: torch.Tensor) -> NDArray[Any]:
    """Returns a tensor's elements, on its memory where possible; complex ones as pairs."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.dtype in PARTS else tensor
    bits = _AS_BITS.get(tensor.dtype)
    found: NDArray[Any]
    if bits is None:
        found = tensor.numpy()
        return found
    found = tensor.view(bits[0]).numpy().view(bits[1])
    return found
