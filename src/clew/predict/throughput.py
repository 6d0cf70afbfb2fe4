"""The cycles of a kernel's loops on one core, with all operands in the first-level cache.

Each loop takes as long as its bottleneck: a port or a group of ports, the front end, or a chain of
dependent instructions across iterations. A core executes out of order within its window, so short
inner loops overlap with the code around them, and chains of several iterations with each other.

Source: Abel and Reineke, uiCA, 2022; Laukemann et al., OSACA, 2018; Derumigny et al., Palmed, 2022
(resources as groups of classes, measured by loops that mix these).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.machine.mnemonics import Instruction, registers_in
from clew.machine.rates import Rates
from clew.predict.assembly import Block, Loop

Array = np.ndarray[Any, Any]

RESOURCES: Final = (
    "fma", "add", "logic", "shuffle", "convert", "transfer", "vectors", "fma_add", "fma_shuffle",
    "add_shuffle", "divide", "loads", "stores", "accesses", "masked_store", "gather", "scalar",
    "multiply", "branch", "issue",
)  # fmt: skip
"""Parts of a core, by the names of their rates."""
_PLACE: Final = {name: place for place, name in enumerate(RESOURCES)}
_USES: Final = {
    "fma": ("fma", "fma_add", "fma_shuffle", "vectors"),
    "add": ("add", "fma_add", "add_shuffle", "vectors"),
    "compare": ("add", "fma_add", "add_shuffle", "vectors"),
    "select": ("fma", "fma_add", "fma_shuffle", "vectors"),
    "logic": ("logic", "vectors"),
    "shuffle": ("shuffle", "fma_shuffle", "add_shuffle", "vectors"),
    "convert": ("convert", "add", "fma_add", "vectors"),
    "transfer": ("transfer", "vectors"),
    "divide": ("divide", "fma"),
    "gather": ("gather",),
    "masked_store": ("masked_store",),
    "scalar": ("scalar",),
    "multiply": ("multiply", "scalar"),
    "branch": ("branch",),
    "prefetch": ("loads", "accesses"),
    "tile": (),
    "none": (),
}
_SCALAR_DIVISION: Final = 0.6  # a division of at most 128 bits, relative to one of a wider vector
_NARROW_BITS: Final = 128
_SCALAR_BITS: Final = 64
_SCALAR_LOAD: Final = 4.0  # cycles
_PREDICTED_TRIPS: Final = 16  # the branch predictor learns when a loop with fewer trips ends


@dataclass(frozen=True)
class Run:
    """One run of a loop (or a function): cycles, instructions, use of each resource, and the
    instructions themselves if they are few.
    """

    cycles: float
    instructions: float
    use: Array
    code: list[Instruction]


class Core:
    """A core with given rates."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self._capacity = np.array([getattr(rates, name) for name in RESOURCES])
        one = {"load": rates.load_latency, "none": 0.0, "scalar": 1.0, "multiply": 3.0,
               "branch": 1.0, "prefetch": 0.0, "transfer": 2.0, "tile": 16.0, "masked_store": 1.0,
               "gather": 20.0}  # fmt: skip
        self._merged = rates.window / 2
        one["select"] = rates.logic_latency
        for kind in ("fma", "add", "compare", "logic", "shuffle", "convert", "divide"):
            one[kind] = getattr(rates, f"{kind}_latency")
        self._latency = one

    def run(self, loop: Loop) -> Run:
        """Returns one run of a loop, with all its iterations."""
        rates = self.rates
        use, count, apart, beyond = np.zeros(len(RESOURCES)), 0.0, 0.0, 0.0
        straight: list[Instruction] = []
        for part in loop.parts:
            if isinstance(part, Block):
                own = self.use(part.code)
                use += part.share * own
                count += part.share * own[_PLACE["issue"]]
                straight += part.code
                apart += rates.guard * max(0.0, min(part.share, 1 - part.share))
                continue
            inner = self.run(part)
            if inner.instructions <= self._merged:
                use += part.share * inner.use
                count += part.share * inner.instructions
                straight += inner.code
            else:
                apart += part.share * inner.cycles
                beyond += part.share * inner.instructions
        busiest = float((use / self._capacity).max()) / rates.reached
        repeats = loop.trips if loop.number and not beyond else 1.0
        each = apart + max(busiest, self.waits(straight, repeats))
        total = loop.trips * (count + beyond)
        cycles = loop.trips * each
        if loop.number and loop.trips > _PREDICTED_TRIPS and total > self._merged:
            cycles += rates.loop_end
        few = loop.number and not beyond and total <= self._merged
        code = straight * round(loop.trips) if few else []
        return Run(cycles, total, loop.trips * use, code)

    def use(self, code: Sequence[Instruction]) -> Array:
        """Returns how many instructions of straight-line code use each resource."""
        used = np.zeros(len(RESOURCES))
        compared = False
        for one in code:
            for name in _USES[one.kind]:
                used[_PLACE[name]] += 1.0
            if one.kind == "divide" and one.bits <= _NARROW_BITS:
                used[_PLACE["divide"]] += _SCALAR_DIVISION - 1
            if one.load:
                narrow = self.rates.loads / self.rates.scalar_loads
                used[_PLACE["loads"]] += 1.0 if one.bits > _NARROW_BITS else narrow
                used[_PLACE["accesses"]] += 1.0
            if one.store and one.kind != "masked_store":
                used[_PLACE["stores"]] += 1.0
                used[_PLACE["accesses"]] += 1.0
            # A comparison and a branch after it are fused.
            used[_PLACE["issue"]] += 0.0 if one.kind == "branch" and compared else 1.0
            compared = one.kind == "scalar" and "flags" in one.writes
        return used

    def waits(self, code: Sequence[Instruction], times: float) -> float:
        """Returns the cycles of one repetition of straight-line code whose instructions wait only
        for their operands, for the front end and for room in the window, which instructions leave
        in order.
        """
        if not code:
            return 0.0
        rates, latency = self.rates, self._latency
        window, most, step = int(rates.window), int(rates.vector_window), 1 / rates.issue
        repeats = int(min(max(1.0, times), 2 + -(-2 * window // len(code))))
        ready: dict[str, float] = {}
        version: dict[str, int] = {}
        ended: list[float] = []
        vectors: list[float] = []
        marks: list[float] = []
        last = begin = 0.0
        compared = False
        for _ in range(repeats):
            for one in code:
                # A comparison and a branch after it are fused.
                begin += 0.0 if one.kind == "branch" and compared else step
                compared = one.kind == "scalar" and "flags" in one.writes
                vector = one.bits > _SCALAR_BITS and bool(one.writes)
                if len(ended) >= window:
                    begin = max(begin, ended[-window])
                if vector and len(vectors) >= most:
                    begin = max(begin, vectors[-most])
                at = max((ready.get(name, 0.0) for name in one.reads), default=0.0)
                at = max(at, begin)
                if one.load:
                    near = latency["load"] if one.bits > _SCALAR_BITS else _SCALAR_LOAD
                    stored = ready.get(_place(one.load, version))
                    at = max(at, begin + near)
                    at = at if stored is None else max(at, stored + rates.forward_latency)
                at += latency[one.kind]
                for name in one.writes:
                    ready[name] = at
                    version[name] = version.get(name, 0) + 1
                if one.store:
                    ready[_place(one.store, version)] = at
                last = max(last, at)
                ended.append(last)
                if vector:
                    vectors.append(last)
            marks.append(last)
        if repeats == 1:
            return last if len(code) > window else 0.0
        half = repeats // 2
        return (marks[-1] - marks[half - 1]) / (repeats - half)


def _place(operand: str, version: dict[str, int]) -> str:
    """Returns a name for an operand's place in memory; it changes when its registers do."""
    return f"{operand}@{[version.get(name, 0) for name in registers_in(operand)]}"
