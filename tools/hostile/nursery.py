"""Runs each hostile case in its own process, and reports how it ended.

A process that has clew loaded forks for every case; the child runs it with its time, memory and
address space limited. What it must not do is end in any other way than with a result or with one
coded error.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clew.support.errors import ClewError
from hostile.codes import OURS

LIMIT_S = 5.0
MOST_MB = 1000
# Operations on processes take time; `HOSTILE_ROUNDS` multiplies it.
PROCESS_LIMIT_S = 30.0 * int(os.environ.get("HOSTILE_ROUNDS", "1"))
# A child may wait for others' work on the machine; the limit is of its own CPU time.
_PATIENCE = 12.0
ADDRESS_SPACE_BYTES = 8 << 30
"""Limits that stop a runaway child; its address space exceeds its used memory."""


@dataclass(frozen=True)
class Ending:
    """How a case ended: `kind` is ok, coded, uncoded, crash or hang; `seconds` are of CPU time."""

    name: str
    kind: str
    code: str
    message: str
    seconds: float
    peak_mb: int

    def complaint(self, expected: Sequence[str]) -> str:
        """Returns the complaint about this ending, "" if there is none. `expected` are codes, or
        `ok`; if empty, any code that does not blame clew is accepted.
        """
        if self.kind not in ("ok", "coded"):
            return self.kind
        if self.peak_mb >= MOST_MB:
            return f"{self.peak_mb} MB, allowed are {MOST_MB}"
        found = self.code or "ok"
        if found not in expected and (expected or found in OURS):
            return f"{found}, expected {' or '.join(expected) or 'no mistake of clew'}"
        return ""


def run_case(
    name: str, attack: Callable[[Path], Any], limit_s: float = LIMIT_S, scratch: Path | None = None
) -> Ending:
    """Returns how an attack ended that was given an empty folder."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-", dir=scratch))
    out, into = os.pipe()
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.close(out)
        _in_child(attack, folder, into, limit_s)
    os.close(into)
    try:
        answer, late = _answer(out, start + _PATIENCE * limit_s)
    finally:
        os.close(out)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    shutil.rmtree(folder, ignore_errors=True)
    peak_mb = usage.ru_maxrss >> 10
    killed = -os.waitstatus_to_exitcode(status)
    if late or killed == signal.SIGXCPU:
        return Ending(name, "hang", "", f"no end after {limit_s} s", seconds, peak_mb)
    if not answer:
        return Ending(name, "crash", "", f"killed by signal {killed}", seconds, peak_mb)
    kind, code, message = json.loads(answer)
    return Ending(name, kind, code, message, seconds, peak_mb)


def _answer(stream: int, until: float) -> tuple[bytes, bool]:
    """Returns a child's output until it ended, and whether it took too long."""
    answer = b""
    while True:
        left = until - time.perf_counter()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return answer, True
        piece = os.read(stream, 1 << 16)
        if not piece:
            return answer, False
        answer += piece


def _in_child(attack: Callable[[Path], Any], folder: Path, into: int, limit_s: float) -> None:
    most = math.ceil(limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        answer = outcome_of(lambda: attack(folder))
        os.write(into, json.dumps(answer).encode())
    finally:
        os._exit(0)


def outcome_of(action: Callable[[], Any]) -> tuple[str, str, str]:
    """Returns kind, code and message of how something ended."""
    try:
        action()
    except ClewError as error:
        return "coded", error.code, str(error)
    except BaseException as error:
        place = traceback.format_exc(limit=-4)
        return "uncoded", type(error).__name__, place[-1500:]
    return "ok", "", ""


def processes_of() -> list[Any]:
    """Returns the cases of `processes`, which make models at once."""
    from hostile import processes  # noqa: PLC0415

    return processes.ALL


def main(arguments: Sequence[str]) -> int:
    """Runs hostile cases, each in its own process, and writes a JSON line for each. Returns 1 if
    one of them ended in an unexpected way.
    """
    from clew.api import compile, loaded_model  # noqa: F401, PLC0415  (loaded once, not in each child)
    from clew.cli import app  # noqa: F401, PLC0415
    from clew.frontends import onnx  # noqa: F401, PLC0415
    from hostile import cases  # noqa: PLC0415  (it imports this module)

    # What children make of freed memory is theirs; what was there before is shared.
    gc.freeze()
    parser = argparse.ArgumentParser(prog="hostile.nursery", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of cases (default: all)")
    parser.add_argument("--quick", action="store_true", help="without cases that take seconds")
    parser.add_argument("--processes", action="store_true", help="cases of disturbed processes")
    asked = parser.parse_args(arguments)
    chosen = [
        case
        for case in (processes_of() if asked.processes else cases.ALL)
        if not (asked.quick and case.slow)
        and (not asked.names or any(name in case.name for name in asked.names))
    ]
    if not chosen:
        parser.error(f"no case has such a name: {' '.join(asked.names)}")
    defects = 0
    for case in chosen:
        limit_s = PROCESS_LIMIT_S if asked.processes else LIMIT_S
        ending = run_case(case.name, case.attack, limit_s)
        wrong = ending.complaint(case.expected)
        defects += bool(wrong)
        print(json.dumps({**asdict(ending), "wrong": wrong}), flush=True)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
