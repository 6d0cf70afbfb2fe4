"""Runs a module of the harness in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from harness.report import progress


def run_child(module: str, *args: str, environment: Mapping[str, str] | None = None) -> Any:
    """Returns the JSON that `python -m harness.<module> args` prints. A failure ends this program
    with the messages of the child. `environment` adds to the variables of this process. The child
    may write byte code, so that only the first one compiles Python sources, as in an installation.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-m", f"harness.{module}", *args],
        cwd=Path(__file__).parents[1],
        env={**inherited, **(environment or {})},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        progress.print(done.stderr, highlight=False, markup=False)
        raise typer.Exit(1)
    return json.loads(done.stdout)
