"""Calls that hand torch's memory to kernels: which tensors are read in place, and which are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import clew.torch
from clew.support.errors import InputError


@pytest.fixture(scope="module")
def program() -> Any:
    """The program of `relu(x.T)` for f32[3, 8], whose result is stored in its own order."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x).T, backend="clew")
    compiled(torch.ones(3, 8))
    (found,) = clew.torch.last()
    return found


def tensors() -> list[torch.Tensor]:
    x = torch.arange(-12.0, 12.0).reshape(3, 8)
    shifted = torch.arange(-13.0, 12.0)[1:].view(3, 8)
    return [x, shifted, nn.Parameter(x), x.T.contiguous().T, x[:1].expand(3, 8), x.flip(0)]


def test_results_are_those_of_eager_wherever_tensors_lie(program: Any) -> None:
    for x in tensors():
        (found,) = program(x)
        wanted = torch.relu(x.detach()).T
        assert torch.equal(found, wanted)
        assert found.stride() == (1, 8)


def test_contiguous_tensors_are_read_in_place(program: Any) -> None:
    read = [program._current.direct([x]) is not None for x in tensors()]
    assert read == [True, True, True, False, False, True]


def test_lazy_negatives_and_misaligned_tensors_are_converted(program: Any) -> None:
    negative = torch.view_as_complex(torch.ones(3, 8, 2)).conj().imag
    assert negative.is_neg()
    room = bytearray(4 * 24 + 1)
    odd = torch.frombuffer(room, dtype=torch.float32, count=24, offset=1).view(3, 8)
    odd.copy_(tensors()[0])
    for x in (negative, odd):
        assert program._current.direct([x]) is None
        assert torch.equal(program(x)[0], torch.relu(x).T)


@pytest.mark.parametrize("x", [torch.ones(3, 9), torch.ones(3, 8, dtype=torch.float64)])
def test_other_shapes_and_dtypes_are_refused(program: Any, x: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"I04[23]"):
        program(x)


def test_results_of_a_call_outlive_the_next_one(program: Any) -> None:
    first = program(torch.ones(3, 8))[0]
    program(-torch.ones(3, 8))
    assert float(first.sum()) == 24.0


def test_indices_out_of_range_are_refused() -> None:
    torch._dynamo.reset()
    table = nn.Embedding(5, 4)
    compiled = torch.compile(table, backend="clew")
    with torch.no_grad():
        compiled(torch.tensor([0, 4]))
        (found,) = clew.torch.last()
        assert found._current.direct is not None
        with pytest.raises(InputError, match="I320"):
            compiled(torch.tensor([0, 5]))
        assert torch.equal(compiled(torch.tensor([1, 2])), table(torch.tensor([1, 2])))
