"""Times builds of a model in turns, in a process of its own: `python -m harness.tuning_child ...`.

Arguments: a model's name, the builds as JSON (name, costs, and a file of records or "" for each),
the number of threads, and the number of turns. Prints nanoseconds by build as JSON: the sum of what
the kernels take, each on an undisturbed core.
"""

import json
import sys
from dataclasses import replace

import numpy as np

import clew
import zoo
from clew.machine.costs import Costs
from clew.machine.target import describe_host
from clew.tuning.whole import quantiles
from clew.tuning.workbench import Timed

_TYPICAL = 0.25  # quantile: not all disturbances are noticed
_WARM_CALLS = 4  # weights move to their final place, caches fill


def main(name: str, builds: str, threads: str, turns: str) -> None:
    """Prints the times of a call by build."""
    timed = {}
    for build, costs, records in json.loads(builds):
        machine = replace(describe_host(), costs=Costs.of_record(costs))
        compiled = clew.compile(
            zoo.path(name), target=machine, threads=int(threads), tuned=records or None
        )
        values = [compiled.checked(list(zoo.inputs(name).values()))]
        made = compiled.build_for(values[0])
        for _ in range(_WARM_CALLS):
            made.program(values[0])
        timed[build] = Timed(made, values), values
    names = list(timed)
    rows: dict[str, list[np.ndarray]] = {build: [] for build in names}
    for turn in range(int(turns)):
        shift = turn % len(names)
        for build in names[shift:] + names[:shift]:
            one, values = timed[build]
            rows[build].append(one.turn(values)[1])
    found = {build: quantiles(taken, _TYPICAL) for build, taken in rows.items()}
    print(json.dumps({build: float(np.nansum(times)) for build, times in found.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
