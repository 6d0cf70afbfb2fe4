"""The program `clew`, which Ctrl-C ends silently at any time: also while its modules are imported,
and while it cleans up.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

from clew.version import VERSION


def main() -> None:
    """Runs the command line and exits with its exit code; 130 after Ctrl-C."""
    code: Any = 130
    try:
        if sys.argv[1:] == ["--version"]:
            print(f"clew {VERSION}", flush=True)
            code = 0
        else:
            importlib.import_module("clew.cli.app").main()
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        pass
    # The second of two quick Ctrl-C would leave temporary files behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
