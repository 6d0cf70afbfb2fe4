"""Starts one model in a process of its own, calls it once, and prints the times as JSON.

`python -m harness.start_child ENGINE MODEL INPUTS THREADS`, where ENGINE is `clew`, `untraced`
(clew without its trace) or `onnxruntime`, and INPUTS an `.npz` file. The cache is that of the
environment. Nothing is imported before the first clock is read but Python's own modules.
"""

import json
import sys
import time
from typing import Any

_began = time.perf_counter(), time.process_time()


def main() -> None:
    """Prints the wall-clock and processor seconds of each step, and the number of modules."""
    engine, path, inputs, threads = sys.argv[1:]
    laps = [_began]

    def lap() -> None:
        laps.append((time.perf_counter(), time.process_time()))

    import numpy as np  # noqa: PLC0415 - imports are timed

    feed = dict(np.load(inputs))
    lap()
    if engine != "onnxruntime":
        import clew  # noqa: PLC0415

        compile_ = clew.compile
        given: dict[str, Any] = {"threads": int(threads)}
        if engine == "untraced":
            given["diagnostics"] = clew.Diagnostics(trace=False)
        lap()
        model = compile_(path, **given)
        lap()
        model.run(feed)
    else:
        import onnxruntime  # noqa: PLC0415

        onnxruntime.set_default_logger_severity(4)
        lap()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        lap()
        session.run(None, feed)
    lap()
    steps = ("numpy", "library", "load", "call")
    spans = {
        step: [after - before for before, after in zip(laps[n], laps[n + 1], strict=True)]
        for n, step in enumerate(steps)
    }
    is_stored = engine != "onnxruntime" and model.from_cache
    print(json.dumps({"steps": spans, "modules": len(sys.modules), "from_cache": is_stored}))


if __name__ == "__main__":
    main()
