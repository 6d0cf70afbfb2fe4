"""Running sums, products and extremes, and the largest elements."""

from __future__ import annotations

from collections.abc import Callable

import torch

from clew.backends.torch.registry import Building, Step, builds


def _scanned(b: Building, function: Callable[..., torch.Tensor], neutral: int) -> Step:
    """Returns a running sum or product in the dtype of the elements."""
    axis, exclusive, reverse = b.attrs.axis, b.attrs.exclusive, b.attrs.reverse
    size = b.shape()[axis]

    def step(x: torch.Tensor) -> torch.Tensor:
        if reverse:
            x = torch.flip(x, (axis,))
        if exclusive:
            first = torch.full_like(x.narrow(axis, 0, 1), neutral)
            x = torch.cat((first, x.narrow(axis, 0, size - 1)), axis)
        total = function(x, axis, dtype=x.dtype)
        return torch.flip(total, (axis,)) if reverse else total

    return b.widened(step)


@builds("cumsum")
def cumsum(b: Building) -> Step:
    """`cumsum`."""
    return _scanned(b, torch.cumsum, 0)


@builds("cumprod")
def cumprod(b: Building) -> Step:
    """`cumprod`."""
    return _scanned(b, torch.cumprod, 1)


@builds("cummax")
def cummax(b: Building) -> Step:
    """The values of `cummax`."""
    axis = b.attrs.axis
    return lambda x: torch.cummax(x, axis).values


@builds("cummin")
def cummin(b: Building) -> Step:
    """The values of `cummin`."""
    axis = b.attrs.axis
    return lambda x: torch.cummin(x, axis).values


@builds("top_k", "top_k_ranked")
def top_k(b: Building) -> Step:
    """A stable sort: `topk` of torch leaves the order of equal elements open."""
    return _largest(b, b.attrs.k)


@builds("top_k_into")
def top_k_into(b: Building) -> Step:
    """`top_k` of as many elements as the second input has."""
    return _largest(b, b.shape(1)[0])


def _largest(b: Building, k: int) -> Step:
    axis, largest = b.attrs.axis, b.attrs.largest

    def step(x: torch.Tensor, *room: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, k), places.narrow(axis, 0, k)

    return step
