"""Higher-order operators of torch."""

from __future__ import annotations

import pytest
import torch
from functorch.experimental.control_flow import map as map_rows
from modules_run import agrees
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim

from clew.frontends.torch import from_torch
from clew.support.errors import ClewError


class Cond(nn.Module):
    """Branches with weights, one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def large(a: torch.Tensor) -> torch.Tensor:
            return torch.cond(a.max() > 1, lambda b: self.linear(b) + 1, lambda b: b * 3, (a,))

        return torch.cond(x.sum() > 0, large, lambda a: a.cos(), (x,))


class CondOfSize(nn.Module):
    """A branch that the size decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda a: a * a.shape[0], lambda a: a.cos(), (x,))


class Loop(nn.Module):
    """A loop whose number of steps the data decide."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        start = torch.zeros((), dtype=torch.int64), x * 1
        return while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * 1.5 + x), start)


class Scan(nn.Module):
    """A state over rows, with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = torch.tanh(self.linear(state) + row)
            return new, new * 2

        return scan(step, torch.zeros(4), x)


class Rows(nn.Module):
    """A function of each row."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda a, b: a * 2 + b, x, y)


class Region(nn.Module):
    """A region that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        region = torch.compiler.nested_compile_region(lambda y: self.linear(y).relu())
        return region(region(x))


N = {0: Dim("n")}


def rows(n: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, 4) + shift


@pytest.mark.parametrize(
    ("module", "args", "dynamic", "more"),
    [
        (Cond(), (rows(5, 9),), (N,), [(rows(3, -2),), (torch.full((2, 4), 0.5),)]),
        (CondOfSize(), (rows(5),), (N,), [(rows(3),), (rows(7),)]),
        (Loop(), (rows(5), torch.tensor(3)), (N, None), [(rows(2), torch.tensor(0))]),
        (Scan(), (rows(5),), (N,), [(rows(9),), (rows(1),)]),
        (Rows(), (rows(5), torch.randn(4)), (N, None), [(rows(2), torch.randn(4))]),
        (Region(), (rows(5),), (N,), [(rows(2),)]),
    ],
    ids=["cond", "cond of a size", "while_loop", "scan", "map", "invoke_subgraph"],
)
def test_higher_order_operators(module, args, dynamic, more) -> None:  # type: ignore[no-untyped-def]
    agrees(module, *args, dynamic=dynamic, more=more)


def test_layers_of_bodies_are_named_after_the_operator() -> None:
    module = from_torch(Scan().eval(), (rows(5),))
    layers = [place[0] for place in module.main.attrs["places"]]
    assert "scan" in layers
    assert "scan/body/tanh" in layers


def test_a_state_that_changes_its_type_is_refused() -> None:
    class Grows(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return while_loop(
                lambda a: a.sum() < 9, lambda a: (torch.cat([a, a])[:5] + 1,), (x[:5],)
            )

    with pytest.raises(ClewError):
        from_torch(Grows().eval(), (rows(4),), dynamic_shapes=(N,))
