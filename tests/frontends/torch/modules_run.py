"""Imports a module with `from_torch`, and compares its compiled model with eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import clew
from clew.frontends.torch import from_torch
from opinfo.quick import quicken

quicken()


def compiled_from(module: torch.nn.Module, *args: Any, dynamic: Any = None) -> Any:
    """Returns the compiled model of a module."""
    return clew.compile(from_torch(module.eval(), args, dynamic_shapes=dynamic), threads=1)


def agrees(
    module: torch.nn.Module,
    *args: torch.Tensor,
    dynamic: Any = None,
    more: Sequence[Sequence[torch.Tensor]] = (),
) -> None:
    """Asserts that clew and eager agree for the arguments, and for those in `more`."""
    compiled = compiled_from(module, *args, dynamic=dynamic)
    for given in (args, *more):
        assert_same(compiled(*(x.numpy() for x in given)), module, given)


def assert_same(found: Any, module: torch.nn.Module, given: Sequence[torch.Tensor]) -> None:
    """Asserts that a result is eager's."""
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(*given))
    leaves = pytree.tree_leaves(found)
    assert len(leaves) == len(wanted)
    for got, want in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want))
