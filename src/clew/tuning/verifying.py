"""Compares candidates with the interpreter, on operands of a real run, next to guard pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clew.backends.cpu.history import with_choices
from clew.backends.options import Options
from clew.bisection.cases import Case, completed
from clew.bisection.checks import BuildCheck
from clew.bisection.kernels import due_of_function, true_results
from clew.bisection.numbers import error_of
from clew.build.observe import Ran, observe
from clew.build.result import Build
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.structural import structural_hash
from clew.ir.types import TupleType
from clew.passes.apply_history import untuned
from clew.runtime.cache import Cache
from clew.runtime.guard import GuardSide

_MOST_BYTES: Final = 1 << 30  # of operands and results to keep
_SIDES: Final = (GuardSide.END, GuardSide.START)


class Verifier:
    """Runs single kernels of a build on the operands that they have in a run of it."""

    def __init__(self, build: Build, arrays: Sequence[Any], options: Options, cache: Cache) -> None:
        self._build = build
        self._arrays = arrays
        self._options = options
        self._cache = cache
        self._known: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}

    def wrong(self, subject: str, function: Function, choices: str) -> str:
        """Returns the fault in the results of a kernel with these choices; "" if there is none.

        Each of its buffers lies between guard pages, first at their end and then at their start: an
        access outside kills the process.
        """
        operands, expected = self._case(subject)
        due = due_of_function(function)
        plain = replace(self._options, schedules=(), backends=())
        for side in _SIDES:
            case = alone([with_choices(function, choices)], operands, expected)
            check = BuildCheck(due, replace(plain, guard=side), cache=self._cache)
            for found in check.outputs(case.module, case.inputs):
                errors = [error_of(true, found[name]) for name, true in case.expected.items()]
                if max(errors, default=0.0) > due:
                    return (
                        f"it differs from the interpreter by {max(errors):.2g}, allowed {due:.2g}"
                    )
        return ""

    def operands(self, subject: str) -> tuple[Any, ...]:
        """Returns the operands of a kernel in a run."""
        return self._case(subject)[0]

    def _case(self, subject: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the operands of a kernel in a run, and the interpreter's results."""
        found = self._known.pop(subject, None)
        if found is None:
            found = self._observed(subject)
        self._known[subject] = found
        while len(self._known) > 1 and sum(map(_bytes_of, self._known.values())) > _MOST_BYTES:
            self._known.pop(next(iter(self._known)))  # the least recently used
        return found

    def _observed(self, subject: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        seen: list[Ran] = []
        calls = {
            use.call.id
            for use in self._build.uses
            if isinstance(use.call.op, Function)
            and structural_hash(untuned(use.call.op)) == subject
        }

        def note(ran: Ran) -> None:
            if not seen:
                seen.append(ran)

        observe(self._build, self._arrays, note, only=calls)
        assert seen, "a kernel that no run reaches is not tuned"
        with np.errstate(all="ignore"):
            true = true_results(seen[0], self._build)
        return seen[0].operands, true if isinstance(true, tuple) else (true,)


def _bytes_of(case: tuple[tuple[Any, ...], tuple[Any, ...]]) -> int:
    return sum(int(np.asarray(array).nbytes) for part in case for array in part)


def alone(
    functions: Sequence[Function], operands: Sequence[Any], expected: Sequence[Any] = ()
) -> Case:
    """Returns a module that only calls some kernels, one after another on the same operands, with
    its inputs and expected outputs.
    """
    params = [Var(f"x{n}", p.type) for n, p in enumerate(functions[0].params)]
    results: list[Expr] = []
    for function in functions:
        call = Call(function, params)
        if isinstance(call.type, TupleType):
            results += [TupleGetItem(call, n) for n in range(len(call.type.fields))]
        else:
            results.append(call)
    inputs = {p.name: value for p, value in zip(params, operands, strict=True)}
    outputs = {f"y{n}": expected[n] if expected else None for n in range(len(results))}
    return completed(params, Tuple(results), inputs, outputs, {})
