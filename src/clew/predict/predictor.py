"""Trains on a table of measured kernels, and predicts the times of other kernels.

A prediction is the analytic estimate (`analytic.py`) times a ratio, whose logarithm is the mean of
what boosted trees (`trees.py`) and a kernel ridge regression (`smooth.py`) predict. The error
bounds come from cross-validation that leaves out whole networks. The bounds for a network's total
come from the errors of whole networks' totals, since the errors of a network's kernels are
correlated.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.machine.target import Target
from clew.predict.analytic import Analytic
from clew.predict.features import (
    FACT_COUNT,
    NUMBERS,
    feature_count,
    features,
    first_rules,
    vocabulary,
)
from clew.predict.predicted import Predicted
from clew.predict.smooth import FIELDS as SMOOTH_FIELDS
from clew.predict.smooth import Smooth, fit_smooth
from clew.predict.table import columns_of_table, read_table
from clew.predict.trees import Forest, fit_forest
from clew.support.archives import Archive
from clew.support.errors import Hint, InputError
from clew.support.files import json_of, reason_of
from clew.support.near import did_you_mean
from clew.support.shown import Shown, counted
from clew.support.writing import npy_bytes, write_bytes
from clew.version import VERSION

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Any]

LEVEL: Final = 0.9
"""The probability that the true time lies in an interval."""
_FORMAT: Final = 3
_SEEDS, _TURNS, _LEAF_ROWS = 3, 250, 6
_FOLDS: Final = 5
_LEAST_ROWS: Final = 60
_LEAST_NETWORKS: Final = 4
_SHORT_NS: Final = 2e7
# A kernel of this time varies by about as much as longer ones err; shorter ones vary more.
_VARYING_NS: Final = 3e3
_LEAST_NS: Final = 100.0
# Logarithm of the largest ratio to the analytic estimate that is learned.
_MOST_RATIO: Final = 0.7
_READ: Final = (
    *NUMBERS, "rules", "ops", "network", "family", "mode", "target", "key", "latency_ns", "steady",
    "network_sum_ns", "network_call_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Errors:
    """Errors found by cross-validation, as logarithms of predicted over measured times.

    `kernel_by_rule` and `kernel` bound the errors of single kernels, `total` that of a network's
    sum, each at `LEVEL`. `within_10` is the share of kernels predicted within 10 %,
    `within_10_of_time` the share of their time; `total_mean` and `total_worst` are relative errors
    of sums.
    """

    kernel: float
    kernel_by_rule: dict[str, float]
    total: float
    within_10: float
    within_10_of_time: float
    total_mean: float
    total_worst: float


@dataclass(frozen=True)
class Model:
    """The analytic estimate, and two learned predictions of the ratio to it."""

    rules: list[str]
    ops: list[str]
    analytic: Analytic
    forest: Forest
    smooth: Smooth

    def logs(self, columns: Columns) -> Array:
        """Returns the logarithm of each row's nanoseconds."""
        base, _ = self.analytic.estimate(columns)
        made = features(columns, base, self.rules, self.ops)
        ratios = (self.forest.predict(made) + self.smooth.predict(made)) / 2
        logs: Array = np.log(base) + ratios
        return logs


@dataclass(frozen=True, repr=False)
class Predictor(Shown):
    """Predicts kernels for one target and number of threads.

    `measured` maps the key of each kernel in the table to the logarithm of its time; `overhead` is
    the time of a call outside its kernels, in nanoseconds.
    """

    target: str
    threads: int
    networks: int
    rows: int
    model: Model
    errors: Errors
    overhead: float
    measured: dict[str, float]

    def _about(self) -> str:
        threads, kernels = counted(self.threads, "thread"), counted(self.rows, "kernel")
        return f"for {self.target} on {threads}, from {kernels} of {self.networks} networks"

    def predict(
        self, columns: Columns, *, lookup: bool = True, runs: Sequence[int] | None = None
    ) -> Predicted:
        """Returns the times of the kernels of one program, in the given order.

        With `lookup`, a kernel in the table gets its measured time. `runs` is the number of runs of
        each kernel in a call (once by default); times cover all its runs.

        Errors: I332 for a time that is not a finite number.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._predicted(columns, lookup, runs)
        bounds = (found.low_ns, found.high_ns, found.total_low_ns, found.total_high_ns)
        if not all(np.isfinite(bound).all() for bound in bounds):
            raise InputError(
                "I332",
                "the predictor gives a time that is not a finite number",
                hint="it is damaged: make another with clew predict --train TABLE.parquet",
            )
        return found

    def _predicted(self, columns: Columns, lookup: bool, runs: Sequence[int] | None) -> Predicted:
        logs, rules = self.model.logs(columns), first_rules(columns)
        known = np.array([lookup and key in self.measured for key in columns["key"]], bool)
        for number in np.flatnonzero(known):
            logs[number] = self.measured[columns["key"][number]]
        spread = np.array([self.errors.kernel_by_rule.get(r, self.errors.kernel) for r in rules])
        times = np.exp(logs) * (1.0 if runs is None else np.asarray(runs, float))
        overhead = self.overhead
        total = float(times.sum() + overhead)
        wide = float(np.exp(self.errors.total))
        return Predicted(
            times,
            times * np.exp(-spread),
            times * np.exp(spread),
            known,
            overhead,
            total,
            total / wide,
            total * wide,
        )

    def unfamiliar(self, columns: Columns) -> list[str]:
        """Returns, for each kernel, its rules and operators that are not in the table, joined."""
        rules, ops = set(self.model.rules), set(self.model.ops)
        return [
            ", ".join([*(r for r in row if r not in rules), *(o for o in held if o not in ops)])
            for row, held in zip(columns["rules"], columns["ops"], strict=True)
        ]


# ----------------------------------------------------------------------------------------- training


def train(
    path: Path, target: Target, threads: int, *, without: Sequence[str] = (), checked: bool = True
) -> Predictor:
    """Returns a predictor from the table at `path`, of the rows for a target and thread count.

    `without` are networks to leave out. `checked=False` skips cross-validation; intervals are then
    meaningless.

    Errors: I180 to I184 (tables); I183 if there is no row for the target or thread count; I185 if
    there are too few.
    """
    columns = columns_of_table(read_table(path, _READ))
    return train_columns(_chosen(columns, path, target, threads, without), target, threads, checked)


def thread_counts(path: Path, target: Target) -> list[int]:
    """Returns the thread counts for which a table has rows of a target.

    Errors: I180 to I184 (tables); I183 if there are none for the target.
    """
    columns = columns_of_table(read_table(path, ("target", "threads")))
    here = np.array([t == target.key for t in columns["target"]], bool)
    if not here.any():
        raise _elsewhere(path, target)
    return sorted({int(n) for n in columns["threads"][here]})


def _elsewhere(path: Path, target: Target) -> InputError:
    return InputError(
        "I183",
        f"{str(path)!r} was measured on another machine than {target.cpu}",
        hint="measure here: clew dataset -o TABLE.parquet",
    )


def _chosen(
    columns: Columns, path: Path, target: Target, threads: int, without: Sequence[str]
) -> Columns:
    """Returns the rows to train on.

    Errors: I183; I313 if the table lacks a network to leave out.
    """
    here = np.array([t == target.key for t in columns["target"]], bool)
    if not here.any():
        raise _elsewhere(path, target)
    counts = columns["threads"]
    inside = np.array([m == "program" for m in columns["mode"]], bool)
    steady = np.array(columns["steady"], bool)
    kept = here & inside & (counts == threads)
    # Disturbed measurements are better than too few.
    kept = kept & steady if _suffice(columns["network"], kept & steady) else kept
    if not kept.any():
        known = ", ".join(str(int(n)) for n in sorted(set(counts[here])))
        raise InputError(
            "I183",
            f"{str(path)!r} has nothing measured with {threads} thread{'s' * (threads > 1)}, "
            f"only with {known}",
            hint=Hint(
                f"train with threads={known.split(', ')[0]}, or measure with {threads}: "
                f"clew dataset --threads {threads}",
                cli=f"--threads {known.split(', ')[0]}, or clew dataset --threads {threads}",
            ),
        )
    left_out = set(without)
    networks = dict.fromkeys(columns["network"])
    for name in without:
        if name not in networks:
            hint = did_you_mean(name, map(str, networks), "table's networks")
            raise InputError("I313", f"{str(path)!r} has no network {name!r}", hint=hint)
    kept &= np.array([n not in left_out for n in columns["network"]], bool)
    return select(columns, kept)


def _suffice(networks: Any, chosen: Array) -> bool:
    """Whether there are enough rows to learn from."""
    found = {networks[int(place)] for place in np.flatnonzero(chosen)}
    return int(chosen.sum()) >= _LEAST_ROWS and len(found) >= _LEAST_NETWORKS


def select(columns: Columns, chosen: Array) -> Columns:
    """Returns some rows of columns."""
    places = np.flatnonzero(chosen)
    return {
        name: values[places] if isinstance(values, np.ndarray) else [values[p] for p in places]
        for name, values in columns.items()
    }


def train_columns(
    columns: Columns, target: Target, threads: int, checked: bool = True
) -> Predictor:
    """Returns a predictor from columns of one target and thread count.

    Errors: I180; I185 for too few rows or networks.
    """
    networks = list(dict.fromkeys(columns["network"]))
    rows = len(columns["network"])
    if not _suffice(columns["network"], np.ones(rows, bool)):
        raise InputError(
            "I185",
            f"{rows} kernels of {len(networks)} networks are too few to learn from",
            hint=f"at least {_LEAST_ROWS} of {_LEAST_NETWORKS}: clew dataset --networks 40",
        )
    times = columns["latency_ns"]
    analytic = Analytic.of(target)
    model = _fit(columns, times, _SEEDS, analytic)
    errors = _cross_validated(columns, times, analytic) if checked else _NO_ERRORS
    logs: dict[str, list[float]] = {}
    for key, time in zip(columns["key"], times, strict=True):
        logs.setdefault(key, []).append(float(np.log(time)))
    return Predictor(
        target.key,
        threads,
        len(networks),
        rows,
        model,
        errors,
        _overhead(columns),
        {key: float(np.mean(found)) for key, found in logs.items()},
    )


_NO_ERRORS: Final = Errors(0.0, {}, 0.0, 0.0, 0.0, 0.0, 0.0)


def _fit(columns: Columns, times: Array, seeds: int, analytic: Analytic) -> Model:
    rules, ops = vocabulary(columns)
    base, _ = analytic.estimate(columns)
    made = features(columns, base, rules, ops)
    ratios = np.clip(np.log(times / base), -_MOST_RATIO, _MOST_RATIO)
    weights = 1 / (1 + _VARYING_NS / np.maximum(times, _LEAST_NS))
    forest = fit_forest(made, ratios, seeds, _TURNS, weights, _LEAF_ROWS)
    return Model(rules, ops, analytic, forest, fit_smooth(made, FACT_COUNT, ratios, weights))


def _cross_validated(columns: Columns, times: Array, analytic: Analytic) -> Errors:
    """Returns the errors for networks that were left out, some at a time."""
    networks = np.array(columns["network"], object)
    names = list(dict.fromkeys(columns["network"]))
    order = np.random.default_rng(0).permutation(len(names))
    folds = min(_FOLDS, len(names))
    logs = np.zeros(len(times))
    for fold in range(folds):
        out = {names[n] for n in order[fold::folds]}
        left = np.array([n in out for n in networks], bool)
        model = _fit(select(columns, ~left), times[~left], 1, analytic)
        logs[left] = model.logs(select(columns, left))
    wrong = logs - np.log(times)
    totals = np.array(
        [np.log(np.exp(logs[networks == n]).sum() / times[networks == n].sum()) for n in names]
    )
    first = np.array(first_rules(columns), object)
    by_rule = {r: quantile(wrong[first == r]) for r in set(first) if (first == r).sum() >= 40}
    close = np.abs(np.expm1(wrong)) <= 0.1
    relative = np.abs(np.expm1(totals))
    return Errors(
        quantile(wrong),
        by_rule,
        quantile(totals),
        float(close.mean()),
        float((close * times).sum() / times.sum()),
        float(relative.mean()),
        float(relative.max()),
    )


def quantile(errors: Array, level: float = LEVEL) -> float:
    """Returns the bound that the size of a further error does not exceed with probability `level`.

    Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005. If there are
    too few errors, the bound is 1.5 times the largest.
    """
    sizes = np.sort(np.abs(errors))
    place = int(np.ceil((len(sizes) + 1) * level))
    return float(sizes[place - 1] if place <= len(sizes) else 1.5 * sizes[-1])


def _overhead(columns: Columns) -> float:
    """Returns the nanoseconds of a call outside its kernels, the median over networks with short
    calls: in long calls, variation exceeds it.
    """
    names = ("network", "network_sum_ns", "network_call_ns")
    calls = {n: (whole, call) for n, whole, call in zip(*(columns[k] for k in names), strict=True)}
    beside = [call - whole for whole, call in calls.values() if whole < _SHORT_NS]
    return max(0.0, float(np.median(beside))) if beside else 0.0


# ------------------------------------------------------------------------------------------- files


def save_predictors(path: Path, predictors: Sequence[Predictor]) -> None:
    """Writes predictors (one per number of threads) to a file: a ZIP of JSON and arrays.

    Errors: I189 if it cannot be written.
    """
    try:
        write_bytes(path, predictors_to_bytes(predictors))
    except OSError as error:
        raise InputError("I189", f"cannot write to {str(path)!r}: {reason_of(error)}") from None


def predictors_to_bytes(predictors: Sequence[Predictor]) -> bytes:
    """Returns predictors as bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        heads = []
        for number, one in enumerate(predictors):
            heads.append(
                {
                    "target": one.target,
                    "threads": one.threads,
                    "networks": one.networks,
                    "rows": one.rows,
                    "rules": one.model.rules,
                    "ops": one.model.ops,
                    "errors": asdict(one.errors),
                    "overhead": one.overhead,
                    "measured": one.measured,
                    "analytic": one.model.analytic.to_record(),
                }
            )
            arrays = {**one.model.forest.arrays(), **one.model.smooth.arrays()}
            for name, array in arrays.items():
                archive.writestr(f"{number}/{name}.npy", npy_bytes(array))
        head = {"format": _FORMAT, "clew": VERSION, "predictors": heads}
        archive.writestr("predictors.json", json.dumps(head))
    return stream.getvalue()


def load_predictors(source: Path | bytes, name: str = "") -> list[Predictor]:
    """Returns the predictors in a file, or in its bytes. No code in it is executed.

    Errors: I186 for an invalid file; I184 for a file of another version of clew.
    """
    called = repr(str(source) if isinstance(source, Path) else name)
    try:
        with Archive(source, name) as archive:
            head = json_of(archive.member("predictors.json"), finite=True)
            if head["format"] != _FORMAT:
                raise ValueError("it is of another format")
            made_by = head["clew"]
            found = [_read(archive, number, one) for number, one in enumerate(head["predictors"])]
    except OSError as error:
        raise InputError("I186", f"cannot read {called}: {reason_of(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            "I186",
            f"{called} does not contain a predictor: {reason_of(error)}",
            hint="clew predict --train TABLE.parquet -o PREDICTOR.clewp makes one",
        ) from None
    if made_by != VERSION:
        raise InputError(
            "I184",
            f"{called} was trained for clew {made_by}; this is {VERSION}",
            hint="kernels differ between versions: measure again with clew dataset",
        )
    return found


def _read(archive: Archive, number: int, one: dict[str, Any]) -> Predictor:
    """Returns a predictor. Errors: ValueError and others if it is invalid."""
    names = ("feature", "threshold", "left", "right", "value", "roots", "constants")
    forest = Forest.of_arrays({name: archive[f"{number}/{name}"] for name in names})
    smooth = Smooth.of_arrays({name: archive[f"{number}/{name}"] for name in SMOOTH_FIELDS})
    errors = dict(one["errors"])
    of_rules = {str(r): _number(e) for r, e in errors.pop("kernel_by_rule").items()}
    rules, ops = ([str(name) for name in one[key]] for key in ("rules", "ops"))
    count = feature_count(rules, ops)
    if forest.feature.max(initial=0) >= count or len(smooth.mean) != count:
        raise ValueError("it was trained on other features")
    return Predictor(
        str(one["target"]),
        int(one["threads"]),
        int(one["networks"]),
        int(one["rows"]),
        Model(rules, ops, Analytic.of_record(one["analytic"]), forest, smooth),
        Errors(kernel_by_rule=of_rules, **{n: _number(e) for n, e in errors.items()}),
        _number(one["overhead"]),
        {str(k): _number(v) for k, v in one["measured"].items()},
    )


def _number(value: Any) -> float:
    """Returns a finite number. Errors: ValueError."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)
