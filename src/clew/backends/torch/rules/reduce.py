"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import torch

from clew.backends.torch.registry import Building, Rule, Step, builds
from clew.ir.types import integer_limits, is_float

_Reduce = Callable[[torch.Tensor, tuple[int, ...], bool], torch.Tensor]
_Each = Callable[[torch.Tensor], torch.Tensor]


def _total(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    """Returns sums in the dtype of the elements."""
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _product(x: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    """Returns products, of one axis after another."""
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


_REDUCED: Final[dict[str, tuple[_Each, _Reduce, _Each]]] = {
    "sum": (_same, _total, _same),
    "prod": (_same, _product, _same),
    "max": (_same, torch.amax, _same),
    "min": (_same, torch.amin, _same),
    "all": (_same, torch.all, _same),
    "any": (_same, torch.any, _same),
    "l1": (torch.abs, _total, _same),
    "l2": (_square, _total, torch.sqrt),
    "sum_square": (_square, _total, _same),
    "log_sum": (_same, _total, torch.log),
    "logsumexp": (_same, torch.logsumexp, _same),
}
"""The function of elements, the reduction, and the function of its results. Without axes,
there is no reduction.
"""


def _reduced(before: _Each, reduce: _Reduce, after: _Each) -> Rule:
    def rule(b: Building) -> Step:
        axes, keep = b.attrs.axes, b.attrs.keepdims
        if not axes:
            return b.widened(lambda x: after(before(x)))
        return b.widened(lambda x: after(reduce(before(x), axes, keep)))

    return rule


for _name, _parts in _REDUCED.items():
    builds(_name)(_reduced(*_parts))


@builds("mean")
def mean(b: Building) -> Step:
    """`mean`; of integers, the sum divided by the count, truncated."""
    axes, keep = b.attrs.axes, b.attrs.keepdims
    if not axes:
        return lambda x: x
    if is_float(b.type.dtype):
        return b.widened(lambda x: torch.mean(x, axes, keep))
    count = prod(b.shape()[a] for a in axes)
    if count > integer_limits(b.type.dtype)[1]:
        b.refuse(f"{b.type.dtype} does not hold the number of elements, {count}")
    return lambda x: torch.div(_total(x, axes, keep), count, rounding_mode="trunc")


@builds("argmax", "argmin")
def place(b: Building) -> Step:
    """`argmax`, `argmin`, which return the first of equal elements or NaNs; for the last, of the
    axis in reverse.
    """
    axis, keep = b.attrs.axis, b.attrs.keepdims
    find = torch.argmax if b.call.op_name == "argmax" else torch.argmin
    if not b.attrs.select_last:
        return lambda x: find(x, axis, keep)
    last = b.shape()[axis] - 1
    return lambda x: last - find(torch.flip(x, (axis,)), axis, keep)


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
