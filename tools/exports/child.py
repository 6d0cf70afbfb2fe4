"""A process of its own that exports or checks models, and prints a line on each phase.

`python -m exports.child TASK` reads lines "VARIANT PATH" until the end of its input. The task is
`export`, `truth` (torch's outputs in f64 to PATH), `check`, or `judge` (PATH has these outputs).
It answers in JSON: {"phase": ...} before each phase, at last {"result": ...} or {"error": ...,
"code": ...}.
"""

from __future__ import annotations

import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from clew.support.errors import ClewError
from exports.comparing import PeerError, compare, judged
from exports.exporting import export
from exports.store import Variant, variant
from exports.truth import in_f64

_BYTES = 12 << 30  # of address space


def main() -> None:
    """Serves until the input ends."""
    do = {"export": _export, "truth": _truth, "check": _check, "judge": _judge}[sys.argv[1]]
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        name, path = line.rstrip("\n").split(" ", 1)
        try:
            _say(result=do(variant(name), Path(path)))
        except ClewError as error:
            _say(error=str(error), code=error.code)
        except PeerError as error:
            _say(error=_head(error), code="", peer=True)
        except Exception as error:
            _say(error=_head(error), code="")


def _export(which: Variant, path: Path) -> dict[str, Any]:
    _say(phase="export")
    export(which.entry, which.exporter, which.dynamic, path)
    return {}


def _truth(which: Variant, path: Path) -> dict[str, Any]:
    _say(phase="f64")
    in_f64(which.entry, path)
    return {}


def _judge(which: Variant, path: Path) -> dict[str, Any]:
    _say(phase="judge")
    with np.load(path) as truth:
        return judged(which.path, which.entry.draw, truth).as_json()


def _check(which: Variant, path: Path) -> dict[str, Any]:
    entry = which.entry
    others = (lambda seed: entry.draw(seed, entry.others)) if which.dynamic else None
    return compare(path, entry.draw, others, lambda name: _say(phase=name)).as_json()


def _head(error: Exception) -> str:
    """Returns the error that caused an error in a line, with the place that raised it."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text[:300]}{place}"


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
