"""A backend and an operator of another package: an entry point is all that they need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import numpy as np
import clew
from clew.backends import registry

assert {"numpy", "twice"} <= set(registry.backend_names())
import clew_twice

TEXT = """clew 1
def @main(
  %x: f32[2, 3],
  %y: f32[2, 3]
) -> f32[2, 3] {
  %0: f32[2, 3] = twice.half(%x)
  %1: f32[2, 3] = add(%0, %y)
  return %1
}
"""
x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.full((2, 3), 10, np.float32)
compiled = clew.compile(clew.parse(TEXT), backends=["twice"], cache=False)
np.testing.assert_array_equal(compiled(x, y), x / 2 + 10)
assert [region.backend for region in compiled.regions] == ["twice"]
assert clew_twice.Twice.runs == 1
try:
    clew.backend("twice", takes=lambda call: True)(lambda region, target: None)
except clew.ClewError as error:
    print(error.code, error.message)
'''


def test_a_package_adds_a_backend_and_an_operator(tmp_path: Path) -> None:
    about = tmp_path / "clew_twice-1.0.dist-info"  # as the package is installed
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clew-twice\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[clew.backends]\ntwice = clew_twice:Twice\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "I353 clew-twice itself has a backend twice\n"


BROKEN = """
import clew
from clew.backends.registry import backends_of

for name in ("absent", "missing", "failing"):
    try:
        backends_of([name])
    except clew.ClewError as error:
        print(error.code, error.message, "|", error.hint)
"""


def test_a_backend_that_cannot_be_loaded_is_a_coded_error(tmp_path: Path) -> None:
    about = tmp_path / "clew_twice-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: clew-twice\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[clew.backends]\nabsent = clew_absent:A\nmissing = clew_twice:A\nfailing = json:loads\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    absent, missing, failing = done.stdout.splitlines()
    assert absent.startswith("I356 the backend absent needs clew_absent, which is not installed |")
    assert missing.startswith("I356 the backend missing cannot be loaded: AttributeError: ")
    assert missing.endswith("| update or uninstall clew-twice, which declares it as clew_twice:A")
    assert failing.startswith("I356 the backend failing cannot be loaded: TypeError: ")
