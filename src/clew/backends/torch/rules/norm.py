"""Normalization and softmax."""

from __future__ import annotations

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds


@builds("nn.layer_norm")
def layer_norm(b: Building) -> Step:
    """`layer_norm`, which takes parameters of the shape of the normalized axes; others are applied
    after it.
    """
    shape, epsilon = b.shape()[b.attrs.axis % b.types[0].rank :], b.attrs.epsilon
    if all(b.shape(n) == shape for n in range(1, len(b.types))):
        return b.widened(
            lambda x, gamma, beta=None: functional.layer_norm(x, shape, gamma, beta, epsilon)
        )

    def step(x: torch.Tensor, gamma: torch.Tensor, *beta: torch.Tensor) -> torch.Tensor:
        scaled = functional.layer_norm(x, shape, eps=epsilon) * gamma
        return scaled + beta[0] if beta else scaled

    return b.widened(step)


@builds("nn.rms_norm")
def rms_norm(b: Building) -> Step:
    """`rms_norm`, without a weight, which is applied after it."""
    shape, epsilon = b.shape()[b.attrs.axis % b.types[0].rank :], b.attrs.epsilon
    return b.widened(lambda x, gamma: functional.rms_norm(x, shape, None, epsilon) * gamma)


@builds("nn.batch_norm")
def batch_norm(b: Building) -> Step:
    """`batch_norm` for inference."""
    epsilon = b.attrs.epsilon
    return b.widened(
        lambda x, gamma, beta, mean, var: functional.batch_norm(
            x, mean, var, gamma, beta, False, 0.0, epsilon
        )
    )


def _need_plain(b: Building) -> None:
    if b.attrs.layout != "NCHW":
        b.refuse(f"images are laid out as {b.attrs.layout}")


@builds("nn.instance_norm", "nn.group_norm")
def group_norm(b: Building) -> Step:
    """`group_norm`, with each channel as a group for an instance norm."""
    _need_plain(b)
    groups, epsilon = b.attrs.get("groups") or b.shape()[1], b.attrs.epsilon
    return b.widened(lambda x, gamma, beta: torch.group_norm(x, groups, gamma, beta, epsilon))


@builds("nn.lrn")
def lrn(b: Building) -> Step:
    """The formula: of an even number of channels, torch takes one more before the element."""
    _need_plain(b)
    attrs, shape = b.attrs, b.shape()
    size, before = attrs.size, (attrs.size - 1) // 2
    factor, beta, bias = attrs.alpha, attrs.beta, attrs.bias
    around = (0, 0, before, size - 1 - before)

    def step(x: torch.Tensor) -> torch.Tensor:
        squares = functional.pad((x * x).reshape(shape[0], shape[1], -1), around)
        means = functional.avg_pool2d(squares[:, None], (size, 1), 1)[:, 0].reshape(shape)
        return x / (means * factor + bias) ** beta

    return b.widened(step)


@builds("nn.l2_normalize")
def l2_normalize(b: Building) -> Step:
    """The input over the norm, which is at least `epsilon`."""
    axes, epsilon = b.attrs.axes, b.attrs.epsilon
    if not axes:
        return b.widened(lambda x: x / torch.clamp(x.abs(), epsilon))
    return b.widened(lambda x: x / torch.clamp((x * x).sum(axes, keepdim=True).sqrt(), epsilon))
