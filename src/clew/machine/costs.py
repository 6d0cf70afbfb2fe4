"""The cost of work on one core: the only table of such figures in clew.

Cost models (`clew.cost`) and the run time read this table and contain no figures. `clew machine`
measures the figures that have a probe (`clew.machine.measure`) on this machine. All other targets
have the defaults below, measured on x86 server cores with 512-bit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from functools import cache
from typing import Any, Final

from clew.support.dataclass import dataclass
from clew.support.errors import InputError

FS_PER_NS: Final = 1_000_000
"""Costs at given sizes are numbers of nanoseconds; functions of sizes are in femtoseconds."""

LEAST: Final = 1e-9
MOST: Final = 1e12
"""Figures of files are in between: sums and quotients of such figures are finite."""


def _cost(default: float, unit: str, meaning: str, *, probed: bool = False) -> Any:
    facts = {"unit": unit, "meaning": meaning, "probed": probed}
    return field(default=default, metadata=facts)


@dataclass(frozen=True)
class Costs:
    """The cost of work on one core of a machine.

    A *vector* is a full vector register. `about` has the unit and the meaning of each figure.
    """

    # --- The clock and the arithmetic units.
    ghz: float = _cost(4.0, "GHz", "clock rate of a busy core", probed=True)
    multiply_adds: float = _cost(
        2.0, "vectors/cycle", "f32 multiply-adds on independent accumulators", probed=True
    )
    multiply_add_latency: float = _cost(
        4.0, "cycles", "from a multiply-add to one that needs its result", probed=True
    )
    division: float = _cost(16.0, "cycles/vector", "division of f32", probed=True)
    reached: float = _cost(0.85, "share", "of `multiply_adds` that register tiles reach")
    short_pairs: float = _cost(
        0.59, "share", "of `multiply_adds` for bytes that are added in pairs of 16 bits first"
    )
    loads: float = _cost(2.0, "vectors/cycle", "loads from the first-level cache")
    gather: float = _cost(16.0, "loads", "a vector gathered element by element")
    issue: float = _cost(6.0, "instructions/cycle", "instructions issued")
    transform_step: float = _cost(
        1.0, "cycles/vector", "one step (load, add or store) of a Winograd transform"
    )

    # --- Memory, as one core sees it.
    move: float = _cost(
        4.0,
        "cycles/vector",
        "read or written beyond the second-level cache, streaming",
        probed=True,
    )
    weight_bytes: float = _cost(
        5.0, "bytes/cycle", "weights that are read once in a run", probed=True
    )
    panel_gain: float = _cost(
        1.6, "ratio", "how much faster weights arrive in long panels, prefetched ahead"
    )

    # --- Matrix units.
    tile_product: float = _cost(14.0, "cycles", "a product of tiles, at least")
    tile_base: float = _cost(10.0, "cycles", "a product of tiles, besides its rows")
    tile_load: float = _cost(8.0, "loads", "a tile loaded")
    tile_store: float = _cost(16.0, "stores", "a tile stored")
    tile_row: float = _cost(1.0, "cycles", "each row of a product of tiles")
    tile_step: float = _cost(
        16.0, "cycles", "a product of full tiles in a loop of them", probed=True
    )
    split: float = _cost(11.0, "cycles/vector", "splitting f32 into bf16 terms")

    # --- Rough figures to divide a kernel's phases among threads: averages over many kernels.
    phase_store: float = _cost(2.0, "cycles/vector", "a statement")
    phase_operation: float = _cost(0.2, "cycles/vector", "an operation of an expression")
    phase_multiply_add: float = _cost(0.8, "cycles/vector", "a step of a sum of products")
    phase_function: float = _cost(8.0, "cycles/vector", "a function such as exp")
    phase_byte: float = _cost(0.16, "cycles/byte", "traffic through the shared cache")
    tile_speedup: float = _cost(1000.0, "ratio", "elements a matrix unit multiplies per operation")

    # --- Threads.
    serial_below: float = _cost(8000.0, "ns", "work that is not worth a second thread")
    least_chunk: float = _cost(3000.0, "ns", "work that is not worth claiming separately")
    foreign_byte: float = _cost(0.1, "ns/byte", "read after another core has written it")
    constant_byte: float = _cost(0.035, "ns/byte", "weights that several threads read")

    @property
    def vector_multiply_adds(self) -> float:
        """Vectors a register tile multiplies and adds per cycle."""
        return self.multiply_adds * self.reached

    def ns(self, cycles: float) -> float:
        """Returns the nanoseconds of a number of cycles."""
        return cycles / self.ghz

    def to_record(self) -> dict[str, float]:
        """Returns the figures by name, for JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Costs:
        """Returns the costs written by `to_record`; missing figures have their defaults.

        Errors: I290 for an unknown figure, or one that is no positive number in reach.
        """
        known = {f.name for f in fields(cls)}
        for name, value in record.items():
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name not in known or not number or not LEAST <= value <= MOST:  # also for NaN
                raise InputError(
                    "I290",
                    f"{name} = {value!r} is not a cost of a machine",
                    hint="costs are positive numbers; clew machine lists them",
                )
        return cls(**{name: float(value) for name, value in record.items()})


@dataclass(frozen=True)
class Figure:
    """One figure of a cost table: its meaning, and whether `clew machine` measures it."""

    name: str
    default: float
    unit: str
    meaning: str
    probed: bool


@cache
def figures() -> tuple[Figure, ...]:
    """Returns all figures of `Costs`, in order."""
    return tuple(Figure(f.name, f.default, **f.metadata) for f in fields(Costs))  # type: ignore[arg-type]


DEFAULTS: Final = Costs()
"""The costs of a machine that has not been measured."""
