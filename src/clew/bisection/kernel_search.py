"""The search in one wrong kernel: alone, on one thread and on several, and inside it."""

from __future__ import annotations

from dataclasses import replace

from clew.bisection.cases import Case
from clew.bisection.checks import BuildCheck
from clew.bisection.facts import facts_of, layers_in
from clew.bisection.inside import look_inside, racing_step
from clew.bisection.kernels import Fault, alone
from clew.bisection.session import Session
from clew.bisection.smallest import smallest_around, smallest_kernel
from clew.bisection.thread_search import RACES, wrong_on_threads
from clew.bisection.verdict import Verdict
from clew.runtime.cache import Cache


def search_kernel(session: Session, fault: Fault) -> Verdict:
    """Returns the reason why a kernel does not compute its function on the operands it has in the
    program.
    """
    name = fault.name
    session.evidence.append(
        f"kernel {name} is {fault.error:.2g} off the reference of its function, on the "
        "operands it had in the run; all earlier kernels are right"
    )
    case = alone(fault.function, fault.operands, fault.expected, session.build.sizes)
    threads = session.options.threads
    single = session.check(fault.due, 1)
    session.say(f"running {name} alone")
    if _fails(single, case):
        session.evidence.append(f"{name} alone, on one thread, is also wrong")
        anew = replace(single, cache=Cache(None))
        if session.cache.root is not None and not _fails(anew, case):
            text = f"kernel {name} in the disk cache is wrong, but right when compiled again"
            return session.verdict(
                "codegen", f"{text}: clew cache clear", **facts_of(session, fault)
            )
        return _inside(session, fault, case, single)
    many = session.check(fault.due, threads, RACES)
    if threads > 1 and _fails(many, case):
        session.evidence.append(f"{name} alone is right on one thread, wrong on {threads}")
        return wrong_on_threads(session, fault, *racing_step(case, many, session.say))
    session.evidence.append(f"{name} alone is right")
    check = session.check(fault.due, threads)
    facts = facts_of(session, fault)
    facts["reduced"] = smallest_around(session, check, session.last, fault.node, kernels=True)
    text = f"kernel {name} is right alone, but wrong in the program's memory"
    return session.verdict("memory", text, **facts)


def _fails(check: BuildCheck, case: Case) -> bool:
    return check.error(case.module, case.inputs, case.expected) > check.tolerance


def _inside(session: Session, fault: Fault, case: Case, check: BuildCheck) -> Verdict:
    """Returns the fault in the kernel, reduced first so it can be interpreted."""
    facts = facts_of(session, fault)
    reduced = smallest_kernel(session, check, fault)
    if reduced is not None:
        case = Case(reduced.module, reduced.inputs, reduced.expected)
        facts["reduced"] = reduced
        facts["layers"] = layers_in(reduced.module.main) or facts["layers"]
    found = look_inside(case, check, session.say)
    session.evidence += found.evidence
    facts["step"] = found.step
    facts["layers"] = found.layers or facts["layers"]
    if found.op:
        facts["ops"] = (found.op,)
    return session.verdict(found.kind, f"kernel {fault.name}: {found.summary}", **facts)
