"""Complex numbers inside a program, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

import clew
from clew.support.errors import UnsupportedError

from .torch_calls import Call, agrees, run


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


def test_complex_inputs_and_results_are_part_of_the_only_segments_call():
    def transforms(x, y):
        return torch.fft.rfft(x), y * 2j, x + 1

    x, y = torch.randn(2, 8), torch.randn(2, 5, dtype=torch.complex64)
    model = clew.compile(clew.from_torch(Call(transforms), (x, y)), threads=1)
    program = model.served(x, y).program
    assert len(program.instructions) == 4
    assert program.whole is not None
    for given in ((x, y), (-x, y.conj()), (x, torch.randn(5, 2, dtype=torch.complex64).T)):
        given = tuple(g.clone() for g in given)
        for want, got in zip(transforms(*given), model(*given), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want)


@pytest.mark.parametrize(
    "function",
    [lambda x: (x, x * 1), lambda x: (x * 2j, 2j * x), lambda x: (x * 2j, (x * 2j).real, x.conj())],
)
def test_complex_results_own_their_memory(function):
    x = torch.randn(3, 4, dtype=torch.complex64)
    model = clew.compile(clew.from_torch(Call(function), (x,)), threads=1)
    given = x.clone()
    results = [torch.from_numpy(r) for r in model(given)]
    wanted = [r.clone() for r in function(x)]
    for written in [given, *results]:
        written.zero_()
        for want, got in zip(wanted, results, strict=True):
            if got is written:
                want.zero_()
            torch.testing.assert_close(got, want)


def test_tensors_that_numpy_cannot_view():
    x = torch.randn(3, 4, dtype=torch.complex64)
    model = clew.compile(clew.from_torch(Call(lambda x, y: x * y), (x, x.real)), threads=1)
    given = (x.clone().requires_grad_(), x.conj().imag)
    assert given[1].is_neg()
    torch.testing.assert_close(torch.from_numpy(model(*given)), (given[0] * given[1]).detach())
    assert torch.equal(torch.from_numpy(model(x.conj(), x.real)), x.conj() * x.real)


def test_functions_and_sums():
    def functions(x, y):
        return (
            *(x.angle(), x.exp(), x.log(), x.reciprocal()),
            *(x.sum(1), x.mean(), x.sum(-1, keepdim=True)),
            *(torch.linalg.vector_norm(x), x.norm(dim=1)),
            *(torch.where(x.real > 0, x, y), x.masked_fill(x.imag > 0, 2)),
        )

    x, y = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))
    agrees(functions, x, y, more=[(y, x)])


def test_movement():
    def moved(x):
        return (
            *(x.flip(-1), x.roll((1, 2), (0, -1)), x.roll(3), x.repeat(2, 1, 2), x.tile(2)),
            *(*x.unbind(-1)[:2], *x.split(2, -1), *x.chunk(2, 1), x.cumsum(-1)),
            *(x.index_select(-1, torch.tensor([1, 0])), x[[0, 2]], x[:, [1, 3]]),
        )

    agrees(moved, torch.randn(3, 4, dtype=torch.complex64))


def test_assignments():
    def assign(x, y):
        z = torch.zeros(3, 6, dtype=torch.cfloat)
        z[:, -2:] = x[:, :2]
        z[1, :4] = y[0].real
        z[torch.tensor([0, 2]), torch.tensor([1, 1])] = x[0, :2]
        w = torch.ones_like(x) * 1j
        w[0] = 3 - 1j
        w[:, 1].copy_(y[:, 2])
        w.real[1, 2] = 9
        more = torch.full((2,), 1 + 2j), torch.empty_like(x).fill_(2j)
        return z, w, *more, x.new_zeros(2, dtype=torch.float32)

    x, y = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))
    agrees(assign, x, y, more=[(y, x)])


def test_products_of_matrices():
    def products(x, w, r):
        a, b = x[0, 0], w[0, 0]
        mixed = torch.einsum("bixy,ioxy->boxy", x, w)
        return mixed, a @ b.mT, torch.addmm(r + 0j, a, b.mT), a @ b[0]

    x, w = (torch.randn(n, 3, 4, 5, dtype=torch.complex64) for n in (2, 3))
    agrees(products, x, w, torch.randn(4, 1))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_free_sizes(norm):
    def transforms(x):
        spectrum = torch.fft.rfft(x, norm=norm)
        back = torch.fft.irfft(spectrum, n=x.shape[-1], norm=norm)
        return spectrum, back, torch.fft.fft2(x, norm=norm), torch.fft.ifft(x + 0j, norm=norm)

    free = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    more = [(torch.randn(2, 15),), (torch.randn(1, 7),)]
    agrees(transforms, torch.randn(3, 12), dynamic=[free], more=more)


def test_refused():
    with pytest.raises(UnsupportedError, match=r"U061. sqrt\.default of complex numbers"):
        run(lambda x: torch.view_as_real(torch.sqrt(torch.fft.fft(x))), torch.randn(3))
