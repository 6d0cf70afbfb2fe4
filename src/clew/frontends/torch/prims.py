"""The library `prims` of torch, whose operators stand for those of ATen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch._prims  # declares the operators
from torch import fx
from torch.export import ExportedProgram

from clew.frontends.torch.registry import find


def _collapse(a: Any, start: int, end: int) -> Any:
    return a.flatten(start, end).clone()


def _sum(a: Any, dims: Any, *, output_dtype: Any = None) -> Any:
    return torch.sum(a, dims, dtype=output_dtype)


def _copy_strided(a: Any, stride: Any) -> Any:
    return a.clone()


_OWN: Final[dict[str, Callable[..., Any]]] = {
    "collapse": _collapse,
    "copy_strided": _copy_strided,
    "sum": _sum,
}


def prims_in_aten() -> dict[Any, Callable[..., Any]]:
    """Returns the operators of `prims` without a converter, and their ATen counterparts."""
    found: dict[Any, Callable[..., Any]] = {}
    for name in torch._prims.__all__:
        op = getattr(getattr(torch.ops.prims, name, None), "default", None)
        rule = _OWN.get(name) or getattr(op, "impl_aten", None)
        if op is not None and rule is not None and find(op) is None:
            found[op] = rule
    return found


@contextmanager
def without_view_prims(program: ExportedProgram) -> Iterator[None]:
    """A context in which a program calls ATen in place of the operators of `prims` that return
    views: torch does not decompose calls of these, because they are not ATen's.
    """
    modules = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    rules = prims_in_aten()
    changed = [
        (node, node.target)
        for module in modules
        for node in module.graph.nodes
        if node.target in rules and any(r.alias_info for r in node.target._schema.returns)
    ]
    for node, op in changed:
        node.target = rules[op]
    try:
        yield
    finally:
        for node, op in changed:
            node.target = op
