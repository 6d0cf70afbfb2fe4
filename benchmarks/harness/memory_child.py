"""Loads and runs one model in a separate process and prints its resident memory as JSON.

`python -m harness.memory_child ENGINE MODEL INPUTS THREADS`, INPUTS an .npz file. Linux only.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

from harness.engines import engines


def main() -> None:
    """Prints bytes: {imported, loaded, load_peak, run_peak}."""
    name, path, inputs, threads = sys.argv[1:]
    engine = engines()[name]
    with np.load(inputs) as archive:
        feed = {key: archive[key] for key in archive.files}
    for module in engine.needs:
        importlib.import_module(module)
    figures = {"imported": _resident("VmRSS")}
    _forget_peak()
    runner = engine.prepare(Path(path), int(threads), "f32")
    figures |= {"loaded": _resident("VmRSS"), "load_peak": _resident("VmHWM")}
    _forget_peak()
    for _ in range(3):
        runner.run(feed)
    figures["run_peak"] = _resident("VmHWM")
    print(json.dumps(figures))


def _resident(field: str) -> int:
    """Returns this process's resident memory in bytes: `VmRSS` is the current value, `VmHWM` the
    peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"no {field} in /proc/self/status")


def _forget_peak() -> None:
    """Resets the peak to the memory currently in use."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
