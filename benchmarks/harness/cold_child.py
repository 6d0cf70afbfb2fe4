"""Compiles one model in a process of its own, calls it once, and prints what it took as JSON.

`python -m harness.cold_child MODEL INPUTS THREADS`, where INPUTS is an `.npz` file. The cache is
that of the environment.
"""

import atexit
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Prints seconds of wall-clock and processor time, processes, and bytes, at exit."""
    path, inputs, threads = sys.argv[1:]
    found: dict[str, Any] = {}
    atexit.register(_report, found)  # runs last: after the workers have ended
    import numpy as np  # noqa: PLC0415 - imports are timed

    feed = dict(np.load(inputs))
    began = time.perf_counter()
    laps = [time.process_time()]
    import clew  # noqa: PLC0415

    compile_ = clew.compile
    laps.append(time.process_time())
    model = compile_(path, threads=int(threads))
    laps.append(time.process_time())
    model.run(feed)
    laps.append(time.process_time())
    found["wall_s"] = time.perf_counter() - began
    steps = zip(("import_s", "compile_s", "call_s"), laps, laps[1:], strict=False)
    found.update({step: after - before for step, before, after in steps})
    found["workers"] = len(Path(f"/proc/self/task/{_pid()}/children").read_text().split())
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _pid() -> str:
    return Path("/proc/self").resolve().name


def _report(found: dict[str, Any]) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({**found, "workers_s": used.ru_utime + used.ru_stime}))


if __name__ == "__main__":
    main()
