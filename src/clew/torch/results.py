"""Finds the layers of a compiled model that compute the results of module calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clew.frontends.torch.dtypes import given_dtype
from clew.ir.expr import Expr, If, While
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import all_nodes, post_order
from clew.support.errors import ClewError
from clew.torch.eager import EagerRun, ModuleCall
from clew.trace.trace import Trace


@dataclass(frozen=True)
class LayerResult:
    """A result of a layer, and its type in the imported graph."""

    layer: str
    output: int
    type: TensorType


class ResultLayers:
    """The layers' results that are results of module calls: those that layers outside the module
    read, or that the whole model returns.

    Results of layers in branches and loops are left out.
    """

    def __init__(self, trace: Trace) -> None:
        module: Module = trace.stages[0].module
        outside = {n.id for n in post_order(module.main.body)}
        self.has_inner = any(isinstance(n, (If, While)) for n in all_nodes(module.main))
        """Whether the graph has branches or loops."""
        served = trace.layer_nodes(0)
        modules = {layer: place.module for layer, place in trace.places.items()}
        self._made: dict[str, list[tuple[LayerResult, set[str]]]] = defaultdict(list)
        for node, readers in _readers(trace, module).items():
            for source in node.span.sources:
                made_by = modules.get(source.layer)
                if source.output is None or made_by is None or node.id not in outside:
                    continue
                if isinstance(node.type, TensorType):
                    made = LayerResult(source.layer, source.output, node.type)
                    read_in = {modules.get(r, r) for r in readers - {source.layer}}
                    self._made[made_by].append((made, read_in))

        self._in_order = list(dict.fromkeys(modules[la] for la in trace.places if la in served))

    def names(self, eager: EagerRun) -> dict[str, str | None]:
        """Returns the graph's names for calls of modules that have several paths, by eager's names.

        torch names a call after the path that the code uses, which is unknown in eager. The calls
        of a module have the same order in both. A name is None if the numbers of calls differ.
        """
        found: dict[str, str | None] = {}
        for first, paths in eager.shared.items():
            here = [name for name in self._in_order if name.partition("@")[0] in paths]
            calls = [first if not n else f"{first}@{n}" for n in range(eager.times[first])]
            if here:
                same = len(here) == len(calls)
                found |= dict(zip(calls, here if same else [None] * len(calls), strict=True))
        return found

    def of(self, call: ModuleCall, names: Mapping[str, str | None]) -> dict[int, LayerResult]:
        """Returns the layers' results that are results of a call, by position. Results that their
        types do not distinguish are left out. `names` has the graph's names where they differ from
        eager's.
        """
        calls = {names.get(name, name) for name in call.calls}
        if None in calls:
            return {}
        left = [
            made
            for name in calls
            for made, read_in in self._made.get(name or "", ())
            if not read_in <= calls
        ]
        numbers = sorted(made.output for made in left)
        of_one = len({made.layer for made in left}) == 1 and numbers == list(range(len(left)))
        if of_one and 1 < len(left) == len(call.results):
            return {made.output: made for made in left}  # all results of the layer, in order
        fitting = {
            n: [made for made in left if _fits(value, made.type)]
            for n, value in enumerate(call.results)
        }
        times = Counter(made for several in fitting.values() for made in several)
        return {n: m[0] for n, m in fitting.items() if len(m) == 1 == times[m[0]]}


def _readers(trace: Trace, module: Module) -> Mapping[Expr, set[str]]:
    """Returns, for each node that is a layer's result, the layers that read it. A layer without a
    name stands for the model, which reads its results.
    """
    users: dict[int, list[Expr]] = defaultdict(list)
    nodes: Mapping[int, Any] = trace.nodes(0)
    for node in nodes.values():
        if isinstance(node, Expr):
            for child in node.children:
                users[child.id].append(node)
    found: dict[Expr, set[str]] = {}
    for node in nodes.values():
        if any(s.output is not None for s in node.span.sources):
            readers = found[node] = set()
            open_: Sequence[Expr] = users[node.id]
            while open_:
                for user in open_:
                    readers.update(user.span.layers)
                if any(u is module.main for u in open_):
                    readers.add("")
                # Tuples and functions belong to no layer: their readers read the result.
                open_ = [after for u in open_ if not u.span.layers for after in users[u.id]]
    return found


def _fits(value: Any, type_: TensorType) -> bool:
    """Whether a value in eager may be a value of a type."""
    if not isinstance(value, torch.Tensor) or value.dim() != type_.rank:
        return False
    try:
        dtype = given_dtype(value.dtype)
    except ClewError:  # one that clew lacks
        return False
    sizes = zip(value.shape, type_.shape, strict=True)
    return dtype == type_.dtype and all(a == b for a, b in sizes if isinstance(b, int))
