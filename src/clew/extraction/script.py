"""The stand-alone script of a part: a program that checks it and times it."""

from __future__ import annotations

from typing import Final

from clew.extraction.stored import StoredPart
from clew.version import VERSION

_PROGRAM: Final = '''\
#!/usr/bin/env python
"""{title}

Runs alone: checks the part's outputs against those captured in a run of the whole model, then times
it. The weights, the module's text and the captured values are in {data}.
Written by clew {version}.

    python {file} --threads 1 --repeats 100{more}
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import clew


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks and times a part of a model.")
    parser.add_argument("--threads", type=int, default=None, help="threads of a run; all CPUs")
    parser.add_argument("--repeats", type=int, default=50, help="timed runs")
{options}    asked = parser.parse_args()
    part = clew.load_part(__file__)
    report = part.check(threads=asked.threads)
    print(report)
    compiled = part.compile(threads=asked.threads{compiled})
{again}    arrays = [part.inputs[name] for name in compiled.input_names]
    for _ in range(3):
        compiled(*arrays)
    times = []
    for _ in range(max(1, asked.repeats)):
        start = time.perf_counter_ns()
        compiled(*arrays)
        times.append((time.perf_counter_ns() - start) / 1e3)
    times.sort()
    low, high = times[len(times) // 10], times[-1 - len(times) // 10]
    kernels = len(compiled.kernels)
    many = f"{{kernels}} kernel{{'s' * (kernels != 1)}}, {{len(times)}} runs"
    print(f"{{many}}: median {{statistics.median(times):.1f}} µs, "
          f"10 % to 90 %: {{low:.1f}} to {{high:.1f}} µs")
    return 0 if {passed} else 1


if __name__ == "__main__":
    sys.exit(main())
'''
_LEVEL: Final = """\
    parser.add_argument("--opt-level", type=int, default=3, help="of the part that is timed")
"""
_AGAIN: Final = """\
    deployed = part.check(threads=asked.threads, opt_level=asked.opt_level)
    print(f"at opt level {asked.opt_level}: {deployed}")
"""


def script_text(part: StoredPart, file: str) -> str:
    """Returns the program. Fused parts are timed without changes, others at a level given on the
    command line.
    """
    fused = "passes" in part.options
    layers = ", ".join(part.layers[:8]) + (" ..." if len(part.layers) > 8 else "")
    title = f"{part.name}: layers {layers}" if layers else part.name
    plain = "".join(c if c.isprintable() and c not in '\\"' else "?" for c in title)
    return _PROGRAM.format(
        title=plain,
        file=file,
        data=f"{file}.npz",
        version=VERSION,
        more="" if fused else " --opt-level 3",
        options="" if fused else _LEVEL,
        compiled="" if fused else ", opt_level=asked.opt_level",
        again="" if fused else _AGAIN,
        passed="report.passed" if fused else "report.passed and deployed.passed",
    )
