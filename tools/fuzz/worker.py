"""A process that checks the cases of a range of seeds, and announces each before it starts."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

from fuzz import engines
from fuzz.case import case_of
from fuzz.check import check


def work(first: int, count: int, at: Path) -> None:
    """Checks cases and writes a JSON line on each to standard output.

    `at` holds the seed and phase of the current work, in case the process dies.
    """
    engines.quiet()
    # Compiling makes many small objects and few cycles; imported objects stay anyway.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    notes = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for seed in range(first, first + count):

        def phase(name: str, seed: int = seed) -> None:
            os.pwrite(notes, f"{seed} {name}".ljust(40).encode(), 0)

        phase("generate")
        started = time.perf_counter()
        case = case_of(seed)
        outcome = check(case, phase)
        line = {
            "seed": seed,
            "kind": outcome.kind,
            "sort": outcome.sort,
            "what": outcome.what,
            "judges": outcome.judges,
            "operators": case.operators,
            "seconds": round(time.perf_counter() - started, 4),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    os.close(notes)
