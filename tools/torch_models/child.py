"""A process that checks models. It reads lines "NAME export|compile static|dynamic", and answers
each with lines of JSON.

They are {"phase": ...} before each phase, and finally {"result": ...} or
{"error": ..., "code": ...}.
"""

from __future__ import annotations

import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from clew.support.errors import ClewError
from torch_models.catalog import entry_of
from torch_models.comparing import TorchError
from torch_models.compiled import check_compiled
from torch_models.exported import check_exported

_BYTES = 12 << 30  # of address space


def main() -> None:
    """Serves until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        name, way, how = line.split()
        check = check_compiled if way == "compile" else check_exported
        try:
            found = check(entry_of(name), how == "dynamic", lambda text: _say(phase=text))
            _say(result=found.as_json())
        except ClewError as error:
            _say(error=str(error), code=error.code)
        except TorchError as error:
            _say(error=str(error), code="", torch=True)
        except Exception as error:
            _say(error=_head(error), code="")


def _head(error: Exception) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text[:300]}{place}"


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
