"""The rates of a core: the throughput and latency of each class of instructions, and the cycles
that a cache line takes from each level.

Only predictions read this table, so measuring it changes no kernel. `clew machine` measures the
figures that have a probe. The others, and those of other targets, follow from the description of
the machine and the defaults below, which were measured on a core with 256-bit vectors (AMD Zen 3).
Other x86 cores with two units for multiply-adds share ports in a similar way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from clew.machine.costs import Costs
from clew.machine.figures import figure, figures_in, record_of
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Rates:
    """Rates of one core. Vectors are full vector registers."""

    ghz: float = figure(3.4, "GHz", "clock rate of a busy core", probed=True)

    # --- The front end, and how far a core works ahead.
    issue: float = figure(6.0, "instructions/cycle", "instructions issued")
    window: float = figure(256.0, "instructions", "started before the oldest one has ended")
    vector_window: float = figure(130.0, "vectors", "results that wait for older instructions")

    # --- Throughput by class, and of classes that share ports.
    fma: float = figure(2.0, "vectors/cycle", "multiply-adds and multiplications", probed=True)
    add: float = figure(2.0, "vectors/cycle", "additions and comparisons of floats", probed=True)
    logic: float = figure(4.0, "vectors/cycle", "logic and integer additions", probed=True)
    shuffle: float = figure(2.0, "vectors/cycle", "permutations", probed=True)
    convert: float = figure(2.0, "vectors/cycle", "conversions to floats", probed=True)
    divide: float = figure(0.2, "vectors/cycle", "divisions and square roots", probed=True)
    vectors: float = figure(4.0, "vectors/cycle", "all vector instructions together")
    fma_add: float = figure(4.0, "vectors/cycle", "multiply-adds and additions together")
    fma_shuffle: float = figure(3.0, "vectors/cycle", "multiply-adds and permutations together")
    add_shuffle: float = figure(3.0, "vectors/cycle", "additions and permutations together")
    transfer: float = figure(1.0, "values/cycle", "between vector and other registers")
    scalar: float = figure(4.0, "instructions/cycle", "scalar integer arithmetic")
    multiply: float = figure(1.0, "instructions/cycle", "scalar integer multiplications")
    branch: float = figure(1.0, "branches/cycle", "branches")
    loads: float = figure(2.0, "vectors/cycle", "loads from the first-level cache", probed=True)
    stores: float = figure(1.0, "vectors/cycle", "stores to the first-level cache", probed=True)
    scalar_loads: float = figure(3.0, "values/cycle", "loads of single values")
    accesses: float = figure(3.0, "values/cycle", "loads and stores together")
    masked_store: float = figure(0.08, "vectors/cycle", "stores under a mask in a register")
    gather: float = figure(0.05, "vectors/cycle", "gathers")
    reached: float = figure(
        0.95, "share", "of these rates that loops reach, as ports fill unevenly"
    )

    # --- Latency.
    fma_latency: float = figure(4.0, "cycles", "of a multiply-add", probed=True)
    add_latency: float = figure(3.0, "cycles", "of an addition", probed=True)
    compare_latency: float = figure(1.0, "cycles", "of a minimum or maximum", probed=True)
    logic_latency: float = figure(1.0, "cycles", "of logic", probed=True)
    shuffle_latency: float = figure(1.5, "cycles", "of a permutation", probed=True)
    convert_latency: float = figure(3.0, "cycles", "of a conversion", probed=True)
    divide_latency: float = figure(11.0, "cycles", "of a division", probed=True)
    load_latency: float = figure(7.0, "cycles", "of a load of a vector")
    forward_latency: float = figure(8.0, "cycles", "from a store to a load of the same place")
    loop_end: float = figure(10.0, "cycles", "of the end of a loop with many iterations")
    guard: float = figure(1.3, "cycles", "of a guard that only some iterations pass")

    # --- Memory.
    l2_line: float = figure(2.0, "cycles", "a cache line from the second level", probed=True)
    l3_line: float = figure(3.4, "cycles", "a cache line from the third level", probed=True)
    memory_line: float = figure(12.0, "cycles", "a cache line from memory", probed=True)
    start: float = figure(150.0, "cycles", "the start of a phase")
    cold_code: float = figure(2.3, "cycles", "a line of a kernel's LLVM text, to fetch its code")

    def to_record(self) -> dict[str, float]:
        """Returns the figures by name, for JSON."""
        return record_of(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Rates:
        """Returns the rates written by `to_record`; missing figures have their defaults.

        Errors: I290 for an unknown figure, or one that is no positive number in reach.
        """
        return cls(**figures_in(record, cls, "rate"))


DEFAULT_RATES: Final = Rates()
"""The rates of a machine that has not been measured."""

_WIDE_BITS: Final = 512


def described_rates(vector_bits: int, costs: Costs) -> Rates:
    """Returns the rates of a machine from its description: its vector width and its costs.

    A core with 512-bit vectors executes two vector instructions per cycle, of any class, but only
    one permutation or conversion. A core with one unit for multiply-adds has half of the ports.
    """
    found = {
        "ghz": costs.ghz,
        "fma": costs.multiply_adds,
        "fma_latency": costs.multiply_add_latency,
        "divide": 1 / costs.division,
        "loads": costs.loads,
        "issue": costs.issue,
    }
    if vector_bits >= _WIDE_BITS:
        pair = max(2.0, costs.multiply_adds)
        found |= dict.fromkeys(("add", "logic", "vectors", "fma_add", "fma_shuffle"), pair)
        found |= {"add_shuffle": pair, "shuffle": 1.0, "convert": 1.0, "add_latency": 4.0}
        found |= {"compare_latency": 4.0, "convert_latency": 4.0, "masked_store": 1.0}
    if costs.multiply_adds <= 1.0:
        found |= {"add": 1.0, "logic": 2.0, "vectors": 2.0, "fma_add": 2.0, "fma_shuffle": 2.0}
    return replace(DEFAULT_RATES, **found)
