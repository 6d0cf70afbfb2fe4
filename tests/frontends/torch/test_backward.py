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


def test_resizing():
    def derivatives(one, two, three):
        sizes = [2, 3, 5, 6, 4]
        return (
            aten.upsample_nearest1d_backward(one, [8], sizes[:3]),
            aten.upsample_nearest2d_backward(two, [8, 11], sizes[:4], 1.7, 1.9),
            aten.upsample_nearest3d_backward(three, [8, 11, 7], sizes),
            aten._upsample_nearest_exact2d_backward(two, [8, 11], sizes[:4]),
            aten.upsample_linear1d_backward(one, [8], sizes[:3], False),
            aten.upsample_bilinear2d_backward(two, [8, 11], sizes[:4], False, 1.7, 1.9),
            aten.upsample_bilinear2d_backward(two, [8, 11], sizes[:4], True),
            aten.upsample_bicubic2d_backward(two, [8, 11], sizes[:4], False),
        )

    agrees(derivatives, *(torch.randn(2, 3, *[8, 11, 7][:n]) for n in (1, 2, 3)))


def test_pools_and_padding():
    def derivatives(x, g, padded):
        _, places = torch.nn.functional.max_pool3d(x, 2, return_indices=True)
        ones = [1] * 3
        return (
            aten._adaptive_avg_pool3d_backward(g, x),
            aten.max_pool3d_with_indices_backward(
                g, x, [2] * 3, [2] * 3, [0] * 3, ones, False, places
            ),
            aten.replication_pad3d_backward(padded, x, [1, 2] * 3),
        )

    x = torch.randn(1, 2, 4, 6, 4)
    agrees(derivatives, x, torch.randn(1, 2, 2, 3, 2), torch.randn(1, 2, 7, 9, 7))


def test_activations_and_attention():
    def derivatives(g, x, q, k, v):
        found = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return (
            aten.rrelu_with_noise_backward(g, x, x.abs(), 0.1, 0.3, True, False),
            aten.rrelu_with_noise_backward(g, x, x.abs(), 0.1, 0.3, False, False),
            *found,
            *aten._scaled_dot_product_flash_attention_for_cpu_backward(
                q, q, k, v, *found, 0.0, True
            ),
        )

    heads = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    agrees(derivatives, torch.randn(3, 4), torch.randn(3, 4), *heads)
