"""Times calls of a model in a process of its own: `python -m harness.tuning_child ...`.

Arguments: a model's name, the costs to compile it with as JSON, a file of records ("" for none),
the number of threads, and seconds. Prints the median in nanoseconds.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import clew
import zoo
from clew.machine.costs import Costs
from clew.machine.target import describe_host

_WARM_CALLS = 4  # weights move to their final place, caches fill
_LEAST_CALLS = 3


def main(name: str, costs: str, records: str, threads: str, seconds: str) -> None:
    """Prints the median time of a call."""
    machine = replace(describe_host(), costs=Costs.of_record(json.loads(costs)))
    tuned = Path(records) if records else None
    compiled = clew.compile(zoo.path(name), target=machine, threads=int(threads), tuned=tuned)
    inputs = list(zoo.inputs(name).values())
    for _ in range(_WARM_CALLS):
        compiled(*inputs)
    times: list[int] = []
    ends = time.perf_counter() + float(seconds)
    while len(times) < _LEAST_CALLS or time.perf_counter() < ends:
        began = time.perf_counter_ns()
        compiled(*inputs)
        times.append(time.perf_counter_ns() - began)
    print(statistics.median(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
