"""Puts quantization into a graph: operators around the operands of quantized layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.editing.surgery import Build, Insertion, Plan, Surgeon
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.ops.registry import get_op
from clew.quantization.parameters import Parameters
from clew.quantization.ranges import Grid
from clew.quantization.sites import point_name
from clew.trace.span import Source

_FRONTEND: Final = "clew"


def quantized_module(module: Module, parameters: Sequence[Parameters]) -> Module:
    """Returns a module in which these sites read quantized operands. Each inserted conversion is a
    layer: `quantize(VALUE)` is shared by the sites that read the value on the same grid, and
    `quantize(LAYER.weight)` is the weight's.
    """
    plan, names = Plan(), _Names()
    for name, p in conversion_names(parameters):
        site = p.site
        if name:
            shared = Source(name, "quantize", _FRONTEND, "edit")
            plan.edges[site.call.id, site.data.id] = Insertion(shared, p.quantized_data)
        weight = Insertion(names.source(f"{site.name}.weight"), _giving(p.quantized_weight()))
        plan.edges[site.call.id, site.weight.id] = weight
        bias = p.quantized_bias()
        if bias is None:
            continue
        source = names.source(f"{site.name}.bias")
        if site.bias is not None and site.bias_constant is not None:
            plan.edges[site.bias.id, site.bias_constant.id] = Insertion(source, _giving(bias))
        else:
            plan.values[site.call.id] = Insertion(source, _adding(bias))
    return Surgeon(plan).module(module)


def conversion_names(parameters: Sequence[Parameters]) -> list[tuple[str, Parameters]]:
    """Returns the layer that converts the operand of each site, or "" for an operand that stays as
    it is. Sites that read a value on the same grid share it.
    """
    found: list[tuple[str, Parameters]] = []
    known: dict[tuple[int, str, Grid | None, bytes], str] = {}
    names = _Names()
    for p in parameters:
        if not p.converts_data:
            found.append(("", p))
            continue
        by = b"" if p.numbers is None else p.numbers.tobytes()
        verb = "scale" if p.scheme.is_weight_only else "quantize"
        key = (p.site.data.id, verb, p.grid, by)
        if key not in known:
            known[key] = names.source(point_name(p.site.data), verb).layer
        found.append((known[key], p))
    return found


class _Names:
    """Makes the names of inserted conversions unique."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def source(self, what: str, verb: str = "quantize") -> Source:
        name = f"{verb}({what})"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        name = name if count == 1 else f"{name}#{count}"
        return Source(name, "quantize", _FRONTEND, "edit")


def _giving(value: Expr) -> Build:
    return lambda _: value


def _adding(bias: Expr) -> Build:
    return lambda result: get_op("add")(result, bias)
