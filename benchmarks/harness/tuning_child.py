"""Times builds of a model in turns, in a process of its own: `python -m harness.tuning_child ...`.

Arguments: a model's name, the builds as JSON (name, costs, and a file of records or "" for each),
the number of threads, and the number of turns. Prints the medians in nanoseconds as JSON.
"""

import json
import statistics
import sys
from dataclasses import replace

import clew
import zoo
from clew.bench.interleave import interleaved_ns
from clew.machine.costs import Costs
from clew.machine.target import describe_host

_WARM_CALLS = 4  # weights move to their final place, caches fill
_TURN_S = 0.1


def main(name: str, builds: str, threads: str, turns: str) -> None:
    """Prints the median times of a call by build."""
    runs = {}
    for build, costs, records in json.loads(builds):
        machine = replace(describe_host(), costs=Costs.of_record(costs))
        compiled = clew.compile(
            zoo.path(name), target=machine, threads=int(threads), tuned=records or None
        )
        inputs = list(zoo.inputs(name).values())
        for _ in range(_WARM_CALLS):
            compiled(*inputs)
        runs[build] = lambda compiled=compiled, inputs=inputs: compiled(*inputs)
    times = interleaved_ns(runs, int(turns), _TURN_S)
    print(json.dumps({build: statistics.median(taken) for build, taken in times.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
