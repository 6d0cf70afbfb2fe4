"""Sums of two computed values, such as residual additions, on grids of integers.

A product and an addition that alone reads its result make one kernel in hardware of integers: the
other operand's integers are added to the 32-bit sums of the product. So one operand of a sum stays
unchanged, and the other is rounded:

    add(conv2(q(y)) + bias, x)    before
    add(conv2(q(y)) + bias, q(x)) after, where conv1 reads the same q(x)

An average is a sum as well, over a window or an image. Its operand is rounded, so that the layer
before it gives integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from clew.ir.expr import Call, Expr, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order, users
from clew.ops.registry import Op
from clew.quantization.parameters import Parameters, on_grid
from clew.quantization.ranges import Grid
from clew.quantization.scheme import Rule, Scheme
from clew.quantization.sites import Site, point_name

_MONOTONE: Final = ("nn.relu", "clip")  # which hardware computes on the sums, before rounding


@dataclass(frozen=True, eq=False)
class Sum:
    """An addition of two values that depend on the inputs, both of the shape of the result, or an
    average of one that nothing else reads. `name` is that of its layer, with a number if the layer
    has several.
    """

    name: str
    call: Call

    @property
    def result(self) -> Call:
        """The sum."""
        return self.call

    @property
    def adds(self) -> bool:
        """Whether it adds two values, rather than the elements of one."""
        return len(self.call.args) == 2


@dataclass(frozen=True, eq=False)
class Addend:
    """An operand of a sum that is rounded to a grid.

    `product` is the quantized layer that the sum belongs to: if it stays in floats, so does the
    sum. Its own result is added as it is if `in_kernel`, which means that the sum can be computed
    in its kernel. `grid` is None before calibration.
    """

    sum: Sum
    value: Expr
    product: Site
    scheme: Scheme
    in_kernel: bool
    grid: Grid | None = None

    def quantized(self, value: Expr) -> Expr:
        """Returns the operand, rounded to the grid, as integers and back."""
        assert self.grid is not None
        return on_grid(value, self.grid)


def sums_of(module: Module, sites: Sequence[Site]) -> list[Sum]:
    """Returns the sums in `main`, in order. Those inside branches and loops are none."""
    brought: set[int] = {p.id for p in module.main.params}
    using = users(module.main)
    calls: list[Call] = []
    for node in post_order(module.main.body):
        if isinstance(node, Var) or any(c.id in brought for c in node.children):
            brought.add(node.id)
        if not isinstance(node, Call) or not all(a.id in brought for a in node.args):
            continue
        if _adds(node) or (_averages(node) and len(using[node.args[0].id]) == 1):
            calls.append(node)
    of_sites = {layer for s in sites for layer in s.call.span.layers}
    layers = [next(iter(c.span.layers), "") or c.op_name for c in calls]
    layers = [f"{layer}.sum" if layer in of_sites else layer for layer in layers]
    counts, seen = Counter(layers), Counter[str]()
    found: list[Sum] = []
    for layer, call in zip(layers, calls, strict=True):
        seen[layer] += 1
        found.append(Sum(f"{layer}#{seen[layer]}" if counts[layer] > 1 else layer, call))
    return found


def addends_of(
    module: Module,
    sites: Sequence[Site],
    schemes: Mapping[str, Scheme | None],
    rules: Sequence[Rule],
) -> list[Addend]:
    """Returns the operands of sums that are to be rounded, without grids.

    An addition is rounded if an operand comes from a quantized layer, directly or through ReLU,
    clip and max pools, or is read by one. Of the operands that are the result of a quantized layer,
    and that nothing else reads, the one that is computed last stays unchanged. The scheme is that
    of the layer whose result stays unchanged; if there is none, that of the last of the layers that
    the operands come from, or of those that read them. An average is rounded if its operand comes
    from a quantized layer or from a sum that belongs to one; it belongs to the same layer. Rules
    that select the sum change its scheme.
    """
    static = _Static(module, [s for s in sites if _is_static(schemes[s.name])])
    sums = sums_of(module, sites)
    ruled = _rules_by_sum(module, sites, sums, rules)
    products: dict[int, Site] = {}  # by the calls of sums
    found: list[Addend] = []
    for each in sums:
        product = static.product(each) if each.adds else static.origin(each, products)
        if product is None:
            continue
        products[each.call.id] = product
        scheme = _changed(schemes[product.name], ruled[each.name])
        if scheme is None or not scheme.rounds_sums:
            continue
        in_kernel = each.adds and any(a.id == product.result.id for a in static.own(each))
        found += [
            Addend(each, a, product, scheme, in_kernel)
            for a in each.call.args
            if not (in_kernel and a.id == product.result.id)
        ]
    return found


class _Static:
    """Finds the layers of sums among those that are quantized with ranges known before a call."""

    def __init__(self, module: Module, sites: Sequence[Site]) -> None:
        self._sites = sites
        self._order = {s.result.id: n for n, s in enumerate(sites)}
        self._readers: dict[int, list[int]] = {}
        for n, site in enumerate(sites):
            self._readers.setdefault(site.data.id, []).append(n)
        self._using = users(module.main)

    def own(self, each: Sum) -> list[Expr]:
        """Returns the operands that are results of layers, and that nothing but the sum reads."""
        operands = each.call.args
        return [a for a in operands if a.id in self._order and len(self._using[a.id]) == 1]

    def product(self, each: Sum) -> Site | None:
        """Returns the layer that an addition belongs to."""
        operands = each.call.args
        own = [self._order[a.id] for a in self.own(each)]
        origins = [_origin(a).id for a in operands]
        from_ = [self._order[origin] for origin in origins if origin in self._order]
        reading = [n for a in operands for n in self._readers.get(a.id, ())]
        candidates = own or from_ or reading
        return self._sites[max(candidates)] if candidates else None

    def origin(self, each: Sum, products: Mapping[int, Site]) -> Site | None:
        """Returns the layer that the operand of an average comes from."""
        origin = _origin(each.call.args[0]).id
        if origin in self._order:
            return self._sites[self._order[origin]]
        return products.get(origin)


def scheme_of_sum(
    module: Module,
    sites: Sequence[Site],
    each: Sum,
    scheme: Scheme | None,
    rules: Sequence[Rule],
) -> Scheme | None:
    """Returns the scheme of a sum that belongs to a product with this scheme; None for floats."""
    return _changed(scheme, _rules_by_sum(module, sites, [each], rules)[each.name])


def with_grids(
    addends: Sequence[Addend],
    parameters: Sequence[Parameters],
    grids: Mapping[tuple[int, Scheme], Grid],
) -> list[Addend]:
    """Returns the addends with grids: the one on which a product reads the value, or their own of
    those that calibration found by value and scheme.
    """
    shared = shared_grids(parameters)
    return [replace(a, grid=shared.get(a.value.id) or grids[a.value.id, a.scheme]) for a in addends]


def shared_grids(parameters: Sequence[Parameters]) -> dict[int, Grid]:
    """Returns the grids on which products read values, by the value. Values whose channels are
    divided by numbers have none, as their integers stand for other values.
    """
    found: dict[int, Grid] = {}
    for p in parameters:
        if p.grid is not None and p.numbers is None:
            found.setdefault(p.site.data.id, p.grid)
    return found


def active(addends: Sequence[Addend], parameters: Sequence[Parameters]) -> list[Addend]:
    """Returns the addends of sums whose product is among the quantized ones."""
    names = {p.site.name for p in parameters}
    return [a for a in addends if a.product.name in names]


def operand_named(each: Sum, name: str) -> Expr | None:
    """Returns the operand of a sum by its name in recipes."""
    return next((a for a in each.call.args if point_name(a) == name), None)


def is_max_pool(value: Expr) -> bool:
    """Whether a value is the largest of windows of another, which is exact on integers."""
    if not isinstance(value, Call) or not isinstance(value.op, Op):
        return False
    return value.op.traits.pools and bool(value.op.traits.selects)


def _adds(call: Call) -> bool:
    """Whether a call adds two different values of its own type."""
    if call.op_name != "add" or not isinstance(call.type, TensorType):
        return False
    first, second = call.args
    same = first.type == call.type and second.type == call.type
    return same and call.tensor.dtype == "f32" and first.id != second.id


def _averages(call: Call) -> bool:
    """Whether a call computes averages of windows, or over axes, of one value."""
    if not isinstance(call.op, Op) or not isinstance(call.type, TensorType):
        return False
    return call.op.traits.averages and call.tensor.dtype == "f32"


def _is_static(scheme: Scheme | None) -> bool:
    return scheme is not None and not (scheme.is_dynamic or scheme.is_weight_only)


def _origin(value: Expr) -> Expr:
    """Returns the value before ReLU, clip and max pools."""
    while isinstance(value, Call) and (value.op_name in _MONOTONE or is_max_pool(value)):
        value = value.args[0]
    return value


def _rules_by_sum(
    module: Module, sites: Sequence[Site], sums: Sequence[Sum], rules: Sequence[Rule]
) -> dict[str, list[Rule]]:
    """Returns the rules that select each sum. Those that count layers count products alone."""
    both: list[Site | Sum] = [*sites, *sums]
    found: dict[str, list[Rule]] = {s.name: [] for s in sums}
    for rule in rules:
        if rule.where.first or rule.where.last:
            continue
        for each in rule.where.select(module, both):
            if isinstance(each, Sum):
                found[each.name].append(rule)
    return found


def _changed(scheme: Scheme | None, rules: Sequence[Rule]) -> Scheme | None:
    for rule in rules if scheme is not None else ():
        scheme = rule.over(scheme)
    return scheme
