"""Divides kernels' times among operators, and operators' times among layers.

Times are multiples of one unit and are divided without a remainder, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from clew.profile.rows import (
    ESTIMATES,
    NO_LAYER,
    Basis,
    KernelProfile,
    LayerPart,
    LayerProfile,
    OperatorPart,
    OperatorProfile,
    Roof,
)
from clew.profile.split import Split
from clew.profile.timing import Time
from clew.runtime.program import NO_NODE, RunHost, RunRegion

_UNITS_PER_NS: Final = 1024
# If one layer has this share of an operator's work in the model, its time counts as measured: the
# error of dividing the rest is small.
_NEARLY_ALL: Final = 0.95
# FLOPs per byte above which a kernel counts as compute bound if no roof is known.
_INTENSE: Final = 10.0

# Returns the work of layers in the model, used as weights.
Weigh = Callable[[Sequence[str]], Sequence[float]]


def exact(ns: float) -> float:
    """Returns nanoseconds as a multiple of the unit."""
    return round(ns * _UNITS_PER_NS) / _UNITS_PER_NS


def divided(ns: float, weights: Sequence[float]) -> list[float]:
    """Divides a time (a multiple of the unit) in proportion to weights, so that the parts sum to it
    exactly. If all weights are zero, the parts are equal.
    """
    total = sum(weights)
    shares = [w / total for w in weights] if total > 0 else [1 / len(weights)] * len(weights)
    units = round(ns * _UNITS_PER_NS)
    parts = [int(units * share) for share in shares]
    order = sorted(range(len(shares)), key=lambda n: parts[n] - units * shares[n])
    left = units - sum(parts)
    for turn in range(left):
        parts[order[turn % len(order)]] += 1
    for _ in range(-left):  # shares may sum to slightly more than 1; no part gets negative
        parts[parts.index(max(parts))] -= 1
    return [part / _UNITS_PER_NS for part in parts]


@dataclass(frozen=True)
class Timed:
    """A kernel that ran: its name, its operators and layers, and its time in a run."""

    name: str
    ops: tuple[str, ...]
    layers: tuple[str, ...]
    runs: float
    time: Time


def kernel_profile(
    timed: Timed, wall_ns: float, split: Split, weigh: Weigh, roof: Roof | None
) -> KernelProfile:
    """Returns a kernel's row; `split` gives the shares of its operators."""
    time = _exact_time(timed.time)
    basis, shares = _shares(split, roof)
    operators = []
    for share, part, ns in zip(split.operators, shares, divided(time.ns, shares), strict=True):
        operators.append(
            OperatorProfile(
                kernel=timed.name,
                position=share.position,
                op=share.op,
                layers=share.layers,
                ns=ns,
                share=part,
                basis=basis,
                samples=share.samples,
                measured=share.measured,
                by_flops=share.by_flops,
                by_bytes=share.by_bytes,
                parts=_layer_parts(ns, share.layers, basis, weigh),
            )
        )
    return KernelProfile(
        name=timed.name,
        kind="kernel",
        ops=timed.ops,
        layers=timed.layers,
        runs=timed.runs,
        time=time,
        share=time.ns / wall_ns,
        operators=tuple(operators),
        samples=split.samples,
        error=split.error,
        lines=split.lines,
        instructions=split.instructions,
        roof=roof,
    )


def undivided_profile(timed: Timed, wall_ns: float) -> KernelProfile:
    """Returns the row of a kernel with known names of operators and layers only."""
    time = _exact_time(timed.time)
    alone = len(timed.layers) <= 1
    basis: Basis = "alone" if alone else "undivided"
    layer = ", ".join(timed.layers) or NO_LAYER
    whole = OperatorProfile(
        kernel=timed.name,
        position=0,
        op=", ".join(timed.ops),
        layers=timed.layers,
        ns=time.ns,
        share=1.0,
        basis=basis,
        samples=0.0,
        measured=None,
        by_flops=None,
        by_bytes=None,
        parts=(LayerPart(layer, time.ns, basis),),
    )
    return KernelProfile(
        timed.name,
        "kernel",
        timed.ops,
        timed.layers,
        timed.runs,
        time,
        time.ns / wall_ns,
        (whole,),
    )


def host_profile(
    name: str, host: RunHost, runs: float, time: Time, wall_ns: float, weigh: Weigh
) -> KernelProfile:
    """Returns the row of a host step or a region."""
    time = _exact_time(time)
    operator = OperatorProfile(
        kernel=name,
        position=0,
        op=host.label,
        layers=host.layers,
        ns=time.ns,
        share=1.0,
        basis="alone",
        samples=0.0,
        measured=None,
        by_flops=None,
        by_bytes=None,
        parts=_layer_parts(time.ns, host.layers, "alone", weigh),
    )
    share = time.ns / wall_ns
    ops = (host.label,)
    node = None if host.node == NO_NODE else host.node
    kind: Literal["host", "region"] = "region" if isinstance(host, RunRegion) else "host"
    return KernelProfile(name, kind, ops, host.layers, runs, time, share, (operator,), node=node)


def _exact_time(time: Time) -> Time:
    return Time(exact(time.ns), time.median_ns, time.q1_ns, time.q3_ns, time.best_ns)


def _shares(split: Split, roof: Roof | None) -> tuple[Basis, list[float]]:
    """Returns the operators' shares of a kernel's time, and their basis."""
    operators = split.operators
    if len(operators) == 1:
        return "alone", [1.0]
    measured = [o.measured for o in operators if o.measured is not None]
    if len(measured) == len(operators):
        return "measured", measured
    if roof is None or roof.limit == "compute" or roof.flops > _INTENSE * roof.bytes:
        return "flops", [o.by_flops for o in operators]
    return "bytes", [o.by_bytes for o in operators]


def _layer_parts(
    ns: float, layers: Sequence[str], basis: Basis, weigh: Weigh
) -> tuple[LayerPart, ...]:
    if len(layers) <= 1:
        return (LayerPart(layers[0] if layers else NO_LAYER, ns, basis),)
    weights = list(weigh(layers))
    sure = max(weights) >= _NEARLY_ALL * sum(weights) and sum(weights) > 0
    by = basis if sure or basis in ESTIMATES else "flops"
    parts = zip(layers, divided(ns, weights), strict=True)
    return tuple(LayerPart(layer, part, by) for layer, part in parts)


@dataclass
class _Sum:
    by: dict[Basis, float] = field(default_factory=dict)
    parts: list[OperatorPart] = field(default_factory=list)


def layer_profiles(
    kernels: Iterable[KernelProfile],
    wall_ns: float,
    order: Mapping[str, int],
    types: Mapping[str, str],
) -> tuple[LayerProfile, ...]:
    """Returns the layers with any work, in the model's `order`; `types` has their operator types in
    the model.
    """
    sums: dict[str, _Sum] = {}
    for kernel in kernels:
        for operator in kernel.operators:
            for part in operator.parts:
                found = sums.setdefault(part.layer, _Sum())
                found.by[part.basis] = found.by.get(part.basis, 0.0) + part.ns
                found.parts.append(
                    OperatorPart(kernel.name, operator.position, operator.op, part.ns, part.basis)
                )
    names = sorted(sums, key=lambda name: order.get(name, len(order)))
    return tuple(_layer(name, sums[name], wall_ns, types.get(name, "")) for name in names)


def _layer(name: str, found: _Sum, wall_ns: float, op: str) -> LayerProfile:
    ns = sum(found.by.values())
    return LayerProfile(
        layer=name,
        op=op,
        ns=ns,
        share=ns / wall_ns,
        alone_ns=found.by.get("alone", 0.0),
        measured_ns=found.by.get("measured", 0.0),
        estimated_ns=sum(found.by.get(basis, 0.0) for basis in ESTIMATES),
        undivided_ns=found.by.get("undivided", 0.0),
        kernels=tuple(dict.fromkeys(part.kernel for part in found.parts)),
        parts=tuple(found.parts),
    )
