"""Estimates the time of a kernel from its instructions and the cache lines it touches, without
training.

A core computes and fetches lines at the same time, so a kernel takes about as long as the slower of
the two: the cycles of its loops (`throughput.py`), and those of the lines from each level. Lines
come from the level where earlier kernels left them (`program.py`), and lines that a kernel fetches
again come from the level where its own loops left them (`footprints.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.codegen.objects import assembly_of
from clew.machine.rates import Rates
from clew.machine.target import Target, rates_of
from clew.predict.assembly import loops_of
from clew.predict.footprints import LINE_BYTES, RUNS
from clew.predict.frequencies import Frequencies
from clew.predict.program import DISTANCES, KINDS
from clew.predict.throughput import Core
from clew.support.errors import InputError

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Any]

# Exponent: the time is above the longer of the two if they are about equal, and close to it if not.
_OVERLAP: Final = 4.0
# A program's share of a last-level cache that other programs use as well.
_SHARED_BYTES: Final = 16 << 20
# The wait for other threads at the end of a phase.
_BARRIER_NS: Final = 500.0
_LEAST_NS: Final = 50.0
USED: Final = (
    "core_cycles", "span", "phases", "threads", "text_lines",
    *(f"lines_{cache}_{run}" for cache in (0, 2) for run in range(len(RUNS) + 1)),
    *(f"{kind}_bytes_{n}" for kind in KINDS for n in range(len(DISTANCES) + 1)),
)  # fmt: skip
"""The columns that `Analytic.estimate` uses."""


def core_cycles(text: str, found: Mapping[str, Frequencies], target: Target) -> float | None:
    """Returns the cycles of a kernel's loops on one core with all operands in the nearest cache;
    None for an architecture whose instructions are not known. `found` has the frequencies of its
    text.
    """
    if not target.triple.startswith("x86_64"):
        return None
    loops = loops_of(
        assembly_of(text, target),
        {symbol: one.trips for symbol, one in found.items()},
        {symbol: one.shares for symbol, one in found.items()},
    )
    core = Core(rates_of(target)[0])
    return sum(core.run(loops[s]).cycles for s in found if s in loops)


@dataclass(frozen=True)
class Analytic:
    """The analytic model of one machine: the rates of its cores, and the sizes of their caches."""

    rates: Rates
    l1_bytes: float
    l2_bytes: float

    @classmethod
    def of(cls, target: Target) -> Analytic:
        """Returns the model of a target."""
        return cls(rates_of(target)[0], target.l1_bytes, target.l2_bytes)

    def to_record(self) -> dict[str, Any]:
        """Returns the model as JSON objects."""
        sizes = {"l1_bytes": self.l1_bytes, "l2_bytes": self.l2_bytes}
        return {"rates": self.rates.to_record(), **sizes}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Analytic:
        """Returns the model written by `to_record`. Errors: ValueError and others if it is
        invalid.
        """
        sizes = [float(record[name]) for name in ("l1_bytes", "l2_bytes")]
        if not all(math.isfinite(size) and size > 0 for size in sizes):
            raise ValueError("sizes of caches are positive")
        try:
            return cls(Rates.of_record(record["rates"]), *sizes)
        except InputError as error:
            raise ValueError(error.message) from None

    def estimate(self, columns: Columns) -> tuple[Array, Array]:
        """Returns the nanoseconds of each row, and whether it computes for longer than it fetches
        lines.
        """
        rates = self.rates
        lines = [
            sum(_column(columns, f"lines_{cache}_{run}") for run in range(len(RUNS) + 1))
            for cache in (0, 2)
        ]
        within = [_touched(columns, limit) for limit in (self.l1_bytes, self.l2_bytes)]
        far = _touched(columns, math.inf) - _touched(columns, _SHARED_BYTES)
        beyond_l2 = np.maximum(lines[1] - within[1], 0.0)
        l2 = np.maximum(lines[0] - within[0] - beyond_l2, 0.0)
        l3 = np.maximum(beyond_l2 - far, 0.0)
        memory = rates.l2_line * l2 + rates.l3_line * l3 + rates.memory_line * far
        core = _column(columns, "core_cycles")
        both = (core**_OVERLAP + memory**_OVERLAP) ** (1 / _OVERLAP)
        span, phases = _column(columns, "span"), _column(columns, "phases")
        # The code grows with its text. When a kernel starts, its code is in a far cache.
        starts = rates.start * phases + rates.cold_code * _column(columns, "text_lines")
        waits = np.where(_column(columns, "threads") > 1, _BARRIER_NS * phases * (span < 1), 0.0)
        found: Array = (both * span + starts) / rates.ghz + waits
        return np.maximum(found, _LEAST_NS), core >= memory


def _column(columns: Columns, name: str) -> Array:
    return np.asarray(columns[name], np.float64)


def _touched(columns: Columns, limit: float) -> Array:
    """Returns the lines of operands whose last use is at most `limit` bytes ago."""
    ends = (*DISTANCES, math.inf)
    total = sum(
        _column(columns, f"{kind}_bytes_{n}")
        for kind in KINDS
        for n, end in enumerate(ends)
        if end <= limit
    )
    return np.asarray(total, np.float64) / LINE_BYTES
