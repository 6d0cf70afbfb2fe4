"""Checks models whose sizes data decide: `python -m fuzz sizes`.

Each model is compiled once, and called with inputs of several sizes. Each result must be that of
clew's interpreter and of ONNX Runtime; earlier results and the inputs must stay as they are.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort

import clew
from clew.frontends.onnx import load
from clew.ir.interpret import interpret
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError
from fuzz.check import OK, REFUSED, Outcome
from fuzz.choices import Seeded
from fuzz.dtypes import Array
from fuzz.graph import Unfit
from fuzz.sized_cases import SizedCase, draw
from hostile.codes import OURS

_LIMIT_S: Final = 300
_GUARDS: Final[tuple[GuardSide | bool, ...]] = (GuardSide.END, GuardSide.START, False)
Results = dict[str, Array]


def case_of(seed: int) -> SizedCase:
    """Returns the case of a seed: always the same."""
    choices = Seeded(seed)
    while True:
        try:
            return draw(choices)
        except Unfit:
            continue


def check(seed: int) -> Outcome:
    """Returns the outcome of the case of a seed."""
    case, choices = case_of(seed), Seeded(-1 - seed)
    guard, threads = choices.pick(_GUARDS), choices.pick((1, 2))
    try:
        what = _differs(case, guard, threads)
    except ClewError as error:
        kind = "uncoded" if error.code in OURS else REFUSED
        return Outcome(kind, f"{error.code} {error.message} [{error.layer}]")
    except Exception as error:
        text = "".join(traceback.format_exception(error)[-8:])
        return Outcome("uncoded", f"{type(error).__name__}: {error}\n{text}")
    return Outcome("mismatch", what) if what else Outcome(OK)


def _differs(case: SizedCase, guard: GuardSide | bool, threads: int) -> str:
    session = _session(case.model)
    module = load(case.model)
    model = clew.compile(module, threads=threads, diagnostics=clew.Diagnostics(guard=guard))
    kept: list[tuple[dict[str, Array], Results, Results]] = []  # the last are copies
    for number, feeds in enumerate(case.calls):
        wanted, refusal = _interpreted(module, feeds)
        given = {name: array.copy() for name, array in feeds.items()}
        try:
            found = model.run(given)
        except ClewError:
            if wanted is None:
                continue
            raise
        if wanted is None:
            return f"call {number} runs, and the interpreter says {refusal}"
        what = difference(found, wanted)
        if what:
            return f"call {number}: {what}"
        # Places in a resized image are quotients, which ONNX Runtime rounds in another way.
        theirs = None if "resize" in case.operators else _theirs(session, feeds)
        what = difference(wanted, theirs) if theirs is not None else ""
        if what:
            return f"disputed call {number}: {what}"
        for name, array in given.items():
            if not np.array_equal(array, feeds[name]):
                return f"call {number} writes to the input {name}"
        for earlier, (_, results, before) in enumerate(kept):
            what = difference(results, before)
            if what:
                return f"call {number} changes results of call {earlier}: {what}"
        copies = {name: array.copy() for name, array in found.items()}
        # Half of the results are released, so that later calls may use their memory.
        kept.append((feeds, found if number % 2 else copies, copies))
    if guard or not kept:
        return ""
    jobs = [*range(len(kept))] * 3
    with ThreadPoolExecutor(3) as pool:
        for place, found in zip(jobs, pool.map(lambda p: model.run(kept[p][0]), jobs), strict=True):
            what = difference(found, kept[place][2])
            if what:
                return f"call {place} beside others: {what}"
    return ""


def _interpreted(module: Any, feeds: dict[str, Array]) -> tuple[Results | None, str]:
    try:
        return interpret(module, {name: feeds[name] for name in module.input_names}), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _session(model: onnx.ModelProto) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        return str(error)


def _theirs(session: Any, feeds: dict[str, Array]) -> Results | None:
    if isinstance(session, str):
        return None
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(None, feeds), strict=True))
    except Exception:
        return None


def difference(found: Results, wanted: Results) -> str:
    """Returns the first difference; empty if there is none."""
    for name, b in wanted.items():
        a = found[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{name} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        same = (
            np.allclose(a, b, 1e-4, 1e-4, equal_nan=True)
            if a.dtype.kind == "f"
            else np.array_equal(a, b)
        )
        if not same:
            places = np.argwhere(np.asarray(a != b))
            first = tuple(places[0]) if len(places) else ()
            return f"{name}{list(b.shape)} differs at {first}: {a[first]}, not {b[first]}"
    return ""


def run(first: int, count: int, minutes: float) -> Iterator[tuple[int, Outcome]]:
    """Checks seeds one after the other, each in its own process; yields the outcomes."""
    ends = time.monotonic() + 60 * minutes
    for seed in range(first, first + count):
        if time.monotonic() > ends:
            break
        yield seed, _apart(seed)


def _apart(seed: int) -> Outcome:
    """Returns the outcome of a check in a child; a child that dies or hangs is the outcome."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        signal.alarm(_LIMIT_S)
        outcome = check(seed)
        with os.fdopen(writes, "w") as stream:
            json.dump([outcome.kind, outcome.what], stream)
        sys.stdout.flush()
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if text and not os.WIFSIGNALED(status):
        return Outcome(*json.loads(text))
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Outcome("hang" if number == signal.SIGALRM else "crash", signal.Signals(number).name)


def save(seed: int, folder: Path) -> None:
    """Writes the case of a seed: its model, and the inputs of each call."""
    folder.mkdir(parents=True, exist_ok=True)
    case = case_of(seed)
    onnx.save(case.model, folder / "model.onnx")
    for number, feeds in enumerate(case.calls):
        arrays: dict[str, Any] = dict(feeds)
        np.savez(folder / f"call{number}.npz", **arrays)
