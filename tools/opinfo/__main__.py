"""The operators of torch's tests through clew: outcomes, counts, and the list of those that pass.

    python -m opinfo                          every entry, every sample; outcomes that are not good
    python -m opinfo add 'fft.*' --samples 3  these entries, three samples of each dtype
    python -m opinfo --json FILE              writes the outcomes to a file, too
    python -m opinfo --resume FILE            keeps what is done in a file, and goes on from there
    python -m opinfo --update                 writes the entries that pass to the tests' list

The exit code is 1 if a value is wrong, clew crashes, or an entry of the list does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from opinfo import passing
from opinfo.entries import DTYPES, tasks
from opinfo.pool import Options, run_all
from opinfo.quick import quicken
from opinfo.record import Record
from opinfo.report import by_entry, summary, table


def main() -> int:
    """Runs the command line."""
    options = _arguments()
    quicken()
    torch.set_num_threads(1)
    work = tasks(options.entry, options.dtype or tuple(DTYPES))
    if not work:
        print("no entry has this name", file=sys.stderr)
        return 2
    how = Options(options.samples, options.together, options.seconds)
    record = Record(options.resume) if options.resume else None
    results = record.done(work) if record else []
    done, started = {task for task, _ in results}, time.perf_counter()
    for task, outcomes in run_all([t for t in work if t not in done], how, options.jobs):
        results.append((task, outcomes))
        if record:
            record.add(task, outcomes)
        for line in table(by_entry(results[-1:]), options.every):
            print(line, flush=True)
        if sys.stderr.isatty() or len(results) % 50 == 0:
            spent = time.perf_counter() - started
            print(f"{len(results)} of {len(work)} in {spent:.0f} s", file=sys.stderr, flush=True)
    found = by_entry(results)
    print("\n".join(summary(found)))
    if options.json:
        text = json.dumps({n: e.as_json() for n, e in found.items()}, indent=1)
        options.json.write_text(text + "\n")
    if options.update:
        passing.update(found)
        return 0
    lost = passing.lost(found)
    for name in lost:
        print(f"{name} passed before")
    return 1 if lost or any(e.worst for e in found.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("entry", nargs="*", help="name of an entry, or a start of names and *")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="only this dtype")
    parser.add_argument("--samples", type=int, help="samples of each entry and dtype (default all)")
    parser.add_argument("--together", type=int, default=8, help="samples in one module")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for one module")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    parser.add_argument("--resume", type=Path, help="file of the outcomes so far")
    parser.add_argument("--every", action="store_true", help="also list what agrees")
    parser.add_argument("--update", action="store_true", help="write the list of the tests")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
