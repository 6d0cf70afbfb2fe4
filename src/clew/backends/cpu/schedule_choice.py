"""Schedules by hand: the kernels that a user's schedule applies to, and its steps."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from clew.backends.calls import name_of
from clew.ir.expr import Call, Function
from clew.ir.visit import post_order
from clew.loop.ir import Nest
from clew.loop.schedule import Schedule, Step
from clew.machine.target import Target
from clew.ops.registry import Op
from clew.patterns import Pattern, find_all
from clew.schedules import NO_REQUEST, Decision, Plan, Request, Rule, Settings, Space
from clew.support.dataclass import dataclass
from clew.support.errors import (
    PASSED_ON,
    ClewError,
    CompileError,
    InputError,
    ScheduleError,
    locate,
)

ScheduleFunction = Callable[..., Any]
Planned = Callable[[Request, Sequence[Rule[Any]]], Plan]
"""Gives the plan of a kernel with a user's choices and with further rules."""


@dataclass(frozen=True, eq=False, repr=False)
class ScheduleFor:
    """A schedule and the kernels it is for: those that meet every condition given.

    `kernel` is a kernel's name or a glob, `ops` are operators that it holds, `pattern` is matched
    against its operators. `how` is a function of `(schedule, target)`, recorded steps, choices of
    rules, or a rule; a function returns False to leave a kernel to the rules.
    """

    name: str
    how: ScheduleFunction | Sequence[Step | str] | Request | Rule[Any]
    kernel: str = ""
    ops: tuple[str, ...] = ()
    pattern: Pattern | None = None
    fusion: str = ""
    required: bool = True

    def __repr__(self) -> str:
        return f"<ScheduleFor {self.name}: {self.condition}>"

    @property
    def condition(self) -> str:
        """Which kernels it is for, as text."""
        parts = [f"kernel={self.kernel!r}"] if self.kernel else []
        parts += [f"op={op!r}" for op in self.ops]
        parts += [f"pattern={self.pattern}"] if self.pattern is not None else []
        parts += [f"of the fusion {self.fusion}"] if self.fusion else []
        return ", ".join(parts)

    @property
    def record(self) -> dict[str, Any] | ScheduleFor:
        """The arguments of `schedule_for` that make it, as JSON values; itself if there are none,
        because it holds code or a pattern.
        """
        about: dict[str, Any] = {"kernel": self.kernel, "op": list(self.ops), "name": self.name}
        about["required"] = self.required
        if self.pattern is not None or self.fusion or callable(self.how):
            return self
        if isinstance(self.how, Request):
            return {**about, "choose": str(self.how)}
        if isinstance(self.how, Rule):
            return self
        return {**about, "steps": "\n".join(map(str, self.how))}

    def fits(self, name: str, function: Function) -> bool:
        """Whether it is for a kernel: its name in the model, and its primitive function."""
        return (not self.kernel or fnmatchcase(name, self.kernel)) and self.may_fit(function)

    def may_fit(self, function: Function) -> bool:
        """Whether it is for a kernel with this primitive function, if the kernel's name fits."""
        if self.fusion and not (function.attrs.get("fusion") and name_of(function) == self.fusion):
            return False
        held = {n.op_name for n in post_order(function) if isinstance(n, Call)}
        if not set(self.ops) <= held:
            return False
        return self.pattern is None or bool(find_all(self.pattern, function))

    def apply(self, nest: Nest, planned: Planned, target: Target, use: str = "") -> Plan | None:
        """Returns the plan of a kernel; None where the function left it to the rules, or the rule
        does not match. `planned` gives the plan by rules. `use` names the kernel in errors.

        Errors: those of the primitives and of requests, with the kernel's name; C081 when the
        function fails.
        """
        with locate(stage=f"schedule {self.name} of kernel {use or nest.name}"):
            if not callable(self.how):
                try:
                    if isinstance(self.how, Request):
                        return planned(self.how, ())
                    if isinstance(self.how, Rule):
                        plan = planned(NO_REQUEST, (self.how,))
                        return plan if self.name in plan.rules else None
                    return self._plan(Schedule.replay(nest, self.how))
                except ScheduleError as error:
                    _name_use(error, nest, use)
                    raise
            schedule = Schedule(nest)
            try:
                taken = inspect.signature(self.how).parameters.values()
                few = sum(p.default is p.empty for p in taken) == 1
                said = self.how(schedule) if few else self.how(schedule, target)
            except ClewError as error:
                _name_use(error, nest, use)
                raise
            except PASSED_ON:
                raise
            except BaseException as error:
                raise CompileError(
                    "C081",
                    f"the schedule {self.name} failed: {type(error).__name__}: {error}",
                    hint="this is a mistake of the schedule; it was given:\n" + str(Schedule(nest)),
                ) from error
            return None if said is False else self._plan(schedule)

    def _plan(self, schedule: Schedule) -> Plan:
        return Plan(schedule, (Decision(self.name, "", Space(), Settings({})),))


def _name_use(error: ClewError, nest: Nest, use: str) -> None:
    """Makes an error about a nest, whose name equal kernels share, name the intended kernel."""
    if use and use != nest.name:
        # The name may be a stage's, too: those stand in quotes, or before what is their loops'.
        whole = rf"(?<!['\w.]){re.escape(nest.name)}(?!['\w.])"
        error.message = re.sub(whole, use, error.message)


def schedule_for(
    kernel: str = "",
    *,
    op: str | Iterable[str] = (),
    pattern: Pattern | None = None,
    steps: str | Sequence[Step | str] | None = None,
    choose: str = "",
    name: str = "",
    required: bool = True,
) -> Any:
    """Decorator: makes a function of `(schedule, target)` the schedule of the kernels that meet
    every condition; with `steps` (text, a line each, or recorded ones) or `choose` returns it at
    once. `choose` names rules and values of their choices, such as `matmul: rows=6 vectors=2`;
    `kernel.choices` lists those of a kernel.

    ```python
    @clew.schedule_for(op="nn.softmax")
    def rows_in_vectors(schedule, target): ...


    compiled = clew.compile(model, extend=[rows_in_vectors])
    ```

    Where no kernel meets the conditions a warning (I309) says so, unless `required=False`.

    Errors: I081 where no condition is given, or both steps and choices; P020 for steps that do not
    parse, P021 for choices.
    """
    ops = (op,) if isinstance(op, str) else tuple(op)
    if not (kernel or ops or pattern is not None):
        raise InputError("I081", "no kernel is meant", hint="give kernel=, op= or pattern=")

    if steps is not None and choose:
        raise InputError("I081", "both steps and choices", hint="give steps= or choose=")

    def make(how: ScheduleFunction | Sequence[Step | str] | Request, called: str) -> ScheduleFor:
        return ScheduleFor(name or called, how, kernel, ops, pattern, required=required)

    called = kernel or ops[0] if ops or kernel else "steps"
    if choose:
        return make(Request.parse(choose), called)
    if steps is not None:
        return make(recorded(steps), called)
    return lambda function: make(function, function.__name__)


def recorded(steps: str | Sequence[Step | str]) -> tuple[Step, ...]:
    """Returns steps from text, a line each, or from a list of them.

    Errors: P020 for a line that is not a step.
    """
    lines = steps.splitlines() if isinstance(steps, str) else steps
    return tuple(
        Step.parse(line) if isinstance(line, str) else line
        for line in lines
        if not (isinstance(line, str) and (not line.strip() or line.lstrip().startswith("#")))
    )


def of_fusion(name: str, how: ScheduleFunction | str | Sequence[Step | str]) -> ScheduleFor:
    """Returns the schedule that a user's fusion brings along."""
    steps = how if callable(how) else recorded(how)
    return replace(ScheduleFor(name, steps), fusion=name)


def of_rule(rule: Rule[Any]) -> ScheduleFor:
    """Returns the schedule of the kernels that a user's rule matches."""
    return ScheduleFor(rule.name, rule, kernel="*", required=False)


def of_operators(function: Function, target: Target) -> list[ScheduleFor]:
    """Returns the schedules that a kernel's operators were declared with, for this target."""
    ops = dict.fromkeys(n.op for n in post_order(function) if isinstance(n, Call))
    return [
        ScheduleFor(op.name, rule, ops=(op.name,))
        for op in ops
        if isinstance(op, Op)
        for feature, rule in op.schedule_rules
        if not feature or target.has(feature)
    ]
