"""Integers among the arguments of exported programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules_run import assert_same
from torch import nn
from torch.export import Dim

import clew
from clew.frontends.torch import from_torch
from clew.support.call_form import CallForm
from clew.support.errors import ClewError


class Head(nn.Module):
    """Returns some rows, and computes with their number."""

    def forward(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, int]:
        return x[:k] * k + torch.arange(k).sum(), k + 1


class Scaled(nn.Module):
    """Takes an integer from a list."""

    def forward(self, x: torch.Tensor, by: list[Any]) -> torch.Tensor:
        return x * by[0] + by[1]


def imported(module: nn.Module, *args: Any, dynamic: Any) -> Any:
    return clew.compile(from_torch(module, args, dynamic_shapes=dynamic), threads=1)


def refusal(model: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(ClewError) as caught:
        model(*args)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    "numbers", [(2.1, -2.9, -1.0), (0.1, -7.9, -4.0), (0.9, 5.2, 1.5), (-1.5, 3.9, 2.0)]
)
def test_integers_in_steps_of_floats(numbers: tuple[float, float, float]) -> None:
    """torch truncates start, end and step before it counts."""

    class Steps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(*numbers, dtype=torch.int64) + x

    x = torch.tensor(3)
    found = clew.compile(from_torch(Steps(), (x,)), threads=1)(x)
    np.testing.assert_array_equal(found, Steps()(x).numpy())


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [(-2, 3, 50), (-2.5, 3.9, 50), (7, -100, 49), (0, 2**40, 7), (5, 9, 1)],
)
def test_integers_between_ends(start: float, end: float, count: int) -> None:
    """torch truncates the ends, and computes between them in f64."""

    class Between(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linspace(start, end, count, dtype=torch.int64) + x

    x = torch.tensor(3)
    found = clew.compile(from_torch(Between(), (x,)), threads=1)(x)
    np.testing.assert_array_equal(found, Between()(x).numpy())


def test_an_integer_is_an_argument(tmp_path: Path) -> None:
    x = torch.randn(6, 2)
    model = imported(Head(), x, 4, dynamic=({}, Dim.AUTO))
    model.save(tmp_path / "head.clew")
    for kept in (model, clew.load_compiled(tmp_path / "head.clew")):
        for k in (1, 3, 6, 7):
            for given in (k, np.int32(k), np.array(k)):
                assert_same(list(kept(x.numpy(), given)), Head(), (x, k))
        assert kept(x.numpy(), k=2)[1] == 3
        assert kept.run({"x": x.numpy(), "k": 2})["output0"].shape == (2, 2)
        assert repr(kept.inputs[1]) == "<k: int>"
        assert refusal(kept, x.numpy(), -1) == (
            "I317",
            "input 'k' is -1, the model takes integers from 0",
        )
        assert refusal(kept, x.numpy(), 1.5)[0] == "I043"


def test_an_integer_in_a_list_next_to_one_that_is_fixed() -> None:
    x = torch.randn(3)
    model = imported(Scaled(), x, [4, 3], dynamic=({}, [Dim.DYNAMIC, None]))
    for by in (4, 0, 100):
        assert_same(model(x.numpy(), [by, 3]), Scaled(), (x, [by, 3]))
    assert refusal(model, x.numpy(), [4, 2])[0] == "I414"


def test_an_integer_that_is_a_size() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, k: int) -> torch.Tensor:
            return x.view(k, -1) * 2

    model = imported(Rows(), torch.randn(6, 2), 6, dynamic=({0: Dim.AUTO}, Dim.AUTO))
    assert model(np.ones((3, 2), np.float32), 3).shape == (3, 2)
    assert model(np.ones((3, 2), np.float32), 2).shape == (2, 3)
    assert refusal(model, np.ones((3, 2), np.float32), 4)[0] == "I318"


def test_a_negative_example() -> None:
    with pytest.raises(ClewError, match=r"input 'by_0'.*the example is -4") as caught:
        imported(Scaled(), torch.randn(3), [-4, 3], dynamic=({}, [Dim.DYNAMIC, None]))
    assert caught.value.code == "U065"


def test_integers_in_forms() -> None:
    nested = ("dict", ("a", "b"), (("count", 2), ("=", 3)))
    form = CallForm(("x", "y", "z"), (("count", 0), 1, nested), 0)
    assert form.counts == (0, 2)
    assert not form.is_flat
    assert CallForm(("x", "y"), (("count", 0), 1), 0).is_flat
    assert CallForm(("x", "y"), (("count", "no"), ()), 0).counts == ()
