"""Draws the weights of a torch module at the scale of trained networks.

The usual initial values (deviation 0.02, unit scales, zero biases) leave small networks with
near-zero branches and uniform attention, which hides errors. The drawn values depend only on the
kind of layer.
"""

import math
from typing import Any

import torch
from torch import nn


def weights(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Redraws all layers of `module` in place; batch norms get the statistics `arguments` cause."""
    with torch.no_grad():
        for layer in module.modules():
            _draw(layer)
        _measure_statistics(module, arguments)


def _draw(layer: nn.Module) -> None:
    weight = getattr(layer, "weight", None)
    bias = getattr(layer, "bias", None)
    kind = type(layer).__name__
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
    elif isinstance(layer, nn.Conv2d):
        nn.init.normal_(layer.weight, std=math.sqrt(2 / math.prod(layer.weight.shape[1:])))
    elif isinstance(layer, nn.Embedding):
        nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.embedding_dim))
    elif isinstance(weight, torch.Tensor) and weight.ndim == 1:  # every kind of normalization
        nn.init.uniform_(weight, 0.5, 1.5)
    elif kind == "Conv1D" and isinstance(weight, torch.Tensor):  # GPT-2's linear, [in, out]
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[0]))
    if isinstance(bias, torch.Tensor):
        nn.init.normal_(bias, std=0.1)


def _measure_statistics(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the runs: of one, its own statistics
        norm.train()
    module(*arguments)
    module.eval()
