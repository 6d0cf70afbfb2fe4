"""The rows of the table of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clew.ir.types import bits
from clew.quantization.parameters import Parameters
from clew.quantization.ranges import Histogram
from clew.quantization.simulate import LocalError
from clew.quantization.sites import Site, point_name
from clew.quantization.sums import Addend
from clew.quantization.table import LayerRow


@dataclass(frozen=True)
class Measured:
    """Figures of calibration by layer: distributions and extremes of operands, errors on exact
    operands, and errors of the outputs if the layer alone is quantized; and distributions of
    operands of sums, by value; and divergences of the logits if only one layer is quantized.
    """

    histograms: Mapping[str, Histogram]
    extremes: Mapping[str, tuple[float, float]]
    local: Mapping[str, LocalError]
    alone: Mapping[str, float]
    by_value: Mapping[int, Histogram] = field(default_factory=dict)
    divergences: Mapping[str, float] = field(default_factory=dict)


def layer_rows(
    sites: Sequence[Site],
    parameters: Sequence[Parameters],
    kept: Mapping[str, str],
    measured: Measured | None = None,
) -> tuple[LayerRow, ...]:
    """Returns the rows of sites; those that are in `kept` have no figures of integers."""
    known = {p.site.name: p for p in parameters}
    rows = []
    for site in sites:
        row = LayerRow(site.name, site.call.op_name, point_name(site.data), kept.get(site.name, ""))
        p = known.get(site.name)
        if p is not None:
            row = replace(
                row,
                dtypes=_dtypes(p),
                scale=None if p.grid is None else p.grid.scale,
                zero=None if p.grid is None else p.grid.zero,
            )
            if site.name not in kept:
                of_weight = min(p.scheme.weight_bits, bits(p.scheme.weights))
                of_operand = 32 if p.scheme.is_weight_only else 8
                row = replace(row, operand_bits=of_operand, weight_bits=of_weight)
        if p is not None and measured is not None:
            found, local = measured.histograms[site.name], measured.local[site.name]
            left = local.corrected if p.scheme.bias_correction else local.error
            row = replace(
                row,
                low=measured.extremes[site.name][0],
                high=measured.extremes[site.name][1],
                clipped=_clipped(p, found),
                sqnr_db=_decibels(local.signal, left),
                alone=measured.alone.get(site.name),
                divergence=measured.divergences.get(site.name),
            )
        rows.append(row)
    return tuple(rows)


def sum_rows(addends: Sequence[Addend], measured: Measured | None = None) -> tuple[LayerRow, ...]:
    """Returns the rows of operands of sums."""
    rows = []
    for a in addends:
        assert a.grid is not None
        row = LayerRow(
            a.sum.name,
            a.sum.call.op_name,
            point_name(a.value),
            dtypes=a.grid.dtype,
            scale=a.grid.scale,
            zero=a.grid.zero,
            operand_bits=bits(a.grid.dtype),
            weight_bits=0,
        )
        if measured is not None:
            found = measured.by_value[a.value.id]
            clipped = found.outside(a.grid.low, a.grid.high)
            row = replace(row, low=found.low, high=found.high, clipped=clipped)
        rows.append(row)
    return tuple(rows)


def _dtypes(p: Parameters) -> str:
    groups = f" in groups of {p.block}" if p.block and p.scheme.group else ""
    return f"{p.scheme.activations} x {p.scheme.weights}{groups}"


def _clipped(p: Parameters, found: Histogram) -> float | None:
    if p.scheme.is_weight_only:
        return None
    return 0.0 if p.grid is None else found.outside(p.grid.low, p.grid.high)


def with_errors(rows: Sequence[LayerRow], errors: Mapping[str, float]) -> tuple[LayerRow, ...]:
    """Returns the rows with the errors of the results of their layers."""
    return tuple(replace(row, error=errors.get(row.layer)) for row in rows)


def _decibels(signal: float, error: float) -> float:
    if error <= 0 or signal <= 0:
        return math.inf if signal > 0 else 0.0
    return 10 * math.log10(signal / error)
