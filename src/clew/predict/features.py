"""The features of a kernel from which a predictor learns the ratio to the analytic estimate: sizes,
and the shares that cycles, cache lines and bytes have in the estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from clew.predict.analytic import USED
from clew.predict.footprints import LINE_BYTES, RUNS
from clew.predict.instructions import CLASSES, PARTS
from clew.predict.program import AGED, AGES, DISTANCES, KINDS
from clew.predict.table import CACHES

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Any]

_CLASSES: Final = range(len(DISTANCES) + 1)
_PLACES: Final = {kind: [f"{kind}_bytes_{n}" for n in _CLASSES] for kind in KINDS}
_AGED: Final = {kind: [f"{kind}_aged_{n}" for n in range(len(AGES) + 1)] for kind in AGED}
_LINES: Final = [[f"lines_{c}_{run}" for run in range(len(RUNS) + 1)] for c in range(CACHES)]
_COUNTS: Final = tuple(f"count_{name}" for name in CLASSES)
_WORK: Final = ("cycles", "core_cycles", *(f"{name}_cycles" for name in PARTS if name != "all"))
# Distances from which on bytes are summed: what is farther takes at least as long.
_FROM: Final = (0, 2, 4, 6, 7, 8, 9, 11, 12, 13, 14)
_SIZES: Final = (
    "flops", "product_flops", "bytes", "argument_bytes", "result_bytes", "workspace_bytes",
    "scratch_bytes", "text_lines", "loop_depth", "phases", "grid", "chunks", "shared", "span",
    "constant_read_bytes", "written_bytes", "program_constant_bytes", "program_arena_bytes",
    "program_bytes", "program_kernels", "position", "cycles", "iterations", "inner_iterations",
)  # fmt: skip
# Compared with the analytic estimate.
_RATIOS: Final = (
    *_WORK, "iterations", "inner_iterations", "bytes", "scratch_bytes", "workspace_bytes",
    "written_bytes", "constant_read_bytes",
)  # fmt: skip
_PER_ITERATION: Final = tuple(f"count_{name}" for name in CLASSES if not name.startswith("tile"))
_LEAST_SHARE: Final = 0.02  # shares below are alike
_LINE_NS: Final = 5.0  # roughly

NUMBERS: Final = tuple(
    dict.fromkeys(
        (
            *USED, *_SIZES, *_RATIOS, *_WORK, *_COUNTS,
            *chain(*_PLACES.values(), *_AGED.values(), *_LINES),
        )
    )
)  # fmt: skip
"""The numeric columns used by features, in addition to `rules` and `ops`."""


def _column(columns: Columns, name: str) -> Array:
    return np.asarray(columns[name], np.float64)


def _from(columns: Columns, names: Sequence[str]) -> list[Array]:
    """Returns sums of columns: from each one on to the last."""
    found = np.cumsum([_column(columns, name) for name in reversed(names)], axis=0)
    return list(found[::-1])


def facts(columns: Columns, base_ns: Array) -> Array:
    """Returns f64[rows, facts]: logarithms of sizes and of shares in the first estimate, shares of
    operands by distance and age, and instructions per iteration.
    """
    base = np.maximum(base_ns, 1.0)
    made = [np.log1p(_column(columns, name)) for name in _SIZES]
    made += [_share(_column(columns, name), base) for name in _RATIOS]
    for runs in _LINES:
        sums = _from(columns, runs[::-1])
        made += [_share(_LINE_NS * sums[0], base), _share(_LINE_NS * sums[-1], base)]
    for names in _PLACES.values():
        sums = _from(columns, names)
        made += [sums[n] / np.maximum(sums[0], 1.0) for n in _FROM]
    for kind, names in _AGED.items():
        whole = np.maximum(_from(columns, _PLACES[kind])[0], 1.0)
        for aged in _from(columns, names)[1:-1]:
            made += [aged / whole, _share(_LINE_NS * aged / LINE_BYTES, base)]
    iterations = np.maximum(_column(columns, "iterations"), 1.0)
    made += [_column(columns, name) / iterations for name in _PER_ITERATION]
    cycles = np.maximum(_column(columns, "cycles"), 1.0)
    made += [_column(columns, name) / cycles for name in _WORK[1:]]
    made.append(np.log(base))
    return np.stack(made, axis=1)


def _share(quantity: Array, base: Array) -> Array:
    return np.asarray(np.log(_LEAST_SHARE + quantity / base))


FACT_COUNT: Final = (
    len(_SIZES)
    + len(_RATIOS)
    + 2 * len(_LINES)
    + len(_FROM) * len(_PLACES)
    + 2 * sum(len(names) - 2 for names in _AGED.values())
    + len(_PER_ITERATION)
    + len(_WORK)
)
"""The number of facts in `facts`."""


def feature_count(rules: Sequence[str], ops: Sequence[str]) -> int:
    """Returns the number of features with a vocabulary."""
    return FACT_COUNT + len(rules) + len(ops)


def first_rules(columns: Columns) -> list[str]:
    """Returns the first schedule rule of each row, which identifies the kind of kernel."""
    return [rules[0] if len(rules) else "" for rules in columns["rules"]]


def vocabulary(columns: Columns) -> tuple[list[str], list[str]]:
    """Returns the schedule rules and the operators that occur, in order."""
    rules = sorted({rule for row in columns["rules"] for rule in row})
    ops = sorted({op for row in columns["ops"] for op in row})
    return rules, ops


def features(columns: Columns, base_ns: Array, rules: Sequence[str], ops: Sequence[str]) -> Array:
    """Returns f64[rows, features]: the facts, and counts of each rule and operator in a
    vocabulary.
    """
    counts = [*_counted(columns["rules"], rules), *_counted(columns["ops"], ops)]
    made = facts(columns, base_ns)
    return np.concatenate([made, np.stack(counts, axis=1)], axis=1) if counts else made


def _counted(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[Array]:
    place = {name: n for n, name in enumerate(names)}
    counts = np.zeros((len(names), len(rows)))
    for number, row in enumerate(rows):
        for name in row:
            if name in place:
                counts[place[name], number] += 1
    return list(counts)
