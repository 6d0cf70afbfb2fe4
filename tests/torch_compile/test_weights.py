"""Weights of `torch.compile` with clew: each call uses their present values."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import clew.torch
from clew.cost.policy.folding import SHARED_CONSTANT_BYTES


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class OnData(torch.optim.Optimizer):
    """An optimizer that writes to `p.data`, as older ones do."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {})

    def step(self, closure: object = None) -> None:
        """Subtracts the gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(p.grad)


def step(make: Callable[..., torch.optim.Optimizer]) -> Callable[[nn.Linear], None]:
    def run(layer: nn.Linear) -> None:
        optimizer = make(layer.parameters())
        for p in layer.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()

    return run


kept: list[torch.Tensor] = []


def replaced_on_its_memory(layer: nn.Linear) -> None:
    """Replaces the weight by one with the same memory and the same version, but other values."""
    old = layer.weight
    kept.append(old)
    layer.weight = nn.Parameter(old.data)
    with torch.no_grad():
        while layer.weight._version < old._version:
            layer.weight.add_(1)


@pytest.mark.parametrize(
    "change",
    [
        step(lambda p: torch.optim.AdamW(p, fused=True)),
        step(lambda p: torch.optim.SGD(p, lr=0.1)),
        step(OnData),
        replaced_on_its_memory,
    ],
)
def test_changes_are_noticed(change: Callable[[nn.Linear], None]) -> None:
    layer = nn.Linear(8, 4)
    compiled = torch.compile(layer, backend="clew")
    x = torch.randn(2, 8)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x))
        change(layer)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x))


def test_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        network = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Unflatten(1, (1, 2, 2)))
        network.append(nn.Conv2d(1, 3, 1)).eval()
    compiled = torch.compile(network, backend="clew")
    for mode in (torch.no_grad, torch.inference_mode):
        for _ in range(2):
            with mode():
                x = torch.randn(2, 8)
                torch.testing.assert_close(compiled(x), network(x))
            with torch.inference_mode():
                for p in network.parameters():
                    p.mul_(1.5)
    assert not clew.torch.last().left


def test_threads_that_call_with_their_own_weights() -> None:
    layers = [nn.Linear(32, 32) for _ in range(3)]
    compiled = torch.compile(lambda layer, x: layer(x), backend="clew")
    wrong: list[int] = []

    def call(layer: nn.Module) -> None:
        with torch.no_grad():
            for number in range(200):
                x = torch.randn(2, 32)
                if not torch.allclose(compiled(layer, x), layer(x), atol=1e-4):
                    wrong.append(number)

    call(layers[0])
    threads = [threading.Thread(target=call, args=(layer,)) for layer in layers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_without_elements_can_be_resized() -> None:
    def joined(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], out=torch.empty(0))

    with torch.no_grad():
        x = torch.randn(2, 3)
        torch.testing.assert_close(torch.compile(joined, backend="clew")(x), joined(x))


def constants(program: clew.torch.TorchProgram) -> set[int]:
    """Returns the identities of a program's large constants."""
    segments = program.compiled.build.segments
    return {id(c) for s in segments for c in s.constants if c.nbytes >= SHARED_CONSTANT_BYTES}


def test_graphs_of_one_module_share_weights_until_they_change() -> None:
    layer = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 64))
    compiled = torch.compile(layer, backend="clew", dynamic=False)
    with torch.no_grad():
        for rows in (24, 16):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), layer(x))
        first, second = clew.torch.last()
        held = constants(first)
        assert len(held) == 2
        assert constants(second) == held
        for p in layer.parameters():
            p.mul_(2.0)
        torch.testing.assert_close(compiled(x), layer(x))
        assert not constants(second) & held
        assert constants(first) == held  # the weights of its latest call
        x = torch.randn(24, 64)
        torch.testing.assert_close(compiled(x), layer(x))
    assert constants(first) == constants(second)
