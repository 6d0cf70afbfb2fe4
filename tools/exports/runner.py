"""Starts a process for each model, so that a hang, a crash or a lack of memory is a row."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exports.comparing import TOLERANCE, Result
from exports.store import NotExported, Variant, path

EXPORT_SECONDS = 300
CHECK_SECONDS = 90
_EXPORTS_KEPT = 12  # of a process: torch does not free all that an export takes


@dataclass
class Row:
    """One model's outcome. `code` is the code of clew's error, if it raised one."""

    variant: Variant
    result: Result
    code: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        which = self.variant
        return {
            "name": which.entry.name,
            "family": which.entry.family,
            "exporter": which.exporter,
            "dynamic": which.dynamic,
            "code": self.code,
            "ratio": self.result.ratio,
            **self.result.as_json(),
        }


class Runner:
    """Checks one model at a time. The process that exports is kept for the next, as to import
    torch and its libraries takes seconds; each check has its own.
    """

    def __init__(self) -> None:
        self._exporting: _Child | None = None
        self._exports = 0

    def close(self) -> None:
        """Ends the process that exports."""
        if self._exporting is not None:
            self._exporting.end()
            self._exporting = None

    def exported(self, which: Variant) -> Path:
        """Returns the model's file, exported first where needed. Raises NotExported."""
        return path(which, self._export)

    def _export(self, which: Variant, at: Path) -> None:
        if self._exports % _EXPORTS_KEPT == 0:
            self.close()
        self._exports += 1
        child = self._exporting = self._exporting or _Child("export")
        said, failure = child.ask(which, at, EXPORT_SECONDS)
        if failure:
            self._exporting = None
        if failure or "result" not in said:
            raise NotExported(failure or str(said["error"]), lasting=not failure)

    def checked(self, which: Variant, seconds: float = CHECK_SECONDS) -> Row:
        """Returns the outcome of one model: exported, compiled, and run on both engines."""
        try:
            file = self.exported(which)
        except NotExported as error:
            return Row(which, Result("not exported", str(error)))
        child = _Child("check")
        said, failure = child.ask(which, file, seconds)
        child.end()
        if failure:
            kind = "hangs" if failure.startswith("over") else "crashes"
            return Row(which, Result(kind, f"{failure} in phase {said.get('phase')}"))
        if "result" in said:
            found = Result(**said["result"])
            if found.status == "differs":
                self._judge(which, found, seconds)
            return Row(which, found)
        status = "peer fails" if said.get("peer") else "refused" if said["code"] else "fails"
        return Row(which, Result(status, f"{said['phase']}: {said['error']}"), said["code"])

    def _judge(self, which: Variant, found: Result, seconds: float) -> None:
        """Compares both engines with torch in f64, if possible.

        Discrete results (an order, a label) may depend on the last bit: the closer engine is right.
        """
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.npz"
            for task in ("truth", "judge"):
                child = _Child(task)
                said, failure = child.ask(which, truth, seconds)
                child.end()
                if failure or "result" not in said:
                    return
        judged = Result(**said["result"])
        found.f64_error, found.peer_f64_error = judged.f64_error, judged.peer_f64_error
        if found.f64_error <= found.peer_f64_error and found.f64_error < float("inf"):
            found.status = "nearer"
        elif found.f64_error <= TOLERANCE:
            found.status = "right"


class _Child:
    """A process of `exports.child`."""

    def __init__(self, task: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "exports.child", task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def ask(self, which: Variant, at: Path, seconds: float) -> tuple[dict[str, Any], str]:
        """Returns the child's messages, where later values overwrite earlier ones, and the way it
        died, if it did.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, give_up)
        timer.start()
        said: dict[str, Any] = {}
        try:
            self._process.stdin.write(f"{which} {at}\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith("{"):  # libraries print, too
                    said.update(json.loads(line))
                if "result" in said or "error" in said:
                    return said, ""
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        code = self._process.wait()
        if late.is_set():
            return said, f"over {seconds:.0f} s"
        return said, signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
