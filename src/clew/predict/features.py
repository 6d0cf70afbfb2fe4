"""The features of a kernel for a predictor: physical quantities first, then all other facts.

The *basis* consists of quantities that take proportional time: instructions by class, bytes by the
memory level they come from, phases and chunks to start. The first estimate is a linear model of the
basis without negative coefficients; the trees learn the ratio to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.predict.instructions import CLASSES
from clew.predict.program import DISTANCES, KINDS

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Any]

_DISTANCE_CLASSES: Final = range(len(DISTANCES) + 1)
_PLACES: Final = tuple(f"{kind}_bytes_{n}" for kind in KINDS for n in _DISTANCE_CLASSES)
_COUNTS: Final = tuple(f"count_{name}" for name in CLASSES)
_WORK: Final = ("cycles", "latency_cycles", "iterations", "traffic_l1_bytes", "traffic_l2_bytes")
# Quantities with proportional time, and a constant: divided among threads, or not.
_DIVIDED: Final = (*_COUNTS, *_WORK)
_WHOLE: Final = ("argument_bytes", *_PLACES)
_STARTS: Final = ("phases", "chunks")
_SIZES: Final = (
    "flops", "product_flops", "bytes", "argument_bytes", "result_bytes", "workspace_bytes",
    "scratch_bytes", "text_lines", "loop_depth", "phases", "grid", "chunks", "shared", "span",
    "constant_read_bytes", "written_bytes", "program_constant_bytes", "program_arena_bytes",
    "program_bytes",
    "program_kernels", "position", *_COUNTS, *_WORK, *_PLACES,
)  # fmt: skip
_RATIOS: Final = (
    "cycles", "latency_cycles", "traffic_l1_bytes", "traffic_l2_bytes", "iterations", "flops",
    "product_flops", "written_bytes", "constant_read_bytes", *_COUNTS, *_PLACES,
)  # fmt: skip

NUMBERS: Final = tuple(dict.fromkeys((*_SIZES, "threads")))
"""The numeric columns used by features, in addition to `rules` and `ops`."""


BASIS_COUNT: Final = len((*_DIVIDED, *_WHOLE, *_STARTS)) + 1
"""The number of quantities in `basis`."""


def feature_count(rules: Sequence[str], ops: Sequence[str]) -> int:
    """Returns the number of features with a vocabulary."""
    return len((*_SIZES, *_RATIOS)) + 1 + len(rules) + len(ops)


def basis(columns: Columns) -> Array:
    """Returns f64[rows, quantities]: quantities that take proportional time."""
    span = np.asarray(columns["span"], np.float64)
    parts = [np.asarray(columns[name], np.float64) * span for name in _DIVIDED]
    parts += [np.asarray(columns[name], np.float64) for name in (*_WHOLE, *_STARTS)]
    parts.append(np.ones(len(span)))
    return np.stack(parts, axis=1)


def first_rules(columns: Columns) -> list[str]:
    """Returns the first schedule rule of each row, which identifies the kind of kernel."""
    return [rules[0] if len(rules) else "" for rules in columns["rules"]]


def vocabulary(columns: Columns) -> tuple[list[str], list[str]]:
    """Returns the schedule rules and the operators that occur, in order."""
    rules = sorted({rule for row in columns["rules"] for rule in row})
    ops = sorted({op for row in columns["ops"] for op in row})
    return rules, ops


def features(columns: Columns, base_ns: Array, rules: Sequence[str], ops: Sequence[str]) -> Array:
    """Returns f64[rows, features]: logarithms of sizes, ratios to the first estimate, and counts of
    each rule and operator in a vocabulary.
    """
    base = np.maximum(base_ns, 1.0)
    made = [np.log1p(np.asarray(columns[name], np.float64)) for name in _SIZES]
    made += [np.asarray(columns[name], np.float64) / base for name in _RATIOS]
    made.append(np.log(base))
    made += _counted(columns["rules"], rules)
    made += _counted(columns["ops"], ops)
    return np.stack(made, axis=1)


def _counted(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[Array]:
    place = {name: n for n, name in enumerate(names)}
    counts = np.zeros((len(names), len(rows)))
    for number, row in enumerate(rows):
        for name in row:
            if name in place:
                counts[place[name], number] += 1
    return list(counts)
