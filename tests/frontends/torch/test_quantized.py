"""Programs of torch's quantizers: integers with scales and zero points."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from modules_run import compiled_from
from torch import nn
from torch.export import Dim
from torch_calls import agrees

import clew
import clew.torch

ops: Final = torch.ops.quantized_decomposed
U8, I8 = (0, 255, torch.uint8), (-128, 127, torch.int8)
_ROUNDED: Final = 2e-2
"""The largest part of a result that differs: numbers between two integers are rounded to either."""


def grid(x: torch.Tensor, scale: float, zero: int, end: Any = U8) -> torch.Tensor:
    """Returns a tensor after a round trip through integers."""
    codes = ops.quantize_per_tensor(x, scale, zero, *end)
    return ops.dequantize_per_tensor(codes, scale, zero, *end)


class Weight(nn.Module):
    """A weight of 8 bits with a scale for each row."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randint(-128, 128, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(shape[0]) / 500 + 1e-3)
        self.register_buffer("points", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(shape[0]))

    def forward(self) -> torch.Tensor:
        return ops.dequantize_per_channel(self.codes, self.scales, self.points, 0, *I8)


class Images(nn.Module):
    """Two convolutions with a residual connection, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Weight(16, 3, 3, 3), Weight(16, 16, 3, 3)
        self.last = Weight(10, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = grid(x, 0.03, 120)
        x = nn.functional.conv2d(x, self.first(), self.first.bias, padding=1).relu()
        x = grid(x, 0.02, 0)
        y = nn.functional.conv2d(x, self.second(), self.second.bias, padding=1)
        y = nn.functional.max_pool2d((y + x).relu(), 2).mean((2, 3))
        return nn.functional.linear(grid(y, 0.02, 3), self.last(), self.last.bias)


class Dynamic(nn.Module):
    """Two linear layers whose data are quantized in the range that they have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Weight(64, 32), Weight(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            scale, zero = ops.choose_qparams.tensor(x, 0, 255, 1e-6, torch.uint8)
            codes = ops.quantize_per_tensor.tensor(x, scale, zero, *U8)
            x = ops.dequantize_per_tensor.tensor(codes, scale, zero, *U8)
            x = nn.functional.linear(x, layer(), layer.bias).relu()
        return x


def near(found: Any, wanted: torch.Tensor) -> None:
    """Asserts that results are equal, up to sums that are rounded to another integer."""
    torch.testing.assert_close(
        torch.as_tensor(np.array(found)), wanted, rtol=0, atol=_ROUNDED * wanted.abs().max().item()
    )


def products(model: Any) -> list[Any]:
    """Returns the dtypes of the operands of convolutions and matrix products."""
    kernels = [k for k in model.kernels if k.name.startswith(("conv2d", "dense"))]
    return [tuple(a.tensor.dtype for a in k.call.args[:2]) for k in kernels]


@pytest.mark.parametrize(("module", "shape"), [(Images, (2, 3, 8, 8)), (Dynamic, (5, 32))])
def test_products_are_of_integers(module: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = module().eval(), torch.randn(shape)
    torch.export.save(torch.export.export(network, (x,)), tmp_path / "network.pt2")
    model = clew.compile(tmp_path / "network.pt2", threads=1)
    near(model(x.numpy()), network(x).detach())
    assert len(products(model)) == len([w for w in network.modules() if isinstance(w, Weight)])
    for operands in products(model):
        assert set(operands) <= {"u8", "i8", "i16"}
    assert "first" in model.trace.layers or "first/dequantize_per_channel" in model.trace.layers


def test_free_sizes() -> None:
    torch.manual_seed(0)
    network = Dynamic().eval()
    model = compiled_from(network, torch.randn(5, 32), dynamic=({0: Dim("n")},))
    for n in (1, 9):
        x = torch.randn(n, 32)
        near(model(x.numpy()), network(x).detach())


def test_calls_of_torch_compile() -> None:
    torch.manual_seed(0)
    network, x = Dynamic().eval(), torch.randn(5, 32)
    with torch.no_grad():
        found = torch.compile(network, backend="clew", options={"threads": 1})(x)
        near(found.numpy(), network(x))
    assert not clew.torch.last().left


X: Final = torch.tensor([[-9.0, -1.3, 0.2, 0.8], [0.1, 5.0, 7.9, 3.3], [0.0, 0.0, 0.0, 0.0]])
SCALES, POINTS = torch.tensor([0.1, 0.02, 0.3]), torch.tensor([3, 0, -7])


def test_a_range_smaller_than_that_of_the_dtype() -> None:
    agrees(lambda x: ops.quantize_per_tensor(x, 0.05, 3, -7, 7, torch.int8), X)
    points = POINTS.abs()
    agrees(lambda x: ops.quantize_per_channel(x, SCALES, points, 0, 0, 127, torch.uint8), X)


def test_channels_and_groups() -> None:
    def of_channels(x: torch.Tensor) -> Any:
        codes = ops.quantize_per_channel(x.T, SCALES, POINTS, -1, *I8)
        return codes, ops.dequantize_per_channel(codes, SCALES, POINTS, -1, *I8)

    def of_groups(x: torch.Tensor) -> Any:
        scales, points = SCALES[:, None] * torch.ones(2), torch.tensor([[1, 2], [3, 4], [-5, 6]])
        codes = ops.quantize_per_channel_group(x, scales, points, -100, 100, torch.int8, 2)
        back = ops.dequantize_per_channel_group(codes, scales, points, *I8, 2, torch.float32)
        return codes, back

    agrees(of_channels, X)
    agrees(of_groups, X)


def test_chosen_parameters() -> None:
    def of_tensors(x: torch.Tensor) -> Any:
        plain = ops.choose_qparams.tensor(x, -8, 7, 1e-5, torch.int8)
        return *plain, *ops.choose_qparams_symmetric.tensor(x, *U8[:2], 1e-5, torch.uint8)

    def of_tokens(x: torch.Tensor) -> Any:
        scale, zero = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
        codes = ops.quantize_per_token(x, scale, zero, *I8)
        back = ops.dequantize_per_token(codes, scale, zero, *I8, torch.float32)
        # Their dtypes in eager are others than those that torch exports.
        symmetric = [p.float() for p in ops.choose_qparams_per_token(x, torch.int8)]
        return scale, zero, codes, back, *symmetric

    agrees(of_tensors, X)
    agrees(of_tokens, X)


def test_integers_of_many_bits() -> None:
    def calls(x: torch.Tensor) -> Any:
        codes = ops.quantize_per_tensor(x, 0.01, 7, -100, 100, torch.int32)
        wide = ops.quantize_per_tensor(x, 0.01, 0, -(2**31), 2**31 - 1, torch.int32)
        return codes, wide, ops.dequantize_per_tensor(wide, 0.01, 0, -99, 99, torch.int32)

    agrees(calls, X)


def test_points_outside_of_the_integers() -> None:
    with pytest.raises(clew.ClewError, match=r"U063.*zero point of -7 for u8"):
        agrees(lambda x: ops.quantize_per_channel(x, SCALES, POINTS, 0, *U8), X)
