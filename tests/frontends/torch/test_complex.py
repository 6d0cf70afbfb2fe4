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
        product = a * b.conj() / (a + 100)
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


def test_complex_inputs_and_results():
    x, y = torch.randn(2, 8), torch.randn(2, 5, dtype=torch.complex64)
    agrees(lambda x, y: (torch.fft.rfft(x) * y, torch.fft.fft(y)), x, y, more=[(-x, y.conj())])


def test_refused():
    with pytest.raises(UnsupportedError, match=r"U061. exp\.default of complex numbers"):
        run(lambda x: torch.view_as_real(torch.exp(torch.fft.fft(x))), torch.randn(3))
