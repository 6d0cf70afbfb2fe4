"""Ctrl-C ends the program silently, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clew.cli import app

# Sends Ctrl-C when the import of a module begins, or in a function at the program's end.
_AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == WHEN:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
_AT_END = """
import atexit, os, signal
def end():
    os.kill(os.getpid(), signal.SIGINT)
    print("cleaned up", flush=True)
atexit.register(end)
"""
_PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
from clew.cli.program import main
main()
"""


def _run(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + _PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("module", ["typer", "numpy", "clew.cli.app"])
def test_while_modules_are_imported(module: str) -> None:
    done = _run(f"WHEN = {module!r}\n{_AT_IMPORT}", "run", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_while_it_cleans_up() -> None:
    done = _run(_AT_END, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("cleaned up\n")


def test_one_that_a_library_makes_an_import_error_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an extension module does that is interrupted while it is initialized."""

    def interrupted(path: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # handlers run between two instructions
                pass
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    monkeypatch.setattr("clew.cli.run.peer_of", interrupted)
    (tmp_path / "m.onnx").touch()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as left:
            app.main(["run", str(tmp_path / "m.onnx"), "--compare-onnxruntime"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert left.value.code == 130
    assert capsys.readouterr().err == ""


def test_the_version_and_the_help_import_little() -> None:
    end = "\nimport atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    version = _run(end, "--version")
    assert version.stdout.startswith("clew ")
    assert not {"numpy", "typer", "rich", "dataclasses"} & set(version.stderr.split())
    help_ = _run(end, "--help")
    assert "precision" in help_.stdout
    names = set(help_.stderr.split())
    assert not {"numpy", "rich.console", "llvmlite", "clew.cli.options"} & names
    assert sum(name.startswith("clew.cli.") for name in names) < 10


def test_the_help_tells_what_the_commands_tell() -> None:
    for name, place in app._COMMANDS.items():
        assert app.command(name).get_short_help_str(200).strip() == place.help, name
