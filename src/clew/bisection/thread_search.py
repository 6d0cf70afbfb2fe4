"""The search in a program that is right on one thread: finds the kernel whose threads share
elements.
"""

from __future__ import annotations

from typing import Final

from clew.bisection.facts import facts_of
from clew.bisection.inside import racing_step
from clew.bisection.kernels import Fault, alone, due_of_function, true_results
from clew.bisection.session import Session
from clew.bisection.smallest import smallest_kernel
from clew.bisection.verdict import Verdict
from clew.build.observe import Ran, observe
from clew.ir.expr import Function

RACES: Final = 100
"""The number of runs of code that may fail intermittently."""


def search_threads(session: Session) -> Verdict:
    """Returns the kernel that is wrong on several threads in repeated runs, or the one whose
    schedule lets threads share elements.
    """
    threads = session.options.threads
    failing: list[tuple[Fault, str, str]] = []
    suspects: list[tuple[Fault, str, str]] = []

    def note(ran: Ran) -> None:
        entries = session.build.segments[ran.use.segment].plan.steps[ran.use.step].code.entries
        if failing or all(e.n_pieces * e.n_lines == 1 for e in entries):
            return
        session.say(f"running {ran.use.name} alone on {threads} threads, {RACES} times")
        function = ran.use.call.op
        assert isinstance(function, Function)
        value = true_results(ran, session.build)
        case = alone(function, ran.operands, value, session.build.sizes)
        check = session.check(due_of_function(function), threads, RACES)
        error = check.error(case.module, case.inputs, case.expected)
        fault = Fault("kernel", ran.use.call, ran.use, ran.operands, value, error, check.tolerance)
        found = racing_step(case, check, session.say)
        if error > check.tolerance:
            failing.append((fault, *found))
        elif found[0]:
            suspects.append((fault, *found))

    observe(session.build, session.arrays, note)
    if not failing and not suspects:
        text = f"the program is right on one thread but wrong on {threads}"
        return session.verdict("threads", f"{text}; each kernel alone is right")
    return wrong_on_threads(session, *(failing or suspects)[0])


def wrong_on_threads(session: Session, fault: Fault, step: str, problem: str) -> Verdict:
    """Returns the verdict on a kernel that is wrong on several threads, with the schedule step that
    shares elements and the resulting problem; both may be unknown.
    """
    threads = session.options.threads
    facts = {**facts_of(session, fault), "step": step}
    if problem:
        session.evidence.append(f"after {step}: {problem}")
    if fault.error > fault.due:
        check = session.check(fault.due, threads, RACES)
        facts["reduced"] = smallest_kernel(session, check, fault)
    text = f"kernel {fault.name} is right on one thread but wrong on {threads}"
    how = f": {problem}" if problem else ""
    return session.verdict("threads", f"{text}{how}", **facts)
