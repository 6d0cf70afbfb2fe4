"""Facts of an operator as columns of a table: one number or text each, the same for all operators.

`describe_operator` returns lists whose lengths depend on the operator; a table needs a fixed set of
columns. Columns that do not apply are absent. `docs/profile.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

AXES: Final = "dhw"
"""The axes of windows, the last one last: windows of one axis have `w` only."""

_WINDOWS: Final = {"kernel": "kernel", "stride": "strides", "dilation": "dilation"}
_TEXTS: Final = {"fusion_kind": "kind", "dtype": "dtype", "layout": "layout"}
_SHAPES: Final = {"input_shapes": "inputs", "output_shapes": "outputs"}
NUMBERS: Final = (
    "groups", "channels_in", "channels_out", "batch", "m", "n", "k",
    *(f"{name}_{axis}" for name in (*_WINDOWS, "pad_begin", "pad_end") for axis in AXES),
)  # fmt: skip
"""The columns that are integers."""
COLUMNS: Final = (*_TEXTS, *_SHAPES, *NUMBERS)
"""The columns that `flat` may return."""


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an operator's facts (`describe_operator`) as columns of `COLUMNS`; shapes are texts
    such as `1x64x56x56`.
    """
    row: dict[str, Any] = {c: facts[name] for c, name in _TEXTS.items() if name in facts}
    for column, name in _SHAPES.items():
        if name in facts:
            row[column] = [shape_text(value) for value in facts[name]]
    for column, name in _WINDOWS.items():
        row |= _by_axis(column, facts.get(name))
    padding = facts.get("padding")
    if isinstance(padding, list):
        half = len(padding) // 2
        row |= _by_axis("pad_begin", padding[:half]) | _by_axis("pad_end", padding[half:])
    row |= {name: facts[name] for name in NUMBERS if name in facts}
    return {n: v for n, v in row.items() if n not in NUMBERS or isinstance(v, int)}


def window(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of the window of a sum of products; empty for other operators."""
    if "kernel" not in facts or "product_flops" not in facts:
        return {}
    return {name: facts[name] for name in (*_WINDOWS.values(), "padding", "groups")}


def anchor_of(operators: Sequence[Mapping[str, Any]]) -> int:
    """Returns the position of the operator that most of a kernel's work is expected in: the one
    with the most products, else the most FLOPs, else the first.
    """

    def work(position: int) -> tuple[int, int]:
        facts = operators[position]
        return _number(facts.get("product_flops")), _number(facts.get("flops"))

    return max(range(len(operators)), key=work)


def shape_text(described: Mapping[str, Any]) -> str:
    """Returns the shape of a described type: `scalar` without axes, empty if it is not a tensor."""
    shape = described.get("shape")
    return "" if shape is None else "x".join(map(str, shape)) or "scalar"


def sizes_text(facts: Mapping[str, Any]) -> str:
    """Returns an operator's sizes in a line: `1x16x32x32 -> 1x32x16x32, 3x5/2x1, 4 groups`."""
    if not facts:
        return ""
    shapes = [", ".join(map(shape_text, facts[name])) for name in ("inputs", "outputs")]
    parts = [" -> ".join(shapes)]
    window, strides, groups = (facts.get(name) for name in ("kernel", "strides", "groups"))
    if window:
        parts.append(f"{_times(window)}/{_times(strides)}")
    if groups not in (None, 1):
        parts.append(f"{groups} groups")
    return ", ".join(parts)


def _times(sizes: Any) -> str:
    return "x".join(map(str, sizes)) if isinstance(sizes, list) else str(sizes)


def _by_axis(column: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, list) or not 0 < len(values) <= len(AXES):
        return {}  # of no window, or held by an argument
    axes = AXES[-len(values) :]
    return {f"{column}_{axis}": value for axis, value in zip(axes, values, strict=True)}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
