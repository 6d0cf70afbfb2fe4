"""ONNX's backend tests through `clew.compile`: a table, the ratchet file, guard pages.

    python tools/backend_suite.py                       every case; a table by operator
    python tools/backend_suite.py node/test_conv light  cases with these prefixes
    python tools/backend_suite.py --update              writes passing cases to the ratchet file,
                                                        and updates the files made from it
    python tools/backend_suite.py --guard               every buffer between forbidden pages, with
                                                        poisoned padding, at its end and its start

The exit code is 1 if a case has a worse result than in the ratchet file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial

import onnx_operators
from clew.runtime.guard import GuardSide
from onnx_suite import ratchet
from onnx_suite.cases import Case, chosen
from onnx_suite.pools import run_all
from onnx_suite.running import Outcome, outcome
from onnx_suite.table import by_label, summary


def main() -> int:
    """Runs the command line."""
    options = _arguments()
    cases = chosen(options.case)
    if not cases:
        print("no case has this prefix", file=sys.stderr)
        return 2
    worse = 0
    sides: list[GuardSide | None] = list(GuardSide) if options.guard else [None]
    for side in sides:
        if side is not None:
            print(f"guard pages at the {side.value} of every buffer")
        results = _run(cases, side, options)
        worse += _report(results, cases, options)
    if options.update:
        before = ratchet.read() if options.case and ratchet.FILE.exists() else {}
        ratchet.write({**before, **{key: ratchet.words(key, r) for key, r in results.items()}})
        for path, text in onnx_operators.texts().items():
            path.write_text(text)
    return 1 if worse and not options.update else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="*", help="prefix of a case's name, or of kind/name")
    parser.add_argument("--update", action="store_true", help="write the ratchet file")
    parser.add_argument("--guard", action="store_true", help="run behind guard pages")
    parser.add_argument("--interpreted", action="store_true", help="also check graphs with NumPy")
    parser.add_argument("--threads", type=int, default=1, help="threads of a compiled model")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument(
        "--failures", action="store_true", help="list failures instead of the table"
    )
    return parser.parse_args()


def _run(
    cases: Mapping[str, Case], side: GuardSide | None, options: argparse.Namespace
) -> dict[str, Outcome]:
    work = partial(
        outcome, guard=side or False, interpreted=options.interpreted, threads=options.threads
    )
    results: dict[str, Outcome] = {}
    started = time.perf_counter()
    for case, result in run_all(list(cases.values()), work, options.jobs):
        results[case.key] = result
        if sys.stderr.isatty():
            print(f"\r{len(results)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(f"\r{len(results)} cases in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return {key: results[key] for key in cases}


def _report(
    results: Mapping[str, Outcome], cases: Mapping[str, Case], options: argparse.Namespace
) -> int:
    if options.failures:
        for key, result in results.items():
            if not result.passed:
                print(f"{key}: {result.reason}")
    else:
        width = 44
        print(f"{'operators':{width}} cases passed native  host")
        rows = by_label(results, cases)
        for label, row in sorted(rows.items(), key=lambda item: (-item[1].cases, item[0])):
            shown = label if len(label) <= width else label[: width - 1] + "…"
            print(f"{shown:{width}} {row.cases:5} {row.passed:6} {row.native:6} {row.host:5}")
    print("\n".join(summary(results, cases)))
    before = ratchet.read() if ratchet.FILE.exists() else {}
    worse = 0
    for key, result in results.items():
        found = ratchet.complaint(before.get(key), result)
        if found and before.get(key, "").startswith("passed") and not found.startswith("better"):
            worse += 1
            print(f"{key}: {found}")
    return worse


if __name__ == "__main__":
    sys.exit(main())
