"""The library `prims` against eager PyTorch."""

from __future__ import annotations

import torch
from torch.export import Dim

from clew.frontends.torch.exporting import decomposed

from .torch_calls import Call, agrees

AUTO = Dim.AUTO
prims = torch.ops.prims


def test_elementwise_operators():
    def calls(x, y):
        return (
            *(getattr(prims, n)(x) for n in ("abs", "cbrt", "erf_inv", "expm1", "rsqrt", "trunc")),
            *(getattr(prims, n)(x, y) for n in ("div", "fmod", "maximum", "pow", "atan2", "lt")),
        )

    agrees(calls, torch.rand(3, 4), torch.rand(3, 4))


def test_reductions_and_sequences():
    def calls(x):
        return (
            prims.sum(x, [0, 2]),
            prims.prod(x, [0, 2]),
            prims.amax(x, [1]),
            prims.var(x, [0, 2], 1.0),
            prims.iota(
                x.shape[0], start=2, step=3, dtype=torch.int64, device="cpu", requires_grad=False
            ),
        )

    agrees(calls, torch.rand(3, 4, 5), dynamic=({0: AUTO, 1: AUTO},), more=[(torch.rand(2, 3, 5),)])


def test_views_of_other_shapes():
    def calls(x):
        return (
            prims.collapse(x, 1, 2),
            prims.collapse_view(x, 0, 1),
            prims.broadcast_in_dim(x, [3, 4, 5, 2], [0, 1, 2]),
            prims.split_dim(x, 1, 2),
            prims.squeeze(x[:1], [0]),
            prims.transpose(x, [2, 0, 1]),
            prims.view_of(x) + 1,
            prims.as_strided(x, [2, 3], [4, 1], 3),
        )

    agrees(calls, torch.rand(3, 4, 5))


def test_a_program_stays_as_it_was():
    program = torch.export.export(Call(lambda x: prims.view_of(x) + 1), (torch.rand(3),))
    before = str(program.graph)
    decomposed(program)
    assert str(program.graph) == before
