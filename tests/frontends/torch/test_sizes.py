"""Free sizes of exported programs: their ranges, and those that other sizes determine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from modules_run import assert_same, compiled_from
from torch import nn
from torch.export import Dim

import clew
from clew.frontends.torch import from_torch
from clew.ir.own_sizes import own_sizes_of
from clew.ir.parser import parse_module
from clew.support.errors import ClewError


class Doubled(nn.Module):
    """Reads one input twice, and adds another one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x]) + y


class Rows(nn.Module):
    """Splits its input in two rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, -1) * 2


class Short(nn.Module):
    """Branches on a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] <= 10 else x


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def refusal(model: Any, *args: Any) -> tuple[str, str]:
    with pytest.raises(ClewError) as caught:
        model(*args)
    return caught.value.code, caught.value.message


def saved(model: Any, folder: Path) -> Any:
    model.save(folder / "model.clew")
    return clew.load_compiled(folder / "model.clew")


def test_a_dim_keeps_its_range(tmp_path: Path) -> None:
    n = Dim("n", min=2, max=64)
    model = compiled_from(nn.ReLU(), torch.randn(6, 3), dynamic=({0: n},))
    assert str(model.sizes) == "n 2 to 64"
    for kept in (model, saved(model, tmp_path)):
        for size in (2, 64):
            assert kept(zeros(size, 3)).shape == (size, 3)
        for size in (0, 1, 65):
            assert refusal(kept, zeros(size, 3)) == (
                "I317",
                f"input 'input': n is {size}, but the model itself has the range 2 to 64",
            )


def test_guards_are_ranges_and_the_sizes_that_torch_assumes_are_none() -> None:
    module = from_torch(Short().eval(), (torch.randn(6),), dynamic_shapes=({0: Dim.AUTO},))
    assert dict(own_sizes_of(module)) == {"x.0": (0, 10)}
    assert own_sizes_of(parse_module(str(module))) == own_sizes_of(module)
    model = clew.compile(module, threads=1)
    for size in (0, 1, 10):
        assert_same(np.array(model(zeros(size))), Short(), [torch.zeros(size)])
    assert refusal(model, zeros(11))[0] == "I317"


def test_sizes_without_a_range_may_be_any(tmp_path: Path) -> None:
    model = compiled_from(nn.ReLU(), torch.randn(6, 3), dynamic=({0: Dim("n"), 1: Dim.AUTO},))
    assert not model.sizes
    loaded = saved(model, tmp_path)
    for shape in ((1, 1), (5, 7)):
        assert loaded(zeros(*shape)).shape == model(zeros(*shape)).shape == shape


def test_given_sizes_are_inside_the_range() -> None:
    n = Dim("n", min=2, max=64)
    module = from_torch(nn.ReLU(), (torch.randn(6),), dynamic_shapes=({0: n},))
    model = clew.compile(module, sizes={"n": (1, 8)}, threads=1)
    assert str(model.sizes) == "n 2 to 8"
    assert "compiled for 2 to 8" in refusal(model, zeros(9))[1]
    assert "itself has the range 2 to 64" in refusal(model, zeros(1))[1]
    with pytest.raises(ClewError, match="'n': the model itself has the range 2 to 64") as caught:
        clew.compile(module, sizes={"n": 65})
    assert caught.value.code == "I315"


def test_derived_dims(tmp_path: Path) -> None:
    n = Dim("n", max=99)
    x, y = torch.randn(3, 2), torch.randn(6, 2)
    model = compiled_from(Doubled(), x, y, dynamic=({0: n}, {0: 2 * n}))
    assert [i.shape for i in model.inputs] == [("n", 2), ("2*n", 2)]
    for kept in (model, saved(model, tmp_path)):
        for size in (1, 5):
            given = torch.randn(size, 2), torch.randn(2 * size, 2)
            assert_same(kept(*(x.numpy() for x in given)), Doubled(), given)
        assert refusal(kept, zeros(3, 2), zeros(5, 2)) == (
            "I042",
            "axis 0 of input 'y' is 5, but 2*n is 6 (at n = 3)",
        )
    assert model.drawn(shapes={"x": (4, 2)})[1].shape == (8, 2)


def test_a_dim_that_occurs_only_in_expressions(tmp_path: Path) -> None:
    model = compiled_from(Rows(), torch.randn(6), dynamic=({0: 2 * Dim("half", max=4)},))
    assert model.trace.verify(np.ones(6, np.float32)).ok
    for kept in (model, saved(model, tmp_path)):
        for size in (2, 8):
            x = torch.randn(size)
            assert_same(np.array(kept(x.numpy())), Rows(), [x])
        assert "2*half is 4 (at half = 2)" in refusal(kept, zeros(5))[1]
        assert "half is 5" in refusal(kept, zeros(10))[1]


def test_a_file_with_derived_dims(tmp_path: Path) -> None:
    n = Dim("n", max=99)
    args = torch.randn(3, 2), torch.randn(6, 2)
    program = torch.export.export(Doubled(), args, dynamic_shapes=({0: n}, {0: 2 * n}))
    torch.export.save(program, tmp_path / "doubled.pt2")
    model = clew.compile(tmp_path / "doubled.pt2", threads=1)
    assert [i.shape for i in model.inputs] == [("x.0", 2), ("2*x.0", 2)]
    assert refusal(model, zeros(3, 2), zeros(5, 2))[0] == "I042"
    assert refusal(model, zeros(100, 2), zeros(200, 2))[0] == "I317"


class Positives(torch.nn.Module):
    def forward(self, x):
        count = x[x > 0].shape[0]
        return count, x.sum() * count, torch.full((2,), count), x / (2 * x.nonzero().shape[0] + 1)


@pytest.mark.parametrize("dynamic", [None, ({0: Dim.AUTO},)])
def test_counts_of_elements_as_numbers(dynamic: Any) -> None:
    model = compiled_from(Positives(), torch.randn(3, 4), dynamic=dynamic)
    for rows in (3, 5, 3) if dynamic else (3, 3):
        x = torch.randn(rows, 4)
        found, wanted = model(x.numpy()), Positives()(x)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


class Triangles(torch.nn.Module):
    def forward(self, x):
        return torch.tril(x, x.shape[0] - x.shape[1]), torch.triu(x, 2 - x.shape[1])


def test_diagonals_of_free_sizes() -> None:
    model = compiled_from(Triangles(), torch.randn(4, 6), dynamic=({0: Dim.AUTO, 1: Dim.AUTO},))
    for shape in ((4, 6), (6, 4), (1, 1), (0, 3)):
        x = torch.randn(shape)
        for found, wanted in zip(model(x.numpy()), Triangles()(x), strict=True):
            np.testing.assert_array_equal(found, wanted)
