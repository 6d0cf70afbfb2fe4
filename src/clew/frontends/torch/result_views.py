"""Results of a traced graph that torch makes: views of its inputs or of its other results, and
numbers computed from sizes.

Results that share memory must have the strides and the storage offset of eager: AOT restores such
a result as a view of its base by these numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from functools import cache, wraps
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from clew.frontends.torch.decompositions import Table
from clew.frontends.torch.numbers import is_arithmetic
from clew.frontends.torch.tensors import memory_of

_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd


class ResultViews:
    """The results of a graph that torch makes, and the calls that make them."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._inputs = list(graph.graph.find_nodes(op="placeholder"))
        (ending,) = graph.graph.find_nodes(op="output")
        found = ending.args[0] if isinstance(ending.args[0], (list, tuple)) else [ending.args[0]]
        self._results: list[Any] = list(found)
        bases = {r for r in self._results if isinstance(r, fx.Node) and _is_computed(r)}
        sources = bases.union(self._inputs)
        needed = {n: _needed(r, sources) for n, r in enumerate(self._results)}
        self.calls: dict[int, list[fx.Node]] = {
            n: calls
            for n, calls in needed.items()
            if calls is not None and self._results[n] not in bases.difference(self._inputs)
        }
        """By the position of a result, the calls from its base on, in order. There are none if the
        result is an earlier one again.
        """
        for n, result in enumerate(self._results):
            if isinstance(result, fx.Node) and result in bases and result in self._results[:n]:
                self.calls[n] = []

    @property
    def nodes(self) -> set[fx.Node]:
        """All calls that make views which are results."""
        return {node for calls in self.calls.values() for node in calls}

    def function(self) -> Callable[[Sequence[Any], list[Any]], None]:
        """Returns a function that sets the views among the results, in place. It takes the graph's
        arguments and all results; those that are views may have any value.
        """
        graph = fx.Graph()
        made: dict[fx.Node, fx.Node] = {}
        for number, node in enumerate([*self._inputs, *self._results]):
            place = graph.placeholder(f"given_{number}")
            if isinstance(node, fx.Node) and number - len(self._inputs) not in self.calls:
                made.setdefault(node, place)
        for calls in self.calls.values():
            for node in calls:
                if node not in made:
                    made[node] = graph.node_copy(node, made.__getitem__)
        graph.output([made[self._results[n]] for n in self.calls])
        views = fx.GraphModule(torch.nn.Module(), graph).forward
        positions = list(self.calls)

        def add(args: Sequence[Any], results: list[Any]) -> None:
            for position, view in zip(positions, views(*args, *results), strict=True):
                results[position] = view

        return add


def without_views(table: Table) -> Table:
    """Returns decompositions that make views only where the operators do.

    Some take an operator apart into views of its argument for certain sizes, such as a shuffle of
    one group. Torch takes the operator's result for a new tensor, and its views for shared memory.
    """
    return {op: _owned(made) if _makes_new(op) else made for op, made in table.items()}


def _makes_new(op: torch._ops.OperatorBase) -> bool:
    """Whether an operator's results are new tensors. Composite ones may return anything."""
    schema = getattr(op, "_schema", None)
    if schema is None or any(result.alias_info is not None for result in schema.returns):
        return False
    return not op.has_kernel_for_dispatch_key(_COMPOSITE)


@cache
def _owned(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a decomposition that copies results which share memory with an argument."""

    @wraps(decomposed)
    def run(*args: Any, **kwargs: Any) -> Any:
        found = decomposed(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        given = {memory_of(x) for x in leaves if isinstance(x, torch.Tensor)}
        return pytree.tree_map_only(
            torch.Tensor, lambda y: y.clone() if memory_of(y) in given else y, found
        )

    return run


def _is_computed(node: fx.Node) -> bool:
    """Whether a node may be a tensor that is not a view."""
    number = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool))
    return not number and _viewed(node) is None


def _viewed(node: fx.Node) -> fx.Node | None:
    """Returns the tensor that a call makes a view of, None if it makes none."""
    if node.op != "call_function":
        return None
    schema = getattr(node.target, "_schema", None)
    is_view = schema is not None and any(
        r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
    )
    given = node.args[0] if node.args else None
    if not isinstance(given, fx.Node):
        return None
    if node.target is operator.getitem:  # of the views that a split returns
        return given if _viewed(given) is not None else None
    return given if is_view else None


def _needed(result: Any, sources: Collection[fx.Node]) -> list[fx.Node] | None:
    """Returns the calls that make a result out of sources by views and arithmetic on sizes, in
    order; None if other calls are needed.
    """
    if not isinstance(result, fx.Node):
        return None
    found: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> bool:
        if node in sources or node in found:
            return True
        is_own = _viewed(node) is not None or is_arithmetic(node.target)
        if not is_own or not all(map(visit, node.all_input_nodes)):
            return False
        found[node] = None
        return True

    return list(found) if visit(result) else None
