"""Runs checks in child processes, so that a hang or a crash becomes a row of the table."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

SECONDS = 150.0
_KEPT = 8  # models per process: torch does not free all memory that an export takes


@dataclass
class Row:
    """One model's outcome. `said` merges the child's messages; later ones replace earlier ones."""

    name: str
    way: str
    how: str
    status: str
    why: str
    said: dict[str, Any]

    @property
    def result(self) -> dict[str, Any]:
        """The result, empty if there is none."""
        found: dict[str, Any] = self.said.get("result") or {}
        return found


class Runner:
    """Checks one model at a time. A process serves several models, because imports take seconds."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[str] | None = None
        self._served = 0

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None
        self._served = 0

    def check(self, name: str, way: str, how: str) -> Row:
        """Returns the outcome of one model: `way` is export or compile, `how` static or dynamic."""
        if self._served >= _KEPT:
            self.close()
        said, death = self._ask(f"{name} {way} {how}\n")
        self._served += 1
        if death:
            self.close()
            kind = "hangs" if death.startswith("over") else "crashes"
            return Row(name, way, how, kind, f"{death}, {said.get('phase', 'start')}", said)
        if "result" in said:
            return Row(name, way, how, said["result"]["status"], said["result"]["why"], said)
        status = "torch fails" if said.get("torch") or said.get("code") == "M050" else "fails"
        status = "refused" if str(said.get("code", "")).startswith("U") else status
        return Row(name, way, how, status, f"{said.get('phase')}: {said['error']}", said)

    def _ask(self, line: str) -> tuple[dict[str, Any], str]:
        """Returns the messages, and how the process died if it did."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "torch_models.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self._seconds, give_up)
        timer.start()
        said: dict[str, Any] = {}
        try:
            child.stdin.write(line)
            child.stdin.flush()
            for text in child.stdout:
                if text.startswith("{"):  # libraries print, too
                    said.update(json.loads(text))
                if "result" in said or "error" in said:
                    return said, ""
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        code = child.wait()
        if late.is_set():
            return said, f"over {self._seconds:.0f} s"
        return said, signal.Signals(-code).name if code < 0 else f"exit code {code}"
