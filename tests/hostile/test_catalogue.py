"""Every hostile file of the catalogue: one coded error or a right result, in seconds and megabytes.

`python -m hostile.nursery` (with `tools` on the path) runs all cases, those too that take seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostile.cases import ALL
from hostile.nursery import MOST_MB

ROOT = Path(__file__).parents[2]
QUICK = [case for case in ALL if not case.slow]


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each case ended, run in processes forked from one that has nothing but clew."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")])
    cache = tmp_path_factory.mktemp("cache")
    environment = {**os.environ, "PYTHONPATH": paths, "CLEW_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", "hostile.nursery", "--quick"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr[-2000:]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("name", [case.name for case in QUICK])
def test_hostile(endings: dict[str, Any], name: str) -> None:
    ending = endings[name]
    assert ending["kind"] in ("ok", "coded"), ending["message"]
    assert ending["peak_mb"] < MOST_MB
    if ending["expected"]:
        assert (ending["code"] or "ok") in ending["expected"], ending["message"]
