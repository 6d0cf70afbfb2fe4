"""Derivatives of core ATen against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from .torch_calls import agrees

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "ceil", "include", "divisor"),
    [
        ((7, 6), [3, 2], [2, 2], [1, 0], False, True, None),
        ((7, 6), [3, 3], [2, 2], [1, 1], True, False, None),
        ((8, 5), [2, 3], [3, 1], [0, 1], True, True, 5),
    ],
)
def test_avg_pool(size, kernel, stride, padding, ceil, include, divisor):
    x = torch.randn(2, 3, *size)
    args = (kernel, stride, padding, ceil, include, divisor)
    y = aten.avg_pool2d(x, *args)
    agrees(lambda g, x: aten.avg_pool2d_backward(g, x, *args), torch.randn_like(y), x)


def test_adaptive_avg_pool():
    x, g = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 3, 4)
    agrees(aten._adaptive_avg_pool2d_backward, g, x)


@pytest.mark.parametrize(("groups", "stride", "padding", "dilation"), [(1, 2, 1, 1), (2, 1, 2, 2)])
def test_convolution(groups, stride, padding, dilation):
    x, w = torch.randn(3, 4, 9, 8), torch.randn(6, 4 // groups, 3, 2)
    rest = ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups)
    y = aten.convolution(x, w, None, *rest)

    def call(g, x, w):
        return aten.convolution_backward(g, x, w, [6], *rest, [True, True, True])

    agrees(call, torch.randn_like(y), x, w)


def test_norms():
    x, g, w = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)

    def layer_norm(g, x, w):
        _, mean, spread = aten.native_layer_norm(x, [6], w, w, 1e-5)
        return aten.native_layer_norm_backward(g, x, [6], mean, spread, w, w, [True, True, True])

    agrees(layer_norm, g, x, w)
    rows = torch.tensor([1, 3, 1, 0])
    agrees(lambda g, n: aten.embedding_dense_backward(g, n, 5, -1, False), g, rows)
