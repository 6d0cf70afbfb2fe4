"""Times candidates for one kernel alone, to drop those that are clearly slower.

Measuring a candidate inside the program takes many whole calls. Most candidates are so much slower
than the choices they are compared with that a few runs of the kernel alone show it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clew.backends.cpu.history import with_choices
from clew.backends.options import Options
from clew.bisection.checks import BuildCheck
from clew.ir.expr import Function
from clew.machine.probes.quiet import quiet
from clew.runtime.cache import Cache
from clew.runtime.pieces import Pieces
from clew.tuning.verifying import alone

CLEARLY_SLOWER: Final = 1.01
"""Candidates with a larger ratio are not measured in the program. Alone, operands come from nearer
caches, and so candidates that gain by less waiting for memory may look no faster.
"""
_LEAST, _MOST = 3, 12  # rounds
_SECONDS: Final = 0.3


def ratios(
    function: Function,
    operands: Sequence[Any],
    choices: Sequence[str],
    options: Options,
    cache: Cache,
) -> list[float]:
    """Returns the times of a kernel with some choices as ratios to its time with the first of them:
    the least of a few rounds, of those on an undisturbed core. All are kernels of one program and
    run in turns on the same operands.
    """
    # The first kernel finds operands where no other kernel has left them: it does not count.
    order = [choices[-1], *choices]
    case = alone([with_choices(function, text) for text in order], operands)
    build = BuildCheck(0.0, replace(options, schedules=(), backends=()), cache=cache).build(
        case.module, case.inputs
    )
    places = [(use.segment, use.step) for use in build.uses]
    pieces = Pieces(build.program, build.segments, places, quiet())
    arrays = [np.asarray(case.inputs[name]) for name in case.module.input_names]
    first_ns, _ = pieces.run(arrays)
    pieces.divide(first_ns)
    rows, disturbed = [first_ns], [np.ones(len(first_ns), bool)]
    ends = time.perf_counter() + _SECONDS
    while len(rows) <= _LEAST or (len(rows) <= _MOST and time.perf_counter() < ends):
        taken, undisturbed = pieces.run(arrays)
        rows.append(taken)
        disturbed.append(~undisturbed)
    least = np.min(np.where(disturbed, np.inf, rows), axis=0)
    least = np.where(np.isinf(least), np.min(rows, axis=0), least)
    return [float(ns / least[1]) for ns in least[1:]]
