"""Pools whose windows reach beyond the image, against eager PyTorch: fixed sizes and free ones."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from .torch_calls import agrees, run

AUTO = Dim.AUTO


@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "counts_padding", "divisor"),
    [
        (2, 2, 0, False, None),
        (3, 2, 1, False, None),
        (3, 2, 1, True, None),
        (3, 1, 1, True, 5),
    ],
)
def test_means_of_uneven_windows(is_free, kernel, stride, padding, counts_padding, divisor):
    def pool(x):
        return F.avg_pool2d(x, kernel, stride, padding, True, counts_padding, divisor)

    def drawn(*shape):
        return (torch.randn(*shape),)

    dynamic = [{0: AUTO, 2: AUTO, 3: AUTO}] if is_free else None
    more = [drawn(1, 3, 11, 8), drawn(3, 3, 7, 14)] if is_free else []
    agrees(pool, *drawn(2, 3, 9, 10), dynamic=dynamic, more=more)


def test_a_window_that_leaves_a_rest():
    agrees(lambda x: F.avg_pool2d(x, 2, 3, 1, True, False), torch.randn(2, 3, 9, 10))


@pytest.mark.parametrize("align", [False, True])
def test_nearest_elements_of_reflected_positions(align: bool) -> None:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, "nearest", "reflection", align)

    places = torch.arange(-2, 2.01, 0.25)  # also halfway between elements
    grid = torch.stack(torch.meshgrid(places, places, indexing="xy"), -1)[None]
    agrees(sample, torch.randn(1, 2, 4, 8), grid)


@pytest.mark.parametrize("sizes", [7, (3, 5), (1, 2)])
@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
def test_windows_that_divide_images_of_free_size(pool, sizes):
    free = [{0: AUTO, 2: AUTO, 3: AUTO}]
    more = [(torch.randn(1, 3, 7, 20),), (torch.randn(3, 3, 31, 8),), (torch.randn(1, 3, 4, 5),)]
    agrees(lambda x: pool(x, sizes), torch.randn(2, 3, 12, 14), dynamic=free, more=more)


def test_no_windows():
    agrees(lambda x: F.adaptive_avg_pool2d(x, (0, 2)), torch.randn(2, 3, 4, 5))


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.5, 2])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_images_of_free_size_scaled(mode, scale):
    free = [{0: AUTO, 2: AUTO, 3: AUTO}]
    more = [(torch.randn(1, 3, 17, 9),), (torch.randn(3, 3, 8, 31),)]
    agrees(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode),
        torch.randn(2, 3, 12, 14),
        dynamic=free,
        more=more,
    )


def test_images_whose_size_the_operator_rounds():
    def enlarge(x):
        pairs = (("nearest", 2.3), ("nearest-exact", 2.3), ("bilinear", 1.2))
        return [F.interpolate(x, scale_factor=scale, mode=mode) for mode, scale in pairs]

    more = [(torch.randn(1, 1, 13, 20),), (torch.randn(2, 1, 1, 1),), (torch.randn(2, 1, 3, 4),)]
    agrees(enlarge, torch.randn(2, 1, 7, 9), dynamic=[{0: AUTO, 2: AUTO, 3: AUTO}], more=more)


def test_axes_that_keep_their_size_are_copied():
    def enlarge(x):
        smooth = F.interpolate(x, scale_factor=1.2, mode="bilinear", antialias=True)
        return smooth, F.interpolate(x, scale_factor=1.2, mode="bilinear")

    agrees(enlarge, torch.randn(1, 1, 4, 9))


def test_positions_are_rounded_to_f32():
    def enlarge(x, y):
        return F.interpolate(x, (9, 46), mode="nearest-exact"), F.interpolate(x, y.shape[2:])

    images = torch.randn(1, 1, 5, 20), torch.randn(1, 1, 8, 58)
    free = ({3: AUTO}, {2: AUTO, 3: AUTO})
    agrees(enlarge, *images, dynamic=free, more=[(images[0], torch.randn(1, 1, 7, 46))])


def test_windows_at_drawn_distances():
    def pool(x, samples):
        drawn = {"_random_samples": samples, "return_indices": True}
        return F.fractional_max_pool2d(x, (2, 3), output_size=(5, 1), **drawn)

    x = torch.randn(2, 3, 10, 12)
    more = [(torch.randn(1, 3, 8, 9), torch.rand(1, 3, 2))]
    free = ({0: AUTO, 2: AUTO, 3: AUTO}, {0: AUTO})
    agrees(pool, x, torch.rand(2, 3, 2), dynamic=free, more=more)
    samples = torch.rand(1, 2, 3)
    agrees(
        lambda x: F.fractional_max_pool3d(x, 2, output_ratio=0.5, _random_samples=samples),
        torch.randn(2, 7, 6, 8),
    )


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_is_one_kernel(mode):
    def pad(x):
        return F.pad(x, (2, 1, 0, 3), mode=mode)

    x = torch.randn(1, 2, 5, 6)
    (kernel,) = run(pad, x).kernels
    assert kernel.ops == ("pad",)
    agrees(
        lambda x: (pad(x), F.pad(x, (2, -1, -2, 3), mode=mode), F.pad(x[0], (1, 0), mode=mode)), x
    )
    free = [{0: AUTO, 2: AUTO, 3: AUTO}]
    agrees(pad, torch.randn(2, 3, 9, 10), dynamic=free, more=[(torch.randn(1, 3, 5, 4),)])
    agrees(lambda x: pad(x.to(torch.int64)), x * 9)
    agrees(lambda x: torch.view_as_real(pad(torch.complex(x, -x))), x)


def _pixels(*shape):
    noise = torch.randint(0, 256, shape, dtype=torch.uint8)
    noise[:, 0] = torch.where(noise[:, 0] < 128, 0, 255)  # cubics overshoot
    return noise


@pytest.mark.parametrize("smooth", ["", "antialias", "align_corners"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_rounded_after_each_axis(mode, smooth):
    options = {"mode": mode, **({smooth: True} if smooth else {})}

    def resize(x):
        return [F.interpolate(x, size, **options) for size in ((20, 23), (9, 6), (5, 40))]

    agrees(resize, _pixels(1, 3, 9, 11))
    agrees(resize, _pixels(2, 5, 9, 11))


def test_bytes_of_free_size():
    def resize(x, y):
        sizes = F.interpolate(x, (20, 23), mode="bicubic"), F.interpolate(x, y.shape[2:])
        return *sizes, F.interpolate(x, scale_factor=2.3, mode="bilinear")

    free = [{0: AUTO, 2: AUTO, 3: AUTO}, {2: AUTO, 3: AUTO}]
    more = [(_pixels(1, 3, 30, 9), _pixels(1, 1, 7, 8))]
    agrees(resize, _pixels(2, 3, 12, 14), _pixels(1, 1, 5, 9), dynamic=free, more=more)


def test_axes_of_bytes_that_keep_their_size_are_copied():
    def enlarge(x):
        return [F.interpolate(x, scale_factor=1.2, mode=m) for m in ("bilinear", "bicubic")]

    agrees(enlarge, _pixels(1, 2, 4, 9))
