"""Recurrent layers of torch, at fixed and at free lengths."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from modules_run import agrees
from torch import nn
from torch.export import Dim

from clew.frontends.torch.exporting import program_of


class Run(nn.Module):
    """A recurrent layer with all of its results."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
        if not states:
            return self.layer(x)
        return self.layer(x, states if len(states) > 1 else states[0])


CASES = {
    "lstm of two layers, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm with a projection": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "gru": (nn.GRU, {"batch_first": True}),
    "gru without biases": (nn.GRU, {"bias": False, "num_layers": 2}),
    "rnn": (nn.RNN, {"bidirectional": True, "batch_first": True}),
    "rnn of relu": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_at_free_lengths(name: str) -> None:
    kind, config = CASES[name]
    torch.manual_seed(3)
    draw = random.Random(name)
    module = Run(kind(5, 6, **config))  # type: ignore[operator]
    shapes = [(draw.randint(1, 9), draw.randint(1, 4), 5) for _ in range(2)]
    first = config.get("batch_first")
    axes = {0: Dim("n"), 1: Dim("t")} if first else {0: Dim("t"), 1: Dim("n")}
    more = [(torch.randn(shape),) for shape in shapes]
    dynamic = (axes,)
    agrees(module, torch.randn(3, 2, 5), dynamic=dynamic, more=more)


def test_given_states() -> None:
    torch.manual_seed(4)
    states = [torch.randn(1, 2, 6) for _ in range(2)]
    agrees(Run(nn.LSTM(5, 6)), torch.randn(4, 2, 5), *states)
    agrees(Run(nn.GRU(5, 6)), torch.randn(4, 2, 5), states[0])


def test_eager_is_unchanged_by_an_export() -> None:
    layer, x = nn.LSTM(5, 6).eval(), torch.randn(4, 2, 5)
    before = layer(x)[0]
    kernels = dict(torch.ops.aten.lstm.input.py_kernels)
    program_of(layer, (x,), None, None)
    assert torch.ops.aten.lstm.input.py_kernels == kernels
    torch.testing.assert_close(layer(x)[0], before)


def test_a_layer_over_time_is_one_layer() -> None:
    program = program_of(Run(nn.GRU(5, 6)).eval(), (torch.randn(4, 2, 5),), None, None)
    assert sum(n.target == torch.ops.aten.gru.input for n in program.graph.nodes) == 1
