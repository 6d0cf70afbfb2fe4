"""Puts quantization into a graph: operators around the operands of quantized layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from clew.editing.surgery import Build, Insertion, Plan, Surgeon
from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.visit import post_order, users
from clew.ops.registry import get_op
from clew.quantization.parameters import Parameters, on_grid
from clew.quantization.ranges import Grid
from clew.quantization.sites import Site, point_name
from clew.quantization.sums import Addend, active, is_max_pool
from clew.trace.span import Source

_FRONTEND: Final = "clew"


@dataclass(frozen=True, eq=False)
class Conversion:
    """A value that is converted for one reader: for a product, a sum or a max pool. Conversions of
    the same `name` are one layer, which `products` need. `grid` is None if the value stays in
    floats, or if each call finds its range.
    """

    name: str
    reader: Call
    value: Expr
    grid: Grid | None
    build: Callable[[Expr], Expr]
    products: tuple[Site, ...]


def quantized_module(
    module: Module, parameters: Sequence[Parameters], addends: Sequence[Addend] = ()
) -> Module:
    """Returns a module in which these sites read quantized operands, and in which these operands of
    sums are rounded, of those whose product is among the sites. Each inserted conversion is a
    layer: `quantize(VALUE)` is shared by the readers of the value on the same grid, and
    `quantize(LAYER.weight)` is the weight's.
    """
    plan, names = Plan(), _Names()
    for c in conversions(module, parameters, addends):
        shared = Source(c.name, "quantize", _FRONTEND, "edit")
        plan.edges[c.reader.id, c.value.id] = Insertion(shared, c.build)
    for p in parameters:
        site = p.site
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


def conversions(
    module: Module, parameters: Sequence[Parameters], addends: Sequence[Addend] = ()
) -> list[Conversion]:
    """Returns the conversions of values that calls bring. Readers of a value on the same grid share
    one.
    """
    found: list[Conversion] = []
    known: dict[tuple[int, str, Grid | None, bytes], str] = {}
    names = _Names()

    def name_of(value: Expr, verb: str, grid: Grid | None, by: bytes = b"") -> str:
        key = (value.id, verb, grid, by)
        if key not in known:
            known[key] = names.source(point_name(value), verb).layer
        return known[key]

    for p in parameters:
        if not p.converts_data:
            continue
        by = b"" if p.numbers is None else p.numbers.tobytes()
        verb = "scale" if p.scheme.is_weight_only else "quantize"
        site = p.site
        name = name_of(site.data, verb, p.grid, by)
        found.append(Conversion(name, site.call, site.data, p.grid, p.quantized_data, (site,)))
    for a in active(addends, parameters):
        name = name_of(a.value, "quantize", a.grid)
        call = a.sum.call
        found.append(Conversion(name, call, a.value, a.grid, a.quantized, (a.product,)))
    plain = {p.site.call.id for p in parameters if p.numbers is None and p.scheme.rounds_sums}
    plain |= {a.sum.call.id for a in addends}
    on_grids = {(c.reader.id, c.value.id): c for c in found if c.reader.id in plain}
    for pool, reader in _pools(module, on_grids):
        value, grid = pool.args[0], reader.grid
        assert grid is not None
        name = name_of(value, "quantize", grid)
        build = partial(on_grid, grid=grid)
        found.append(Conversion(name, pool, value, grid, build, reader.products))
    return found


def _pools(
    module: Module, on_grids: Mapping[tuple[int, int], Conversion]
) -> list[tuple[Call, Conversion]]:
    """Returns the max pools whose result is read on one grid by all of its readers, in order, each
    with one of them. Rounding commutes with the maximum, so the operand of such a pool can be
    rounded instead.
    """
    known = dict(on_grids)
    found: list[tuple[Call, Conversion]] = []
    if not known:
        return found
    using = users(module.main)
    for pool in reversed(post_order(module.main.body)):
        if not isinstance(pool, Call) or not is_max_pool(pool):
            continue
        readers = [known.get((user.id, pool.id)) for user in using[pool.id]]
        first = readers[0]
        if first is None or any(r is None or r.grid != first.grid for r in readers):
            continue
        products = tuple(dict.fromkeys(s for r in readers if r for s in r.products))
        made = Conversion("", pool, pool.args[0], first.grid, first.build, products)
        known[pool.id, pool.args[0].id] = made
        found.append((pool, made))
    return found[::-1]


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
