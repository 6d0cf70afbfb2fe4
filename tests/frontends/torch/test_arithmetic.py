"""Arithmetic whose rules differ between frameworks, against eager PyTorch."""

from __future__ import annotations

import math

import pytest
import torch
from torch.export import Dim

from .torch_calls import agrees, run


def test_divisions_of_integers():
    def divide(a, b):
        return (
            a // b,
            torch.div(a, b, rounding_mode="trunc"),
            torch.div(a, b, rounding_mode="floor"),
            a / b,
            a % b,
            torch.fmod(a, b),
            a // 3,
            7 // b,
            a % -4,
        )

    a = torch.tensor([-7, 7, -8, 8, -1, 0, 2**40])
    b = torch.tensor([2, -2, 3, -3, 5, 1, -7])
    agrees(divide, a, b, more=[(b * 11, a.abs() + 1)])
    agrees(divide, a.float() / 3, b.float(), more=[(b.float(), torch.full((7,), 0.1))])


def test_nan_and_infinity():
    def apply(x, y):
        return torch.atan2(x, y), torch.atan2(y, x), x.sign(), x.sgn(), torch.copysign(x, y)

    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.0])
    pairs = torch.cartesian_prod(values, values)
    agrees(apply, pairs[:, 0], pairs[:, 1])
    agrees(apply, pairs[:, 0].double(), pairs[:, 1].double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floor_divisions_of_floats(dtype):
    def divide(a, b):
        return a // b, 1 / torch.div(a, b, rounding_mode="floor")

    most = torch.finfo(dtype).max
    values = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.0, 9.5, -88.6875, most, -most]
    pairs = torch.cartesian_prod(*[torch.tensor(values, dtype=dtype)] * 2)
    agrees(divide, pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sign_of_negative_zero(dtype):
    x = torch.tensor([-0.0, 0.0, math.nan, math.inf, -math.inf, 3.0], dtype=dtype)
    agrees(lambda x: (x.sign(), 1 / x.sign(), 1 / torch.sgn(x)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_functions_beside_zero(dtype):
    x = torch.tensor([-1e-39, -6e-8, -1e-20, 6e-8, -1e-3, -0.75, -2.5, -7.3, 0.0, -0.0, -3.0])
    agrees(lambda x: (x.lgamma(), x.digamma()), x.to(dtype))


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 24), (torch.float64, 53)])
def test_inverse_error_function(dtype, digits):
    small = 10.0 ** torch.linspace(-37, 0, 500, dtype=torch.float64)
    x = torch.cat([torch.linspace(-1, 1, 999, dtype=torch.float64), small, 1 - small, small - 1])
    x = torch.cat([x.to(dtype), torch.tensor([0.0, -0.0, 1.5, -2.0, math.nan, math.inf])])
    got = torch.from_numpy(run(torch.erfinv, x).run({"args_0": x.numpy()}).popitem()[1])
    torch.testing.assert_close(
        got.double(), torch.erfinv(x.double()), rtol=2.0 ** (2 - digits), atol=0, equal_nan=True
    )
    assert torch.equal(got.signbit()[~got.isnan()], x.signbit()[~got.isnan()])


def test_signs_of_zeros():
    def apply(x):
        zeros = torch.zeros(3)
        values = (x + 0.0, 0.0 + x, x + zeros, x - 0.0, x - (-0.0), x * 1.0, 0.0 - x, x**0.5)
        sums = (x[None].sum(0), x[None].mean(0), x[None].amax(0), x.cumsum(0))
        others = (torch.relu(x), torch.clamp(x, 0.0, 6.0), torch.remainder(x, -3.0), x.add(0))
        return tuple(1 / v for v in (*values, *sums, *others))

    agrees(apply, torch.tensor([-0.0, 0.0, -0.0]))
    agrees(apply, torch.tensor([-0.0, 0.0, -0.0]), more=[(torch.tensor([0.0, -0.0, -0.0]),)])


def test_roots_as_powers():
    x = torch.tensor([-0.0, 0.0, -math.inf, math.inf, 4.0])
    agrees(lambda *x: [1 / v**p for v in x for p in (0.5, -0.5)], x, x.half(), x.bfloat16())


def test_mantissas_and_exponents():
    x = torch.tensor([0.0, -0.0, 1.0, -6.5, 1e-45, -1e-39, 3e38, math.inf, -math.inf, math.nan])
    numbers = x, x.double() * 1e-290, x.half() * 6e-8, x.bfloat16()
    agrees(lambda *x: [part for v in x for part in v.frexp()], *numbers)


def test_hardswish_of_f64_is_exact():
    agrees(torch.nn.functional.hardswish, torch.linspace(-4, 4, 33, dtype=torch.float64))


def test_promotion():
    def promote(i, f, h, t):
        return (
            i + 1.5,
            t + t,
            t * i,
            t * t,
            h + f,
            h * 2.5,
            i * h,
            torch.where(t, i, 0.5),
            i.float() > f,
            t.sum(),
            i.sum(dtype=torch.int32),
            h.sum(),
            torch.maximum(t, ~t),
            i**2,
            i.int() ** 3,
            f.to(torch.int64),
            t.cumsum(0),
        )

    batch = Dim("batch", min=2, max=64)

    def values(n):
        f = torch.randn(n, 3) * 4
        return f.int().long(), f, f.bfloat16(), f > 0

    free = [{0: batch}] * 4
    agrees(promote, *values(3), dynamic=free, more=[values(2), values(5)])


def test_special_functions():
    def special(x, y):
        return (
            torch.erfc(x),
            torch.erfinv(y),
            torch.lgamma(x),
            torch.digamma(x),
            torch.hypot(x, y),
            torch.copysign(x, y),
            torch.nextafter(x, y),
            torch.fmax(x, y),
            torch.logcumsumexp(x, 0),
            torch.expm1(y),
            torch.log1p(y),
            torch.atan2(x, y),
        )

    x = torch.tensor([-30.5, -3.25, -1e-3, 0.3, 1.0, 2.0, 2.6, 9.5, 13.0, 1e3, math.nan])
    y = torch.tensor([-0.999, -0.5, -0.0, 0.0, 1e-6, 0.5, 0.99, math.nan, 1.0, -1.0, 0.1])
    x, y = x.double(), y.double()
    agrees(special, x, y, more=[(-x / 7, y / 2)])


def test_operands_that_broadcast():
    def combine(x, mask, source, scalar, slope):
        return x.masked_scatter(mask, source), torch.nn.functional.prelu(scalar, slope)

    mask = torch.tensor([[True, False, True], [False, True, True]])
    x, source = torch.tensor([1.0, 2.0, 3.0]), torch.arange(6.0) - 2
    slope = torch.tensor([0.25])
    agrees(
        combine, x, mask, source, torch.tensor(-3.0), slope,
        more=[(x * 2, ~mask, source + 1, torch.tensor(2.0), slope)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        (((5, 4), (3, 4, 6), (5, 6)), ([1, 3], [0], [1, 2], [2, 3])),  # torch.nn.Bilinear
        (((2, 3, 4), (2, 4, 5), (2, 5)), ([3], [1], [1, 2], [2, 3])),
        (((3, 4), (4, 5), (3,)), ([2], [0], [1, 2], [1])),
        (((3, 4), (4,), (3, 4)), ([], [0], [], [0, 1])),
        (((3, 4), (3, 4), (3,)), ([], [], [1], [1])),
    ],
)
def test_products_of_three(shapes, axes):
    tensors = [torch.randn(*shape) for shape in shapes]
    agrees(lambda *x: torch._trilinear(*x, *axes), *tensors)


def test_bilinear_layers_of_free_batches():
    layer = torch.nn.Bilinear(4, 6, 3).eval()
    free = ({0: Dim.AUTO},) * 2
    x, y = torch.randn(2, 5, 4), torch.randn(2, 5, 6)
    agrees(lambda x, y: layer(x, y), x, y, dynamic=free, more=[(x[:1], y[:1])])
