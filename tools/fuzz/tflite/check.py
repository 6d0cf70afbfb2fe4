"""Draws TFLite graphs and judges them: LiteRT, clew's interpreter, and clew.

Floats are judged by what rounding may do (`fuzz.compare`). Codes of LiteRT may differ from clew's
by as many steps as one step more or less at each operator moves them, and one.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew
from clew.frontends.tflite.loader import load
from clew.ir.expr import Call
from clew.ir.interpret import Around, interpret
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError, UnsupportedError
from fuzz.check import Outcome
from fuzz.choices import Seeded
from fuzz.compare import Condition, difference
from fuzz.graph import Unfit
from fuzz.tflite import operators, quantized
from fuzz.tflite.drawing import Case, Drawing
from fuzz.tflite.engines import litert
from hostile.codes import OURS
from litert_runs import Refused

Array = np.ndarray[Any, Any]
NATIVE_ONE_IN: Final = 10
_NOISY_RUNS: Final = 6


def case_of(seed: int) -> Case:
    """Returns the case of a seed: always the same."""
    choices = Seeded(seed)
    with_codes = choices.one_in(3)
    table = [*quantized.ENTRIES * 3, *operators.ENTRIES] if with_codes else operators.ENTRIES
    g = Drawing(choices)
    for _ in range(12):
        if g.operators and choices.integer(0, 5) == 0:
            break
        g.attempt(choices.pick(table))
    try:
        return g.case(with_codes)
    except Unfit:
        return case_of(seed + (1 << 40))


def check(seed: int) -> tuple[Case | None, Outcome]:
    """Returns the case of a seed and its outcome."""
    case = None
    try:
        case = case_of(seed)
        return case, _checked(case, seed)
    except UnsupportedError as error:
        return case, Outcome("refused", _coded(error))
    except ClewError as error:
        return case, Outcome("uncoded" if error.code in OURS else "rejected", _coded(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.name}"
        text = "".join(traceback.format_exception(error)[-8:])
        return case, Outcome("uncoded", f"{type(error).__name__} in {where}: {error}\n{text}")


def _coded(error: ClewError) -> str:
    return f"{error.code} {error.layer.rstrip('0123456789_')}: {error.message}"


def _checked(case: Case, seed: int) -> Outcome:
    try:
        theirs = litert(case.data, case.feeds)
    except Refused:
        return Outcome("left out")
    module = load(case.data)
    wanted = _interpreted(module, case)
    precise = Condition(lambda around: _interpreted(module, case, around), "f32", seed)
    loose = Condition(lambda around: _interpreted(module, case, around), "f32", seed, loose=True)
    what: Any = difference(theirs, wanted, loose, few=True)
    if what and _has_codes(module):
        said, exact = _steps(theirs, wanted, module, case, seed)
        what = said or difference(theirs, exact, loose)
    elif what:
        what = difference(theirs, wanted, loose)
    if what:
        return Outcome("mismatch", f"imported, against LiteRT: {what}")
    if seed % NATIVE_ONE_IN:
        return Outcome("ok")
    side = (GuardSide.START, GuardSide.END)[seed // NATIVE_ONE_IN % 2]
    model = clew.compile(
        module, threads=1, cache=False, diagnostics=clew.Diagnostics(guard=side, trace=False)
    )
    what = difference(model.run(case.feeds), wanted, precise)
    return Outcome("mismatch", f"compiled {what}") if what else Outcome("ok, compiled")


def _interpreted(module: Module, case: Case, around: Around | None = None) -> dict[str, Any]:
    feeds = {name: case.feeds[name] for name in module.input_names}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return dict(interpret(module, feeds, around))


# --- codes ----------------------------------------------------------------------------------------


def _has_codes(module: Module) -> bool:
    return any(
        isinstance(node, Call) and node.op_name in ("quantize", "dequantize")
        for node in post_order(module.main.body)
    )


class _Steps:
    """Moves some of the codes that are made by a step."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, call: Call, args: Sequence[Any], compute: Any) -> Any:
        made = compute(args)
        if call.op_name != "quantize":
            return made
        info = np.iinfo(made.dtype)
        moved = made.astype(np.int64) + self._rng.integers(-1, 2, made.shape)
        return np.clip(moved, info.min, info.max).astype(made.dtype)


def _steps(
    found: Mapping[str, Array], wanted: Mapping[str, Array], module: Module, case: Case, seed: int
) -> tuple[str, dict[str, Array]]:
    """Returns the first difference past what steps of codes may do, "" if there is none, and the
    results that no step moves.
    """
    runs = [_interpreted(module, case, _Steps(seed + n)) for n in range(_NOISY_RUNS)]
    exact: dict[str, Array] = {}
    for name, want in wanted.items():
        got = found[name]
        if any(run[name].shape != want.shape for run in runs):
            continue
        f, w = got.astype(np.float64), want.astype(np.float64)
        moved = np.zeros(want.shape)
        for run in runs:
            with np.errstate(all="ignore"):
                moved = np.fmax(moved, np.abs(run[name].astype(np.float64) - w))
        if not moved.any() or got.dtype != want.dtype or got.shape != want.shape:
            exact[name] = want
            continue
        least = 1 if want.dtype.kind in "iu" else 1e-5 * np.abs(w) + 1e-6
        # Where one element moved, its neighbours could have.
        allowed = 3 * np.maximum(moved, moved.max(initial=0) * 0.7) + least
        with np.errstate(all="ignore"):
            bad = ~((np.abs(f - w) <= allowed) | (f == w) | (np.isnan(f) & np.isnan(w)))
        if bad.any():
            n = int(np.argmax(bad.reshape(-1)))
            first = f"{f.reshape(-1)[n]} for {w.reshape(-1)[n]}"
            return f"{name}: {int(bad.sum())} of {bad.size} elements, first {first}", exact
    return "", exact
