"""Elements of less than a byte in files: packed as ONNX packs them, one a byte in memory."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from clew.frontends.onnx.file.external import ExternalData
from clew.frontends.onnx.file.tensors import dtype_of, number_of, packed, to_array
from clew.ir.types import STORAGE, TensorType, bits, from_numpy, memory_bytes, to_numpy
from clew.support.budgets import Budgets


def _array(dtype: str, size: int) -> np.ndarray:
    codes = np.random.default_rng(0).integers(0, 1 << bits(dtype), size).astype(np.uint8)
    return codes.view(to_numpy(dtype))


def _read(tensor: TensorProto) -> np.ndarray:
    return to_array(tensor, ExternalData(None), Budgets())


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 33])
def test_raw_bytes_as_onnx_writes_them(dtype: str, size: int) -> None:
    array = _array(dtype, size)
    tensor = numpy_helper.from_array(array, "t")
    read = _read(tensor)
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read.view(np.uint8), array.view(np.uint8))
    assert packed(array) == tensor.raw_data


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_numbers_in_int32_data(dtype: str, size: int) -> None:
    array = _array(dtype, size)
    codes = array.view(np.uint8)
    if bits(dtype) in (2, 4):
        codes = np.frombuffer(packed(array), np.uint8)
    tensor = TensorProto(data_type=number_of(dtype), dims=[size], int32_data=codes.tolist())
    np.testing.assert_array_equal(_read(tensor).view(np.uint8), array.view(np.uint8))
    np.testing.assert_array_equal(
        numpy_helper.to_array(tensor).view(np.uint8), array.view(np.uint8)
    )


def test_every_element_type_of_onnx_but_those_without_numbers() -> None:
    for name, number in TensorProto.DataType.items():
        if name in ("UNDEFINED", "STRING", "COMPLEX64", "COMPLEX128"):
            continue
        dtype = dtype_of(number, "x")
        assert to_numpy(dtype) == helper.tensor_dtype_to_np_dtype(number)


@pytest.mark.parametrize("dtype", STORAGE)
def test_memory_has_a_byte_for_each_element(dtype: str) -> None:
    type_ = TensorType((3, 5), dtype)
    assert memory_bytes(dtype) == 1 == to_numpy(dtype).itemsize
    assert type_.size_bytes == np.zeros((3, 5), to_numpy(dtype)).nbytes
    assert from_numpy(to_numpy(dtype)) == dtype
