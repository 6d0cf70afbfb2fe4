"""The layers of a quantized model as a table that adapts to the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from clew.quantization.settled import SHOWN_SAMPLES
from clew.quantization.times import Timing
from clew.support.shown import counted
from clew.support.tables import table

_ROOMY: Final = 130
_NARROW_NAME: Final = 18
_WIDE_NAME: Final = 40


@dataclass(frozen=True)
class LayerRow:
    """A layer with a product, and how it was quantized.

    `low` and `high` are the extremes of the operand that calls bring, over all samples; `clipped`
    is the share of its elements outside of the range that integers stand for. `sqnr_db` is the
    ratio of the result's mean square to that of its error on exact operands, in decibels. `alone`
    is the relative error of the model's outputs if only this layer is quantized, and `error` that
    of the layer's own result in the quantized model, which includes the errors of its operands.
    `divergence` is the mean Kullback-Leibler divergence of the logits' softmax if only this layer
    is quantized, in nats.
    `operand_bits` and `weight_bits` are 32 in floats. `kept` is the reason why the layer stays in
    floats, or "". Numbers that were not measured are None.

    The row of a sum is about an operand that is rounded. It has no `weight_bits`.
    """

    layer: str
    op: str
    value: str
    kept: str = ""
    dtypes: str = ""
    low: float | None = None
    high: float | None = None
    scale: float | None = None
    zero: int | None = None
    clipped: float | None = None
    sqnr_db: float | None = None
    alone: float | None = None
    error: float | None = None
    operand_bits: int = 32
    weight_bits: int = 32
    divergence: float | None = None


class LayersTable:
    """The rows, for rich: with as many columns as fit."""

    def __init__(self, rows: Sequence[LayerRow], timing: Timing | None) -> None:
        self._rows, self._timing = rows, timing

    def __repr__(self) -> str:
        return f"<LayersTable {counted(len(self._rows), 'layer')}>"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield layers_table(self._rows, self._timing, options.max_width)


def layers_table(rows: Sequence[LayerRow], timing: Timing | None, columns: int) -> Table:
    """Returns the table for a number of columns. Columns without any number are left out, and the
    operator and the operand if the table is too narrow for them, or for the names of layers.
    """
    roomy = columns >= _ROOMY
    long = not roomy and any(len(r.layer) > _NARROW_NAME for r in rows)
    width = _WIDE_NAME if roomy or long else _NARROW_NAME
    heads = ["layer", "operator", "operand"] if roomy else ["layer", *([] if long else ["operand"])]
    numbers = {
        "bits": [_bits(r) for r in rows],
        "range": [_range(r) for r in rows],
        "clipped": ["" if r.clipped is None else f"{100 * r.clipped:.2g} %" for r in rows],
        "SQNR": ["" if r.sqnr_db is None else f"{r.sqnr_db:.1f} dB" for r in rows],
        "alone": ["" if r.alone is None else f"{r.alone:.1e}" for r in rows],
        "KL": ["" if r.divergence is None else f"{r.divergence:.1e}" for r in rows],
        "error": ["" if r.error is None else f"{r.error:.1e}" for r in rows],
    }
    if timing is not None:
        times = [timing.of(r.layer) for r in rows]
        numbers |= {
            "f32 µs": ["" if t is None else _us(t.float_us) for t in times],
            "bf16": ["" if t is None else _us(t.bf16_us) for t in times],
            "int8": ["" if t is None else _us(t.quantized_us) for t in times],
        }
    numbers = {head: cells for head, cells in numbers.items() if any(cells)}
    because = ["in floats because"] if roomy and any(r.kept for r in rows) else []
    made = table(*heads, *numbers, *because, right=tuple(numbers))
    for column in made.columns[: len(heads)]:
        column.overflow, column.no_wrap = "ellipsis", True
        column.max_width = width
    for n, row in enumerate(rows):
        names = [row.layer, row.op, row.value] if roomy else [row.layer, row.value][: len(heads)]
        made.add_row(
            *names, *(cells[n] for cells in numbers.values()), *([row.kept] if because else [])
        )
    return made


def legend(rows: Sequence[LayerRow]) -> list[str]:
    """Returns the meaning of the error columns, and why layers are in floats, as lines."""
    found = []
    if any(r.alone is not None for r in rows):
        found.append("alone: error of the outputs if only this layer is quantized")
    if any(r.divergence is not None for r in rows):
        found.append("KL: divergence of the logits if only this layer is quantized, in nats")
    if any(r.error is not None for r in rows):
        found += [
            "error: of the layer's own result in the quantized model, with those of earlier layers",
            f"    (from at most {SHOWN_SAMPLES} samples, unless a bound or sensitivities need all)",
        ]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.kept:
            reasons.setdefault(row.kept, []).append(row.layer)
    for why, layers in reasons.items():
        found.append(f"in floats, {why}: {', '.join(layers)}")
    return found


def _bits(row: LayerRow) -> str:
    """Returns the dtypes of the operand and of the weight, with the bits that are used."""
    if row.kept or not row.dtypes:
        return "f32"
    operand, _, weight = row.dtypes.partition(" x ")
    if not weight:
        return operand
    weight, _, group = weight.partition(" in groups of ")
    groups = f" by {group}" if group else ""
    return f"{operand} x {weight.rstrip('0123456789')}{row.weight_bits}{groups}"


def _range(row: LayerRow) -> str:
    return "" if row.low is None or row.high is None else f"{row.low:.3g} to {row.high:.3g}"


def _us(us: float | None) -> str:
    if us is None:
        return ""
    return f"{us:.0f}" if us >= 100 else f"{us:.3g}" if us >= 1 else f"{us:.2f}"
