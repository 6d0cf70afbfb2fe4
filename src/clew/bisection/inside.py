"""Looks inside one wrong kernel: its operators' tensor expressions, its schedule, its machine
code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from clew.backends.cpu.kernel_stages import operator_calls
from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.bisection.cases import Case, lengths, resized
from clew.bisection.checks import BuildCheck
from clew.bisection.numbers import dtypes_of, due_of, error_of, narrow_in
from clew.bisection.reduce import with_expected
from clew.build.result import KernelUse
from clew.ir.expr import Function, Var
from clew.ir.interpret import interpret_values
from clew.ir.types import TensorType
from clew.loop.interpret import interpret
from clew.loop.ir import Nest, Stmt, loops
from clew.loop.lower import lower
from clew.loop.sizes import at_sizes
from clew.ops.registry import Op
from clew.support.errors import ClewError
from clew.te.interpret import evaluate
from clew.te.sizes import tensors_at

Say = Callable[[str], None]
# Limits, beyond which a check takes minutes: elements of an index grid, iterations of an
# interpreted nest.
_MOST_GRID: Final = 20_000_000
_MOST_POINTS: Final = 150_000
# The size of axes of a kernel reduced for interpretation.
_FEW: Final = 5


@dataclass(frozen=True)
class Inside:
    """The fault of a kernel: `compute`, `schedule` or `codegen`; the operator or the step."""

    kind: str
    summary: str
    step: str = ""
    op: str = ""
    layers: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


def look_inside(case: Case, check: BuildCheck, say: Say) -> Inside:
    """Returns the reason why a kernel, in a separate module, does not compute its function."""
    (use,) = check.build(case.module, case.inputs).uses
    source, function = use.source, use.call.op
    assert isinstance(function, Function)
    operands = _operands(use, case)
    wanted = list(case.expected.values())
    evidence: list[str] = []

    say("comparing tensor expressions with references")
    wrong = _wrong_operator(function, operands, case.sizes, evidence)
    if wrong is not None:
        return replace(wrong, evidence=tuple(evidence))
    due = check.tolerance

    def off(results: Sequence[Any]) -> float:
        pairs = zip(wanted, results, strict=True)
        return max(error_of(w, np.reshape(r, np.shape(w))) for w, r in pairs)

    if _points(at_sizes(source.nest, source.in_nest(case.sizes))) <= _MOST_GRID:
        inputs, outputs = tensors_at(source.stages.inputs, source.stages.outputs, case.sizes)
        results = evaluate(outputs, dict(zip(inputs, operands, strict=True)))
        if (error := off(results)) > due:
            evidence.append(f"its tensor expressions together are off by {error:.2g}")
            text = "its operators' tensor expressions are right only one by one"
            return Inside("compute", text, evidence=tuple(evidence))
        evidence.append("its tensor expressions are right")
    found = _interpreted(source, operands, case.sizes, off, due, evidence, say)
    if found is not None and found.kind == "schedule":
        return replace(found, evidence=tuple(evidence))
    step, whole = _first_compiled(case, check, source, say, evidence)
    if found is None:
        if whole:
            evidence.append("the loop nest is too large to interpret: testing machine code instead")
            return _machine(step, tuple(evidence))
        text = f"machine code is wrong from {step} on"
        return Inside("schedule" if step else "codegen", text, step, evidence=tuple(evidence))
    return replace(found, step=step, evidence=tuple(evidence))


def _operands(use: KernelUse, case: Case) -> list[Any]:
    """Returns the operands of a case's only kernel: its inputs, without those read for a size."""
    params = (arg for arg in use.call.args if isinstance(arg, Var))
    return [np.asarray(case.inputs[param.name]) for param in params]


def _machine(step: str, evidence: tuple[str, ...]) -> Inside:
    text = "the machine code of the plain loop nest is wrong: its expressions' code is"
    return Inside("codegen", text, step, evidence=evidence)


def _wrong_operator(
    function: Function, operands: Sequence[Any], sizes: Mapping[str, int], evidence: list[str]
) -> Inside | None:
    """Returns the first operator whose `compute` differs from its reference on its operands."""
    calls = operator_calls(function)
    needed = {a.id for c in calls for a in c.args} | {c.id for c in calls}
    values = interpret_values(function, operands, needed, sizes=sizes)
    values.update({p.id: v for p, v in zip(function.params, operands, strict=True)})
    checked = 0
    for call in calls:
        op = call.op
        if not isinstance(op, Op) or op.compute is None or op.reference_rule is None:
            continue
        if not all(isinstance(a.type, TensorType) for a in call.args):
            continue
        args = [np.asarray(values[a.id]) for a in call.args]
        inputs = op.placeholders([a.tensor for a in call.args])
        made = op.compute(*inputs, **call.attrs)
        tensors = list(made) if isinstance(made, tuple) else [made]
        inputs, tensors = tensors_at(inputs, tensors, sizes)
        if _points(lower(op.name, inputs, tensors)) > _MOST_GRID:
            evidence.append(f"{op.name} is too large to evaluate its tensor expression")
            continue
        results = evaluate(tensors, dict(zip(inputs, args, strict=True)))
        error = error_of(values[call.id], tuple(results) if isinstance(made, tuple) else results[0])
        checked += 1
        if error > due_of(dtypes_of(call.type), narrow_in(call.args)):
            text = f"{op.name}: its tensor expression differs from its reference by {error:.2g}"
            evidence.append(text)
            return Inside("compute", text, op=op.name, layers=tuple(call.layers))
    if checked:
        evidence.append(f"{checked} operators' tensor expressions agree with their references")
    return None


def _points(nest: Nest) -> float:
    return float(sum(_iterations(stmt) for stmt in nest.body.stmts))


def _iterations(stmt: Stmt) -> int:
    return math.prod(loop.extent for loop in loops(stmt))


def _interpreted(
    source: KernelSource,
    operands: Sequence[Any],
    sizes: Mapping[str, int],
    off: Callable[[Sequence[Any]], float],
    due: float,
    evidence: list[str],
    say: Say,
) -> Inside | None:
    """Returns the loop interpreter's result for nest and schedule; None if they are too large."""
    if _points(at_sizes(source.nest, source.in_nest(sizes))) > _MOST_POINTS:
        return None
    problems: dict[int, str] = {}

    def wrong(nest: Nest, position: int) -> bool:
        say(f"interpreting the loop nest after step {position} of {len(source.schedule.steps)}")
        try:
            error = off(interpret(at_sizes(nest, source.in_nest(sizes)), operands))
        except AssertionError as assertion:
            problems[position] = str(assertion)
            return True
        if error > due:
            problems[position] = f"off by {error:.2g}"
        return error > due

    steps = source.schedule.steps
    if wrong(source.nest, 0):
        evidence.append(f"the plain loop nest: {problems[0]}")
        text = f"the plain loop nest differs from its tensor expressions: {problems[0]}"
        return Inside("schedule", text, "lowering")
    if not wrong(source.scheduled_nest, len(steps)):
        evidence.append(f"the loop nest is right, plain and after {len(steps)} schedule steps")
        return Inside("codegen", "the scheduled loop nest is right, but its machine code is wrong")
    history = source.schedule.history
    low, high = 0, len(steps)
    if not wrong(history[-1], high):
        text = f"simplification after the schedule: {problems.get(high, '')}"
        evidence.append(text)
        return Inside("schedule", text, "simplification")
    while high - low > 1:
        middle = (low + high) // 2
        if wrong(history[middle], middle):
            high = middle
        else:
            low = middle
    step = str(steps[high - 1])
    evidence.append(f"the loop nest is right after {low} of {len(steps)} steps")
    evidence.append(f"after step {high}, {step}: {problems[high]}")
    return Inside("schedule", f"the loop nest is wrong from step {high} on: {problems[high]}", step)


def racing_step(case: Case, check: BuildCheck, say: Say) -> tuple[str, str]:
    """Returns the step of a kernel's schedule that lets concurrent iterations share elements, and
    how they do; two empty texts if there is none or it cannot be determined.

    Uses the loop interpreter, on shapes that are small enough for it.
    """
    small: Case | None = case
    for size in lengths(case):
        made = resized(small, size, min(size, _FEW), constants=True) if small else None
        small = with_expected(made) if made is not None else small
    if small is None or not small.expected:
        return "", ""
    try:
        (use,) = check.build(small.module, small.inputs).uses
    except (ClewError, AssertionError, ValueError):
        return "", ""
    if _points(at_sizes(use.source.nest, use.source.in_nest(small.sizes))) > _MOST_POINTS:
        return "", ""
    say("interpreting the schedule of a smaller kernel")
    operands = _operands(use, small)
    schedule = use.source.schedule
    for step, nest in zip(schedule.steps, schedule.history[1:], strict=True):
        if not any(loop.kind == "parallel" for loop in loops(nest.body)):
            continue
        try:
            interpret(at_sizes(nest, use.source.in_nest(small.sizes)), operands)
        except AssertionError as problem:
            return str(step), str(problem)
    return "", ""


def _first_compiled(
    case: Case, check: BuildCheck, source: KernelSource, say: Say, evidence: list[str]
) -> tuple[str, bool]:
    """Returns the step of the schedule from which on machine code is wrong, and whether it is wrong
    even without a schedule.
    """
    steps = source.schedule.steps

    def wrong(count: int) -> bool:
        say(f"compiling the kernel with {count} of {len(steps)} schedule steps")
        schedule = ScheduleFor("part", tuple(steps[:count]), kernel="*")
        options = replace(check.options, schedules=(schedule,))
        try:
            error = replace(check, options=options).error(case.module, case.inputs, case.expected)
        except (ClewError, AssertionError):  # a nest that is not yet a kernel
            return False
        return error > check.tolerance

    if wrong(0):
        evidence.append("machine code is wrong without any schedule, too")
        return "", True
    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        if wrong(middle):
            high = middle
        else:
            low = middle
    if not steps:
        return "", True
    evidence.append(f"machine code is right after {low} of {len(steps)} steps, wrong after {high}")
    return str(steps[high - 1]), False
