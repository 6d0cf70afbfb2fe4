"""Rare operators, and rare forms of common ones, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from clew.frontends.building import call
from clew.frontends.torch import registry
from clew.support.errors import UnsupportedError

from .torch_calls import agrees, run

AUTO = Dim.AUTO
aten = torch.ops.aten


def free(rank):
    return dict.fromkeys(range(rank), AUTO)


def codes(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def test_convolutions():
    def calls(x, weight, rows, window, bias):
        plain = [2, 1], [1, 0], [1, 1], False, [0, 0], 1
        return (
            aten._convolution(x, weight, None, *plain, False, False, False, False),
            torch.conv_tbc(rows, window, bias, 1),
        )

    tensors = torch.randn(1, 3, 7, 8), torch.randn(3, 3, 2, 2), torch.randn(7, 2, 3)
    agrees(calls, *tensors, torch.randn(3, 3, 4), torch.randn(4))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_groups_of_free_number(is_transposed):
    def calls(x, weight):
        images, filters = x.reshape(1, -1, 8, 7), weight.reshape(-1, *weight.shape[2:])
        convolve = F.conv_transpose2d if is_transposed else F.conv2d
        return convolve(images, filters, None, 2, 1, groups=x.shape[0])

    def drawn(groups):
        return torch.randn(groups, 4, 8, 7), torch.randn(groups, 4, 4, 3, 3)

    agrees(calls, *drawn(2), dynamic=({0: AUTO}, {0: AUTO}), more=[drawn(3), drawn(1)])


def test_groups_of_free_channels():
    def drawn(inner):
        return torch.randn(2, 2 * inner, 9), torch.randn(2 * inner, inner, 3)

    dynamic = ({1: AUTO, 2: AUTO}, {0: AUTO, 1: AUTO})
    agrees(lambda x, w: F.conv1d(x, w, padding=1, groups=2), *drawn(3), dynamic=dynamic,
           more=[drawn(2), drawn(1)])  # fmt: skip


def test_products_of_narrow_numbers():
    f8 = torch.float8_e4m3fn

    def calls(a, b, scale):
        wide = torch._scaled_mm(a.float().to(f8), b.float().to(f8), scale, scale,
                                out_dtype=torch.float32)  # fmt: skip
        return torch._int_mm(a, b), wide

    agrees(calls, codes(32, 304), codes(24, 304).t(), torch.tensor(0.5))


def test_quantization_in_training():
    def calls(x, scales, points):
        return (
            torch.fake_quantize_per_tensor_affine(x, scales[0], points[0], 0, 255),
            torch.fake_quantize_per_channel_affine(x, scales, points, 1, -8, 7),
        )

    points = torch.randint(0, 3, (6,), dtype=torch.int32)
    agrees(calls, torch.randn(5, 6), torch.rand(6) + 0.1, points)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_further_results_of_bags(mode):
    def calls(table, index, offsets):
        return (
            *aten._embedding_bag(table, index, offsets, False, mode),
            *aten._embedding_bag(table, index, offsets, False, mode, padding_idx=3),
        )

    index, offsets = torch.tensor([1, 3, 3, 9, 2, 0]), torch.tensor([0, 2, 2, 5])
    agrees(calls, torch.randn(10, 4), index, offsets)


def test_writes_by_index():
    def calls(x, rows, values):
        return (
            aten._index_put_impl(x, [rows], values, True, False),
            aten._index_put_impl(x, [None, rows], values.t(), False, False),
        )

    agrees(calls, torch.zeros(4, 4), torch.tensor([1, 3]), torch.randn(2, 4))


def test_means_of_integers():
    def calls(x):
        return (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool3d(x.unsqueeze(0), 2),
            F.avg_pool1d(x[0], 3, 2, 1),
        )

    agrees(calls, torch.randint(-50, 50, (1, 2, 6, 9)))


def test_maxima_of_free_images():
    def calls(x):
        pooled = F.max_pool3d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
        return (*pooled, *F.adaptive_max_pool3d(x, (3, 2, 2), return_indices=True))

    more = [(torch.randn(1, 1, 4, 5, 3),)]
    agrees(calls, torch.randn(2, 3, 6, 8, 9), dynamic=(free(5),), more=more)


def test_windows_of_free_number():
    def calls(x, like):
        return F.adaptive_avg_pool2d(x, like.shape)

    more = [(torch.randn(1, 1, 4, 5), torch.randn(2, 2))]
    agrees(calls, torch.randn(2, 3, 8, 7), torch.randn(4, 3), dynamic=(free(4), free(2)),
           more=more)  # fmt: skip


def test_heads_of_free_size():
    def calls(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    more = [(torch.randn(1, 2, 3, 4),) * 3, (torch.randn(1, 1, 1, 1),) * 3]
    qkv = [torch.randn(2, 3, 5, 8) for _ in range(3)]
    agrees(calls, *qkv, dynamic=(free(4),) * 3, more=more)


def test_complex_and_real_numbers_together():
    z = torch.randn(3, 2, dtype=torch.complex64)

    def calls(z, x):
        return torch.cat([z, x], 1), torch.stack([x, z]), torch.cat([x[0, :0], z])

    agrees(calls, z, torch.randn(3, 2))


def test_windows_of_a_scalar():
    agrees(lambda x: (x.unfold(0, 1, 1), x.unfold(0, 0, 1)), torch.tensor(3.0))


def test_scales_that_torch_ignores():
    def calls(x):
        return (
            aten.upsample_nearest2d(x, [6, 3], 2.3, 1.2),
            aten.upsample_nearest2d(x, [7, 4], 2.3, None),
            aten.upsample_nearest1d(x[0], [6], 2.3),
        )

    agrees(calls, torch.randn(1, 1, 3, 3))
    more = [(torch.randn(1, 1, 4, 6),), (torch.randn(2, 1, 7, 5),)]
    agrees(lambda x: aten.upsample_nearest2d(x, [8, 10], 2.3, 1.7), torch.randn(1, 1, 3, 4),
           dynamic=({0: AUTO, 2: AUTO, 3: AUTO},), more=more)  # fmt: skip


def test_a_type_that_an_operator_lacks_is_a_form_without_support(monkeypatch):
    def convert(layer):
        return call("nn.avg_pool2d", layer.tensor(), kernel=(2, 2))

    monkeypatch.setitem(registry._CONVERTERS, "abs", {1: registry._refusing(convert)})
    with pytest.raises(UnsupportedError, match=r"U063. abs.default: shape") as caught:
        run(lambda x: x.abs(), torch.randn(3))
    assert caught.value.layer == "abs"
    assert "self.function" in caught.value.position
