"""Runs one case on all engines and returns the outcome."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import clew
from clew.ir.module import Module
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError, CompileError, UnsupportedError
from fuzz import engines
from fuzz.case import Case
from fuzz.compare import Condition, difference, identical
from fuzz.disagreements import excuse
from fuzz.engines import CannotRun, Results
from fuzz.free import Free, all_free
from fuzz.locate import Whole
from fuzz.rewrites import outlined, rewritten
from hostile.codes import OURS
from overwriting import overwritten

OK: Final = "ok"
REFUSED: Final = "refused"
FAILURES: Final = (
    "mismatch", "uncoded", "rejected", "disputed", "metamorphic", "crash", "hang",
)  # fmt: skip
"""The kinds of failures. A `refused` case is valid, but clew rejects it with a coded error."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case. `judges` are the engines besides clew whose results counted."""

    kind: str
    what: str = ""
    judges: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it is a failure."""
        return self.kind in FAILURES

    @property
    def sort(self) -> str:
        """A key of the outcome that is mostly equal for equal causes."""
        first = self.what.split("\n")[0]
        match self.kind:
            case "mismatch" | "disputed":
                return f"{self.kind} {first.split()[0].rstrip(',')}"
            case "uncoded":
                return f"{self.kind} {first.split(':')[0]}:{first.split(':')[1]}"
            case "ok":
                return "ok"
            case "metamorphic":
                return f"{self.kind} {first.split(':')[0]}"
        return f"{self.kind} {' '.join(first.split()[:2])}"

    def is_like(self, other: Outcome) -> bool:
        """Whether two failures are of one sort."""
        return self.sort == other.sort


def check(case: Case, phase: Callable[[str], None] = lambda name: None) -> Outcome:
    """Returns the outcome of a case. `phase` receives the name of the next phase."""
    try:
        with in_force(Budgets.strict() if case.hostile else None):
            return _checked(case, phase)
    except UnsupportedError as error:
        return Outcome(OK if case.hostile else REFUSED, _coded(error))
    except ClewError as error:
        if error.code in OURS:
            return Outcome("uncoded", f"{error.code} in {error.pass_name or 'codegen'}: {error}")
        if case.hostile:
            return Outcome(OK, _coded(error))
        return Outcome(REFUSED if case.symbolic else "rejected", _coded(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.name}"
        text = "".join(traceback.format_exception(error)[-8:])
        return Outcome("uncoded", f"{type(error).__name__} in {where}: {error}\n{text}")


def _coded(error: ClewError) -> str:
    return f"{error.code} {error.layer.rstrip('0123456789_')}: {error.message}"


def _checked(case: Case, phase: Callable[[str], None]) -> Outcome:
    phase("import")
    module = engines.imported(case)
    phase("interpret")
    wanted = engines.interpreted(case, module)
    judges: list[str] = []
    if not case.hostile:
        verdict = _others(case, wanted, judges, phase)
        if verdict is not None:
            return verdict
    phase("compile")
    model = engines.compiled(case, module)
    phase("run")
    found = engines.run(model, case.feeds)
    narrow = _of(case, module)
    differs = difference(found, wanted, narrow)
    if differs:
        return Outcome("mismatch", f"compiled {differs}")
    phase("overwrite")
    what = overwritten(partial(engines.run, model), case.feeds)
    if what:
        return Outcome("metamorphic", f"overwritten: {what}")
    phase(case.plan.check)
    what = CHECKS[case.plan.check](case, module, model, found, wanted, narrow)
    return Outcome("metamorphic", what) if what else Outcome(OK, judges=tuple(judges))


def _others(
    case: Case,
    wanted: Results,
    judges: list[str],
    phase: Callable[[str], None],
) -> Outcome | None:
    """Compares with other engines: a second one is used if the first disagrees."""
    said: dict[str, str] = {}
    whole = Whole(case)
    for name, engine in (("onnxruntime", engines.onnx_runtime), ("reference", engines.reference)):
        phase(name)
        try:
            found = engine(case)
        except CannotRun:
            continue
        for few in (True, False):
            differs = difference(found, wanted, whole.condition, few)
            excused = bool(differs) and bool(excuse(name, whole, few))
            if not differs or excused:
                break
        if not differs:
            judges.append(name)
            break
        if not excused:
            said[name] = str(differs)
    if not said:
        return None
    if judges:
        return Outcome("disputed", f"{next(iter(said))} alone: {'; '.join(said.values())}")
    return Outcome(
        "mismatch", f"imported, against {' and '.join(said)}: {'; '.join(said.values())}"
    )


# --- what else must hold --------------------------------------------------------------------------


Check = Callable[[Case, Module, Any, Results, Results, Condition], str]


def _none(*_: Any) -> str:
    return ""


def _rewritten(
    case: Case, module: Module, model: Any, found: Results, wanted: Results, condition: Condition
) -> str:
    """A model that means the same."""
    made = rewritten(case, case.plan.salt)
    if made is None:
        return ""
    other, how = made
    return _same(other, wanted, condition, how)


def _outlined(
    case: Case, module: Module, model: Any, found: Results, wanted: Results, condition: Condition
) -> str:
    """The same with a function of the model's."""
    other = outlined(case, case.plan.salt)
    return "" if other is None else _same(other, wanted, condition, "outlined")


def _same(other: Case, wanted: Results, condition: Condition, how: str) -> str:
    model = engines.compiled(other, engines.imported(other))
    differs = difference(engines.run(model, other.feeds), wanted, condition)
    return f"{how}: {differs}" if differs else ""


def _free(case: Case, *_: Any) -> str:
    """With names for the sizes of inputs: one build, at these sizes and at others. The model may
    not be valid there: its attributes and constants hold sizes, too.
    """
    free = all_free(Free("", case.model, case.feeds))
    if free is None or case.hostile:
        return ""
    try:
        named = replace(case, model=free.file())
        build = engines.compiled(named, engines.imported(named))
        for number, feeds in enumerate(free.sized(Random(case.plan.salt))):
            here = replace(case, model=free.with_numbers(feeds), feeds=dict(feeds))
            there = engines.imported(here)
            try:
                expected = engines.interpreted(here, there)
            except ValueError:  # of NumPy: what the values of inputs decide does not fit
                continue
            differs = difference(engines.run(build, feeds), expected, _of(here, there))
            if differs:
                shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in feeds.items())
                return f"free {number}: {differs} ({shapes})"
    except ClewError as error:
        return f"free: {_coded(error)}" if error.code in OURS else ""
    return ""


def _of(case: Case, module: Module) -> Condition:
    return Condition(
        lambda around: engines.interpreted(case, module, around),
        case.plan.precision,
        case.seed or 0,
    )


def _trace(case: Case, module: Module, model: Any, found: Results, *_: Any) -> str:
    """Checks that a build without a trace has the same results, and that the trace is
    consistent.
    """
    plain = engines.compiled(case, module, diagnostics=clew.Diagnostics(trace=False))
    differs = identical(engines.run(plain, case.feeds), found)
    if differs:
        return f"untraced: {differs}"
    problems = model.trace.check()
    return f"trace: {problems[0]}" if problems else ""


def _cache(case: Case, module: Module, model: Any, found: Results, *_: Any) -> str:
    """Out of the cache, and every other time without it."""
    for cache in (False, True) if case.plan.salt % 2 else (True,):
        other = engines.compiled(case, module, cache=cache)
        differs = identical(engines.run(other, case.feeds), found)
        if differs:
            return f"cache {cache}: {differs}"
    return ""


def _saved(case: Case, module: Module, model: Any, found: Results, *_: Any) -> str:
    """Saved and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.clew"
        try:
            model.save(path)
        except CompileError as error:
            if error.code in ("C058", "C059"):  # steps that cannot be saved, and it says so
                return ""
            raise
        other = clew.load_compiled(path, threads=case.plan.threads)
        differs = identical(engines.run(other, case.feeds), found)
    return f"saved: {differs}" if differs else ""


def _concurrent(case: Case, module: Module, model: Any, found: Results, *_: Any) -> str:
    """From several threads at once."""
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: engines.run(model, case.feeds), range(8)):
            differs = identical(result, found)
            if differs:
                return f"concurrent: {differs}"
    return ""


def _threads(case: Case, module: Module, model: Any, found: Results, *_: Any) -> str:
    """With another number of threads."""
    other = engines.compiled(case, module, threads=3 - case.plan.threads)
    differs = identical(engines.run(other, case.feeds), found)
    return f"threads: {differs}" if differs else ""


CHECKS: Final[dict[str, Check]] = {
    "none": _none, "rewritten": _rewritten, "outlined": _outlined, "trace": _trace,
    "cache": _cache, "saved": _saved, "concurrent": _concurrent, "threads": _threads,
    "free": _free,
}  # fmt: skip
