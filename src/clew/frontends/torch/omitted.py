"""Calls that torch's decomposition leaves out: no-ops, and calls whose results nothing reads.

They have no node in the decomposed graph, but are still layers of the user's program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx

from clew.frontends.builder import UNUSED
from clew.frontends.torch.places import is_check, is_layer, layer_names, op_name, place_of
from clew.trace.places import CodePlace

VIEWED: Final = "a result that is a view, which torch makes"
_NO_OP: Final = "a no-op, which torch's decomposition omits"
_NOTHING: Final = "torch's decomposition leaves nothing of it"


@dataclass(frozen=True)
class Omitted:
    """A call that has no node: its name as a layer, its operator, the reason, and its place."""

    name: str
    op: str
    reason: str
    place: CodePlace


@dataclass(frozen=True)
class Undecomposed:
    """A graph before its decomposition, and the graph that it became."""

    before: fx.GraphModule
    after: fx.GraphModule

    def inner(self, name: str) -> Undecomposed | None:
        """Returns both graphs of a module inside; None if either lacks a module of that name."""
        found = [dict(g.named_children()).get(name) for g in (self.before, self.after)]
        return Undecomposed(*found) if all(isinstance(g, fx.GraphModule) for g in found) else None

    def omitted(self, prefix: str, taken: Collection[str]) -> Iterator[Omitted]:
        """Yields the calls that nothing in the decomposed graph comes from, under names other than
        those in `taken`.
        """
        used = set(taken)
        for node, name in self._names(prefix).items():
            if node.name in self._origins:
                continue
            number, own = 0, name
            while own in used:
                number += 1
                own = f"{name}_{number}"
            used.add(own)
            yield Omitted(own, op_name(node), self._reason(node), place_of(node, own))

    def _names(self, prefix: str) -> Mapping[fx.Node, str]:
        return layer_names(filter(_computes, self.before.graph.nodes), prefix)

    @cached_property
    def _origins(self) -> set[str]:
        """Names of the nodes that some node of the decomposed graph comes from."""
        graph, found = id(self.before.graph), set()
        open_ = [f for n in self.after.graph.nodes for f in n.meta.get("from_node", ())]
        while open_:
            source = open_.pop()
            if source.graph_id == graph:
                found.add(source.name)
            else:  # an intermediate copy of the graph, or an earlier graph
                open_ += source.from_node
        return found

    @cached_property
    def _live(self) -> set[fx.Node]:
        """The nodes that a result, or an effect, needs."""
        found: set[fx.Node] = set()
        for node in reversed(self.before.graph.nodes):
            if node.op == "output" or node.is_impure() or any(u in found for u in node.users):
                found.add(node)
        return found

    def _reason(self, node: fx.Node) -> str:
        if node not in self._live:
            return UNUSED
        alike = any(_type(a) == _type(node) for a in node.all_input_nodes)
        return _NO_OP if alike else _NOTHING


def _value(node: fx.Node) -> Any:
    return node.meta.get("val", node.meta.get("example_value"))


def _type(node: fx.Node) -> tuple[Any, ...] | None:
    """Returns the dtype and sizes; free sizes as expressions, because torch treats a comparison of
    two sizes as a branch, which fails for data-dependent sizes.
    """
    value = _value(node)
    if not isinstance(value, torch.Tensor):
        return None
    sizes = (s.node.expr if isinstance(s, torch.SymInt) else s for s in value.shape)
    return value.dtype, *sizes


def _computes(node: fx.Node) -> bool:
    """Whether a node calls a function of tensors: an operator, or a Python function that Dynamo
    recorded. Picking one of several results does not count.
    """
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return is_layer(node)
    if node.op not in ("call_function", "call_method") or is_check(node):
        return False
    value = _value(node)
    several = isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value)
    picks = node.target is operator.getitem and isinstance(_value(node.args[0]), (list, tuple))
    return (isinstance(value, torch.Tensor) or several) and not picks
