"""Compiles one model in a separate process and prints the seconds as JSON.

`python -m harness.compile_child MODEL TRACE`, where TRACE is 1 or 0. The cache is that of the
environment.
"""

import json
import os
import sys
import time


def main() -> None:
    """Prints {import_s, load_s, compile_s, user_s}; the last excludes system time."""
    path, trace = sys.argv[1], sys.argv[2] == "1"
    start = time.perf_counter()
    import clew  # noqa: PLC0415 - the import is timed, too

    _ = clew.load, clew.compile  # public names are imported when first used
    imported, before = time.perf_counter(), os.times().user
    model = clew.load(path)
    loaded = time.perf_counter()
    clew.compile(model, diagnostics=clew.Diagnostics(trace=trace))
    compiled = time.perf_counter()
    spans = {
        "import_s": imported - start,
        "load_s": loaded - imported,
        "compile_s": compiled - loaded,
        "user_s": os.times().user - before,
    }
    print(json.dumps(spans))


if __name__ == "__main__":
    main()
