"""Measures the costs of this machine and the rates of its cores.

Figures are rounded to two digits: repeated measurements of a quiet machine give the same table, so
kernels compiled for it stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from clew.machine.costs import DEFAULTS, Costs
from clew.machine.probes.arithmetic import clock_ghz, division_ns, multiply_add_latency_ns
from clew.machine.probes.bandwidth import Bandwidth
from clew.machine.probes.classes import STEPS, Steps, accesses, chains
from clew.machine.probes.peak import FmaPeak, TilePeak
from clew.machine.rates import Rates, described_rates
from clew.machine.target import describe_host

_ROUNDS: Final = 15
_FEW_ROUNDS: Final = 3
_TURNS: Final = 100
_CLOCK_EVERY: Final = 20
_MOST_L3_SET_BYTES: Final = 8 << 20
_MEMORY_SET_BYTES: Final = 256 << 20
_FLOPS_PER_MULTIPLY_ADD: Final = 2


def measured_costs(say: Callable[[str], None] = lambda text: None) -> Costs:
    """Measures and returns the costs of this machine, on one thread, in about two seconds.

    Each figure is the best of several runs, since other work on the machine only adds time. Figures
    without a probe keep their defaults. `say` reports progress.
    """
    target = describe_host()
    vector_bytes = target.vector_bits // 8
    say("clock")
    ghz = max(clock_ghz() for _ in range(_FEW_ROUNDS))
    say("multiply-adds")
    peak = FmaPeak()
    gflops = max(peak.gflops(1) for _ in range(_ROUNDS))
    ghz = max(ghz, clock_ghz())
    found = {
        "ghz": ghz,
        "multiply_adds": gflops / (_FLOPS_PER_MULTIPLY_ADD * peak.lanes) / ghz,
        "multiply_add_latency": multiply_add_latency_ns() * ghz,
        "division": division_ns() * ghz,
    }
    say("memory")
    bandwidth = Bandwidth()
    beyond_l2 = max(4 * target.l2_bytes, min(_MOST_L3_SET_BYTES, target.l3_bytes // 2))
    copied = max(bandwidth.gbps("copy", beyond_l2, 1) for _ in range(_ROUNDS))
    read = max(bandwidth.gbps("read", _MEMORY_SET_BYTES, 1) for _ in range(_ROUNDS))
    found["move"] = ghz * vector_bytes / copied
    found["weight_bytes"] = read / ghz
    if TilePeak.available():
        say("matrix unit")
        tiles = TilePeak()
        products_ns = max(tiles.products_per_ns() for _ in range(_ROUNDS))
        found["tile_step"] = ghz / products_ns
    rounded = {name: float(f"{value:.2g}") for name, value in found.items()}
    return replace(DEFAULTS, **rounded)


def measured_rates(say: Callable[[str], None] = lambda text: None) -> Rates:
    """Measures and returns the rates of a core of this machine, on one thread, in one or two
    seconds. Rates without a probe follow from its description.
    """
    target = describe_host()
    say("instructions")
    probes: dict[str, Steps] = {f"{kind}_latency": chains(kind, 1) for kind in STEPS}
    probes |= {kind: chains(kind) for kind in STEPS if kind != "compare"}
    probes |= {"loads": accesses(stores=False), "stores": accesses(stores=True)}
    taken = dict.fromkeys(probes, math.inf)
    ghz = 0.0
    # The probes take turns, many times, since another program may slow the core for a while.
    for turn in range(_TURNS):
        if turn % _CLOCK_EVERY == 0:
            ghz = max(ghz, clock_ghz())
        for name, steps in probes.items():
            taken[name] = min(taken[name], steps.ns())
    found = {"ghz": ghz}
    for name, ns in taken.items():
        found[name] = ns * ghz if name.endswith("_latency") else 1 / (ns * ghz)
    say("cache lines")
    bandwidth = Bandwidth()
    far = max(2 * target.l2_bytes, min(_MOST_L3_SET_BYTES, target.l3_bytes // 4))
    for name, size in (
        ("l2_line", target.l2_bytes // 2),
        ("l3_line", far),
        ("memory_line", _MEMORY_SET_BYTES),
    ):
        found[name] = ghz * min(bandwidth.line_ns(size) for _ in range(_ROUNDS))
    return replace(
        described_rates(target.vector_bits, DEFAULTS),
        **{name: _plain(name, value) for name, value in found.items()},
    )


def _plain(name: str, value: float) -> float:
    """Returns a rounded figure: throughputs and latencies are whole numbers, if at least 1."""
    whole = round(value)
    near = name in STEPS or name in ("loads", "stores") or name.endswith("_latency")
    return float(whole) if near and whole >= 1 else float(f"{value:.2g}")
