"""The peaks of sums of products on this machine, by the dtypes of the factors."""

from __future__ import annotations

from clew.ir.types import bits, is_integer
from clew.machine.probes.peak import DotPeak, TilePeak
from clew.machine.target import host
from clew.machine.units import DotUnit, TileUnit


class ProductPeaks:
    """The peaks of sums of products on a number of threads; `f32_gflops` is that of f32, and each
    other is measured on first use.
    """

    def __init__(self, f32_gflops: float, threads: int) -> None:
        self._threads = threads
        self._known: dict[DotUnit | TileUnit | None, float] = {None: f32_gflops}

    def __call__(self, data: str, weight: str) -> float:
        """Returns operations per nanosecond, two for each multiply-add, of the fastest unit that
        multiplies such factors, in either order. Factors without such an instruction are multiplied
        at the rate of f32.
        """
        unit = unit_of(data, weight)
        known = self._known.get(unit)
        if known is None:
            assert unit is not None, "the peak of f32 is given"
            known = self._known[unit] = _measured(unit, self._threads)
        return known


def unit_of(data: str, weight: str) -> DotUnit | TileUnit | None:
    """Returns this machine's unit for products of two dtypes, matrix units first; None if they are
    multiplied like f32.

    Factors of 8 bits may have either sign: one of them can be shifted to the sign that a unit
    takes, at no cost for each product.
    """
    here = host()
    units: list[DotUnit | TileUnit] = [*here.tile_units, *here.dot_units]
    for unit in units:
        pair = (unit.data, unit.weight)
        bytes_alike = all(is_integer(d) and bits(d) == 8 for d in (data, weight, *pair))
        if bytes_alike or pair in ((data, weight), (weight, data)):
            return unit
    return None


def _measured(unit: DotUnit | TileUnit, threads: int) -> float:
    if isinstance(unit, DotUnit):
        return DotPeak(unit).gflops(threads)
    # All products of tiles take the same time: rows of tiles have a number of bytes.
    return TilePeak().gflops(threads) * bits("bf16") / bits(unit.data)
