"""Runs a function through `from_torch` and `clew.compile`, and compares it with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import clew
from clew.frontends.torch import from_torch
from clew.torch.tensors import reader, writer
from opinfo.quick import quicken

quicken()


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def run(function: Callable[..., Any], *args: Any, dynamic: Any = None) -> Any:
    """Returns the compiled model of a function; `dynamic` has the free sizes of each argument."""
    module = Call(function).eval()
    shapes = None if dynamic is None else (tuple(dynamic),)
    return clew.compile(from_torch(module, args, dynamic_shapes=shapes), threads=1)


def agrees(function: Callable[..., Any], *args: Any, dynamic: Any = None, more: Any = ()) -> None:
    """Asserts that clew and eager agree for the arguments, and for those in `more`."""
    compiled = run(function, *args, dynamic=dynamic)
    for given in (args, *more):
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        with torch.no_grad():
            leaves = pytree.tree_leaves(function(*(x.clone() for x in given)))
        wanted = [x for x in leaves if isinstance(x, torch.Tensor)]
        found = compiled.run(
            dict(zip(compiled.input_names, [reader(x.dtype)(x) for x in tensors], strict=True))
        )
        assert len(found) == len(wanted)
        for got, want in zip(found.values(), wanted, strict=True):
            torch.testing.assert_close(_tensor(got, want), want, equal_nan=True)


def _tensor(array: Any, like: torch.Tensor) -> torch.Tensor:
    if like.dtype == torch.bfloat16:
        return writer(torch.bfloat16)(np.array(array))
    return torch.from_numpy(np.array(array))
