"""Modules of any name are imported, under their names."""

from __future__ import annotations

import pytest
import torch

import clew

NAMES = ["a\nb", 'a"b', "a'b", "a\\b", "class", "None", "a{b}", "0", "ü \u202e", "x" * 3000]


class Named(torch.nn.Module):
    """A linear layer called by any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, torch.nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self._modules[self.name](x))


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(name: str) -> None:
    model, x = Named(name).eval(), torch.ones(2, 4)
    compiled = clew.compile(clew.from_torch(model, (x,)), threads=1)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(compiled(x.numpy())), model(x))
    layers = {layer for kernel in compiled.kernels for layer in kernel.layers}
    assert any(name in layer for layer in layers)
    exported = torch.export.export(model, (x,))
    assert torch.fx.graph._format_target("self", "a.b") == "self.a.b"
    assert clew.from_torch(exported).main.params


class Exits(torch.nn.Module):
    """Asks Python to exit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(3)


def test_a_module_that_exits() -> None:
    with pytest.raises(clew.ClewError, match="SystemExit: 3") as caught:
        clew.from_torch(Exits(), (torch.ones(2),))
    assert caught.value.code == "M050"
