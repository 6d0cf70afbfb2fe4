"""Seeded weights at the scale of trained networks, for layers of any kind.

Initial weights of libraries (deviation 0.02, unit scales, zero biases) leave small networks with
branches near zero and uniform attention, which hides errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

_PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def draw(module: nn.Module, runs: Sequence[Callable[[], Any]]) -> None:
    """Draws all weights in place; batch norms get the statistics that the runs cause."""
    with torch.no_grad():
        for layer in module.modules():
            _draw(layer)
        _measure_statistics(module, runs)


def _draw(layer: nn.Module) -> None:
    weight = layer._parameters.get("weight")
    for name, value in layer._parameters.items():
        if value is None or not value.is_floating_point():
            continue
        if name == "bias" and value.ndim == 1:
            nn.init.normal_(value, std=0.1)
        elif value is weight and isinstance(layer, (*_PROJECTIONS, *_TRANSPOSED)):
            nn.init.normal_(value, std=_deviation(layer, value))
        elif value is weight and isinstance(layer, nn.Embedding):
            nn.init.normal_(value, std=1 / math.sqrt(layer.embedding_dim))
            if layer.padding_idx is not None:
                value[layer.padding_idx] = 0
        elif value is weight and type(layer).__name__ == "Conv1D":  # GPT-2's linear, [in, out]
            nn.init.normal_(value, std=1 / math.sqrt(value.shape[0]))
        elif value.ndim == 1 and value.numel() > 1 and bool((value == value[0]).all()):
            _draw_constant(value)
        elif value.ndim > 1 and not bool(value.any()):  # positions and tokens that start as zeros
            nn.init.normal_(value, std=0.1)


def _deviation(layer: nn.Module, weight: torch.Tensor) -> float:
    """Returns the deviation that keeps values' size; half of them pass a ReLU in convolutions."""
    if isinstance(layer, nn.Linear):
        return 1 / math.sqrt(weight.shape[1])
    if isinstance(layer, _TRANSPOSED):
        taps = math.prod(weight.shape[2:]) / math.prod(layer.stride)
        return math.sqrt(2 / (weight.shape[0] / layer.groups * max(taps, 1)))
    return math.sqrt(2 / math.prod(weight.shape[1:]))


def _draw_constant(value: torch.Tensor) -> None:
    """Draws a vector of equal values: the scales of norms, shifts, and factors of branches."""
    if float(value[0]) == 0:
        nn.init.normal_(value, std=0.1)
    elif abs(float(value[0])) < 0.3:
        nn.init.uniform_(value, 0.1, 0.5)  # a trained factor; 1e-6 would switch the branch off
    else:
        value.mul_(torch.empty_like(value).uniform_(0.5, 1.5))


def _measure_statistics(module: nn.Module, runs: Sequence[Callable[[], Any]]) -> None:
    """Sets running means and variances to those of the runs, layer by layer.

    A channel that hardly varies in these few runs would be magnified in others: no variance is far
    below those of the layer's other channels.
    """
    norms = [
        layer
        for layer in module.modules()
        if isinstance(layer._buffers.get("running_mean"), torch.Tensor)
    ]
    met: dict[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]] = {layer: [] for layer in norms}

    def measure(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].detach().float()
        kept = [axis for axis in range(x.ndim) if axis != 1]
        if x.ndim < 2 or x.numel() <= 2 * x.shape[1]:  # one value a channel has no variance
            return
        met[layer].append((x.mean(kept), x.square().mean(kept)))
        mean, square = (torch.stack(parts).mean(0) for parts in zip(*met[layer], strict=True))
        variance = square - mean.square()
        layer._buffers["running_mean"].copy_(mean)
        layer._buffers["running_var"].copy_(variance.clamp(min=0.2 * float(variance.mean()) + 1e-3))

    hooks = [layer.register_forward_pre_hook(measure) for layer in norms]
    for run in runs if norms else ():
        run()
    for hook in hooks:
        hook.remove()
