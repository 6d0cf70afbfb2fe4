"""Each layer of one build: its kernels, its fate, and the types of its result and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.result import Build, KernelUse
from clew.compare.layers import Layer, layers_of
from clew.compare.treatment import run_names, treatments
from clew.correlate.conversion_rows import Conversion
from clew.correlate.conversions import conversions_of
from clew.ir.expr import Constant, Expr, Function
from clew.serving.built_model import BuiltModel
from clew.support.shown import Brief
from clew.trace.fates import fate_of
from clew.trace.trace import Trace
from clew.trace.values import LayerValue, layer_values


@dataclass(frozen=True, repr=False)
class KernelPart(Brief):
    """A layer's part in one use of a kernel.

    `kernel` is the use's name, unique in the build; `ops` are all operators in order, `own` those
    that serve the layer, `layers` the layers that the kernel serves.
    """

    kernel: str
    ops: tuple[str, ...]
    own: tuple[str, ...]
    layers: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class State(Brief):
    """A layer in a build.

    `backends` are the other backends that run it. `fate` is the fate of a layer without kernels,
    `fate_kind` the kind of a `clew.trace` fate. `type` is that of its result in the last stage,
    dtype, shape and layout, empty if no node holds the result; `dtype` and `layout` are its parts.
    `in_memory` says whether the result is written to memory, where a run can read it. `weights` are
    the types of its parameters in the last stage. `passes` say how each pass changed the layer's
    operators: which were removed and added.
    """

    kernels: tuple[KernelPart, ...] = ()
    backends: tuple[str, ...] = ()
    fate: str = ""
    fate_kind: str = ""
    type: str = ""
    dtype: str = ""
    layout: str = ""
    in_memory: bool = False
    weights: tuple[str, ...] = ()
    passes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Side:
    """One of the two compared builds, with the state of its layers."""

    def __init__(self, compiled: BuiltModel) -> None:
        self.compiled = compiled
        self.build: Build = compiled.build
        self.trace: Trace = compiled.trace
        self.layers: dict[str, Layer] = layers_of(self.trace)

    @cached_property
    def uses(self) -> dict[str, KernelUse]:
        """The uses of kernels by name, in the order they run."""
        return {use.name: use for use in self.build.uses}

    @cached_property
    def values(self) -> dict[str, LayerValue]:
        """The first result of each layer that has results."""
        found: dict[str, LayerValue] = {}
        for value in layer_values(self.trace):
            known = found.get(value.layer)
            if known is None or value.output < known.output:
                found[value.layer] = value
        return found

    @cached_property
    def conversions(self) -> dict[str, tuple[Conversion, ...]]:
        """The conversions that layers consist of, for those that consist of nothing else."""
        found: dict[str, list[Conversion]] = {}
        for row in conversions_of(self.compiled):
            if row.layer in self.layers:
                found.setdefault(row.layer, []).append(row)
        steps = {name: [r.step for r in rows] for name, rows in found.items()}
        return {
            name: tuple(rows)
            for name, rows in found.items()
            if sorted(c.op for c in self.layers[name].calls) == sorted(steps[name])
        }

    @cached_property
    def outside(self) -> frozenset[int]:
        """Ids of the last stage's nodes whose values a run can give: those outside kernels."""
        main = self.build.stages[-1].module.main
        stack: list[Expr] = [main.body, *main.params]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if node.id not in seen:
                seen.add(node.id)
                stack += [c for c in node.children if not isinstance(c, Function)]
        return frozenset(seen)

    def held(self, layer: str) -> int | None:
        """Returns the node of the last stage that holds a layer's result in a run, if any."""
        value = self.values.get(layer)
        if value is None:
            return None
        return next((r.node for r in value.last if r.node in self.outside), None)

    @cached_property
    def states(self) -> dict[str, State]:
        """The state of each layer."""
        weights = self._weights()
        passes = treatments(self.trace)
        backends: dict[str, dict[str, None]] = {}
        for region in self.build.regions:
            for layer in region.layers:
                backends.setdefault(layer, {})[region.backend] = None
        found = {}
        for name in self.layers:
            parts = tuple(self.kernel_parts.get(name, ()))
            type_ = self._result(name)
            fate = None if parts else fate_of(self.trace, name)
            found[name] = State(
                kernels=parts,
                backends=tuple(backends.get(name, ())),
                fate=str(fate) if fate is not None else "",
                fate_kind=fate.kind.value if fate is not None else "kernel",
                type=str(type_) if type_ is not None else "",
                dtype=str(getattr(type_, "dtype", "")),
                layout=str(getattr(type_, "layout", "")),
                in_memory=self.held(name) is not None,
                weights=tuple(str(t) for t in weights.get(name, ())),
                passes=passes.get(name, {}),
            )
        return found

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The layers that each kernel serves."""
        return self._kernels[0]

    @property
    def kernel_parts(self) -> dict[str, list[KernelPart]]:
        """The kernels of each layer: those that hold its result, or have an operator for this layer
        only. A layer whose result is lost has all kernels that serve it.
        """
        return self._kernels[1]

    @cached_property
    def _kernels(self) -> tuple[dict[str, tuple[str, ...]], dict[str, list[KernelPart]]]:
        results: dict[int, list[str]] = {}
        for layer, value in self.values.items():
            for ref in value.last:
                results.setdefault(ref.node, []).append(layer)
        settled = {layer for layers in results.values() for layer in layers}
        order = {name: n for n, name in enumerate(self.layers)}
        members_of: dict[str, tuple[str, ...]] = {}
        found: dict[str, list[KernelPart]] = {}
        for use in self.build.uses:
            calls = operator_calls(_function(use))
            members = set(results.get(use.call.id, ()))
            every = {la for call in calls for la in call.span.layers}
            for call in calls:
                layers = call.span.layers
                members.update(results.get(call.id, ()))
                members.update(la for la in layers if len(layers) == 1 or la not in settled)
            names = tuple(
                sorted(members & order.keys() or every & order.keys(), key=order.__getitem__)
            )
            members_of[use.name] = names
            ops = tuple(c.op_name for c in calls)
            for layer in names:
                own = tuple(c.op_name for c in calls if layer in c.span.layers)
                found.setdefault(layer, []).append(KernelPart(use.name, ops, own, names))
        return members_of, found

    @cached_property
    def pass_names(self) -> list[str]:
        """The passes that ran, in order; the second run of one is `Name 2`."""
        return run_names([stage.name for stage in self.trace.stages[1:]])

    def _weights(self) -> dict[str, list[Any]]:
        """Returns the types of the last stage's constants made from each layer's parameters."""
        readers: dict[str, set[str]] = {}
        for layer in self.layers.values():
            for constant in layer.parameters:
                for parameter in _parameters(constant):
                    readers.setdefault(parameter, set()).add(layer.name)
        found: dict[str, list[Any]] = {}
        for node in self.trace.nodes(self.trace.last).values():
            if isinstance(node, Constant):
                own = {la for p in _parameters(node) for la in readers.get(p, ())}
                for name in own.intersection(node.span.layers) or own:
                    found.setdefault(name, []).append(node.type)
        return found

    def _result(self, layer: str) -> Any:
        """Returns the type of a layer's result in the last stage, preferably in memory."""
        value = self.values.get(layer)
        if value is None or not value.last:
            return None
        node = self.held(layer)
        held = self.trace.nodes(self.trace.last)[node or value.last[0].node]
        return self.build.type_at(held.type)


def _function(use: KernelUse) -> Function:
    assert isinstance(use.call.op, Function)
    return use.call.op


def _parameters(constant: Constant) -> list[str]:
    return [s.layer for s in constant.span.sources if s.kind == "parameter"]
