"""Complex numbers inside a program, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from clew.support.errors import UnsupportedError

from .torch_calls import agrees, run


def test_spectrum():
    def spectrum(x, window):
        f = torch.stft(x, 16, 8, window=window, return_complex=True)
        return f.abs(), torch.view_as_real(f)

    agrees(
        spectrum,
        torch.randn(2, 64),
        torch.hann_window(16),
        more=[(torch.ones(2, 64), torch.rand(16))],
    )


def test_transforms_and_arithmetic():
    def convolve(x, y):
        a, b = torch.fft.rfft2(x), torch.fft.rfft2(y, norm="ortho")
        z = torch.view_as_complex(torch.stack([x, y], -1))
        product = a * b.conj() / (a + 2)
        shifted = torch.fft.ifft(z * 1j, norm="forward").transpose(0, 1)[:, 1:]
        return (
            torch.fft.irfft2(product, s=x.shape),
            torch.view_as_real(shifted - z[1:].t().resolve_conj()),
            torch.cat([z.real, z.imag], -1),
            torch.polar(x.abs(), y).abs(),
        )

    agrees(
        convolve, torch.randn(4, 6), torch.randn(4, 6), more=[(torch.rand(4, 6), torch.rand(4, 6))]
    )


def test_refused():
    x = torch.randn(3)
    with pytest.raises(UnsupportedError, match=r"U061. a result is of torch.complex64"):
        run(torch.fft.fft, x)
    with pytest.raises(UnsupportedError, match=r"U061.*exp\.default of complex numbers"):
        run(lambda x: torch.view_as_real(torch.exp(torch.fft.fft(x))), x)
