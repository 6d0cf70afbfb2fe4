"""Threads that use the backend's name first do not meet each other."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

_PROGRAM = """
import sys, threading, warnings
from importlib.metadata import EntryPoint
import torch
from torch._dynamo.backends import registry

warnings.simplefilter("ignore")
registry._lazy_import()
registry._BACKENDS["clew"] = EntryPoint("clew", sys.argv[1], "torch_dynamo_backends")
start, failed = threading.Barrier(8), []

def work():
    start.wait()
    try:
        found = registry.lookup_backend("clew")
        assert found.__name__ == "clew_backend", found
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
with torch.no_grad():
    assert torch.compile(lambda x: torch.relu(x) + 1, backend="clew")(torch.ones(3)).sum() == 6
"""


def test_the_first_use_by_many_threads() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["torch_dynamo_backends"]["clew"]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, entry], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
