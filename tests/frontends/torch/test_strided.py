"""Tensors by their places in memory, and their bits as other dtypes, against eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from clew.support.errors import UnsupportedError

from .torch_calls import agrees, run

AUTO = Dim.AUTO
strided = torch.as_strided


def test_views_share_their_memory():
    def views(x):
        return (
            strided(x[1:], (3,), (1,), 0),
            strided(x[1:], (3,), (2,)),
            strided(strided(x, (4,), (1,), 2), (2,), (1,), 0),
            strided(x.t()[1:], (3, 2), (1, 5), 3),
            strided(x[0].expand(2, 6), (2, 3), (0, 1), 1),
            strided(x[:, ::2], (3,), (3,), 1),
            strided((x * 2)[1:, ::2], (3,), (3,), 1),
            strided(x.sort(0)[1][1:], (3,), (3,), 1),
            strided(x.view(torch.int16)[1:], (4,), (3,), 2),
        )

    agrees(views, torch.randn(4, 6))


def test_places_of_free_sizes():
    def views(x):
        return strided(x[1:], (x.shape[0] - 1, 3), (x.shape[1], 1), 1)

    more = [(torch.randn(5, 7),), (torch.randn(3, 3),)]
    agrees(views, torch.randn(4, 6), dynamic=({0: AUTO, 1: AUTO},), more=more)


def test_writes_to_places():
    def written(x, part):
        return (
            torch.as_strided_scatter(x[1:], part, (3,), (2,), 5),
            torch.as_strided_scatter(x[1:].t(), part, (3,), (2,), 7),
            torch.as_strided_scatter(x, part, (3,), (2,)),
        )

    agrees(written, torch.randn(4, 6), torch.randn(3))


def test_complex_places():
    def views(z):
        return (
            strided(z[1:], (2, 2), (1, 4), 1),
            strided(torch.view_as_real(z)[1:], (2, 2), (1, 4), 3),
            strided(z.imag, (2, 2), (2, 4)),
            z.view(torch.float32),
        )

    agrees(views, torch.randn(3, 4, dtype=torch.complex64))


def test_inputs_with_gaps_in_memory():
    x = torch.randn(4, 6)[:, ::2]
    found = run(lambda x: strided(x, (2, 2), (6, 2), 2) + 0, x)(x)
    torch.testing.assert_close(torch.from_numpy(found), strided(x, (2, 2), (6, 2), 2))
    with pytest.raises(UnsupportedError, match=r"U063.*in the gaps of a tensor's memory"):
        run(lambda x: strided(x, (2, 2), (6, 1), 2) + 0, x)


def test_bits_as_other_dtypes():
    def bits(x, codes):
        return (
            *(x.view(d) for d in (torch.int32, torch.uint8, torch.int16, torch.float64)),
            *(codes.view(d) for d in (torch.bfloat16, torch.int32, torch.bool)),
        )

    agrees(bits, torch.randn(3, 4), torch.randint(0, 2, (3, 8), dtype=torch.int8))
    more = [(torch.randn(2, 1),), (torch.randn(0, 3),)]
    agrees(lambda x: x.view(torch.int16), torch.randn(3, 4), dynamic=({0: AUTO, 1: AUTO},),
           more=more)  # fmt: skip
