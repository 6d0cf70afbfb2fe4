"""Puts `handmade` in reach of the tests beside it, and of the processes they start."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture
def run_python() -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program that may import `handmade` in a process of its own."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {HERE!r})\n{program}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
