"""A PyTorch model on the explorer's page: its lines of code, beside its layers and in stories."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import clew
from clew.explorer.builds.local import options_of
from clew.explorer.session import Session
from clew.explorer.views.source import source
from clew.explorer.views.story import story


class Block(nn.Module):
    """Two layers called in one line."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x))


@pytest.fixture(scope="module")
def session() -> Session:
    network = nn.ModuleDict({"block": Block()})

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([network["block"], nn.Linear(8, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts[1](self.parts[0](x))

    compiled = clew.compile(clew.from_torch(Network().eval(), (torch.randn(3, 4),)))
    return Session(compiled, model="model", options=options_of(compiled))


def test_lines_of_code_stand_before_their_layers(session: Session) -> None:
    lines = [line.strip() for line in source(session).text.split("\n")]
    code = next(n for n, line in enumerate(lines) if "torch.relu(self.up(x))" in line)
    assert lines[code].startswith("# test_torch_source.py:")
    assert lines[code - 1] == "parts.0:"
    assert lines[code + 1].startswith("parts.0.up = linear(")
    assert lines[code + 2].startswith("parts.0/relu = relu(")


def test_stories_lead_to_the_code(session: Session) -> None:
    for about in ("kernel:0", "layer:parts.0.up", "loop:0:1"):
        told = story(session, about)
        text = " ".join(p.text for s in told.sections for q in s.sentences for p in q.parts)
        assert "return torch.relu(self.up(x))" in text, about
