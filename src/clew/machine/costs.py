"""The cost of work on one core: the only table of such figures in clew.

Cost models (`clew.cost`) and the run time read this table and contain no figures. `clew machine`
measures the figures that have a probe (`clew.machine.measure`) on this machine. All other targets
have the defaults below, measured on x86 server cores with 512-bit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clew.machine.figures import figure, figures_in, record_of
from clew.support.dataclass import dataclass

FS_PER_NS: Final = 1_000_000
"""Costs at given sizes are numbers of nanoseconds; functions of sizes are in femtoseconds."""


@dataclass(frozen=True)
class Costs:
    """The cost of work on one core of a machine.

    A *vector* is a full vector register. `about` has the unit and the meaning of each figure.
    """

    # --- The clock and the arithmetic units.
    ghz: float = figure(4.0, "GHz", "clock rate of a busy core", probed=True)
    multiply_adds: float = figure(
        2.0, "vectors/cycle", "f32 multiply-adds on independent accumulators", probed=True
    )
    multiply_add_latency: float = figure(
        4.0, "cycles", "from a multiply-add to one that needs its result", probed=True
    )
    division: float = figure(16.0, "cycles/vector", "division of f32", probed=True)
    reached: float = figure(0.85, "share", "of `multiply_adds` that register tiles reach")
    short_pairs: float = figure(
        0.59, "share", "of `multiply_adds` for bytes that are added in pairs of 16 bits first"
    )
    loads: float = figure(2.0, "vectors/cycle", "loads from the first-level cache")
    gather: float = figure(16.0, "loads", "a vector gathered element by element")
    issue: float = figure(6.0, "instructions/cycle", "instructions issued")
    transform_step: float = figure(
        1.0, "cycles/vector", "one step (load, add or store) of a Winograd transform"
    )

    # --- Memory, as one core sees it.
    move: float = figure(
        4.0,
        "cycles/vector",
        "read or written beyond the second-level cache, streaming",
        probed=True,
    )
    weight_bytes: float = figure(
        5.0, "bytes/cycle", "weights that are read once in a run", probed=True
    )
    panel_gain: float = figure(
        1.6, "ratio", "how much faster weights arrive in long panels, prefetched ahead"
    )

    # --- Matrix units.
    tile_product: float = figure(14.0, "cycles", "a product of tiles, at least")
    tile_base: float = figure(10.0, "cycles", "a product of tiles, besides its rows")
    tile_load: float = figure(8.0, "loads", "a tile loaded")
    tile_store: float = figure(16.0, "stores", "a tile stored")
    tile_row: float = figure(1.0, "cycles", "each row of a product of tiles")
    tile_step: float = figure(
        16.0, "cycles", "a product of full tiles in a loop of them", probed=True
    )
    split: float = figure(11.0, "cycles/vector", "splitting f32 into bf16 terms")

    # --- Rough figures to divide a kernel's phases among threads: averages over many kernels.
    phase_store: float = figure(2.0, "cycles/vector", "a statement")
    phase_operation: float = figure(0.2, "cycles/vector", "an operation of an expression")
    phase_multiply_add: float = figure(0.8, "cycles/vector", "a step of a sum of products")
    phase_function: float = figure(8.0, "cycles/vector", "a function such as exp")
    phase_byte: float = figure(0.16, "cycles/byte", "traffic through the shared cache")
    tile_speedup: float = figure(1000.0, "ratio", "elements a matrix unit multiplies per operation")

    # --- Threads.
    serial_below: float = figure(8000.0, "ns", "work that is not worth a second thread")
    least_chunk: float = figure(3000.0, "ns", "work that is not worth claiming separately")
    foreign_byte: float = figure(0.1, "ns/byte", "read after another core has written it")
    constant_byte: float = figure(0.035, "ns/byte", "weights that several threads read")

    @property
    def vector_multiply_adds(self) -> float:
        """Vectors a register tile multiplies and adds per cycle."""
        return self.multiply_adds * self.reached

    def ns(self, cycles: float) -> float:
        """Returns the nanoseconds of a number of cycles."""
        return cycles / self.ghz

    def to_record(self) -> dict[str, float]:
        """Returns the figures by name, for JSON."""
        return record_of(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Costs:
        """Returns the costs written by `to_record`; missing figures have their defaults.

        Errors: I290 for an unknown figure, or one that is no positive number in reach.
        """
        return cls(**figures_in(record, cls, "cost"))


DEFAULTS: Final = Costs()
"""The costs of a machine that has not been measured."""
