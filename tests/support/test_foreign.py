"""Tensors of torch as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import clew
from clew.frontends.torch import from_torch
from clew.support.foreign import array_of

NARROW = [
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


@pytest.mark.parametrize("dtype", NARROW)
def test_dtypes_that_numpy_lacks(dtype):
    x = torch.randn(3, 4).to(dtype)
    for given in (x, x.t(), x[:, ::2], x[0, 0], x[:0]):
        np.testing.assert_array_equal(array_of(given).astype("f4"), given.float().numpy())


def test_lazy_views_and_gradients():
    z = torch.randn(3, dtype=torch.complex64)
    np.testing.assert_array_equal(array_of(z.conj()), z.numpy().conj())
    np.testing.assert_array_equal(array_of(z.conj().imag), -z.numpy().imag)
    x = torch.randn(3, requires_grad=True)
    found = array_of(x)
    np.testing.assert_array_equal(found, x.detach().numpy())
    assert found.ctypes.data == x.data_ptr()


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_inputs_of_a_model():
    x = torch.randn(2, 3).bfloat16()
    compiled = clew.compile(from_torch(Doubled(), (x,)), threads=1)
    np.testing.assert_array_equal(compiled(x).astype("f4"), (x * 2).float().numpy())
    with pytest.raises(clew.ClewError, match=r"I043.*meta"):
        compiled(x.to("meta"))
    with pytest.raises(clew.ClewError, match=r"I043.*float32"):
        compiled(x.float())
