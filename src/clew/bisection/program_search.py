"""The search in the program: a kernel, a step between kernels, a region on another backend, or
shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.bisection.checks import worst
from clew.bisection.facts import facts_of, layers_in
from clew.bisection.kernel_search import search_kernel
from clew.bisection.kernels import (
    Fault,
    due_of_function,
    examine,
    examine_hosts,
    examine_regions,
)
from clew.bisection.session import Session
from clew.bisection.smallest import smallest_around, smallest_program
from clew.bisection.thread_search import RACES, search_threads
from clew.bisection.verdict import Culprit, Verdict
from clew.build.result import KernelUse
from clew.ir.expr import Expr, Function
from clew.ir.visit import post_order


def search_program(session: Session, wanted: Mapping[str, Any]) -> Verdict:
    """Returns the fault of a program whose last stage is right; `wanted` are its outputs."""
    session.evidence.append("the last stage, interpreted, is right: passes are not at fault")
    names = session.module.output_names
    fresh = dict(zip(names, session.build.program(session.arrays), strict=True))
    if session.compiled.from_cache and worst(wanted, fresh) <= session.tolerance:
        text = "the compiled model in the disk cache is wrong, but right when compiled again"
        return session.verdict("codegen", f"{text}: clew cache clear")
    fault: Fault | None = None
    for _ in range(session.runs):
        seen = examine(session.build, session.arrays, session.say)
        if seen.faults:
            fault = seen.faults[0]
            break
    hosts = examine_hosts(session.build, session.arrays)
    regions = examine_regions(session.build, session.arrays)
    others = [f for faults in (hosts, regions) for f in faults[:1]]
    first = min(others, key=lambda f: _place_of(session, f), default=None)
    if first is not None and (
        fault is None or _place_of(session, first) < _place_of(session, fault)
    ):
        return _host(session, first) if first.kind == "host" else _region(session, first, regions)
    if fault is None:
        return _no_fault(session, wanted, seen.errors)
    if fault.kind == "operand":
        return _memory(session, fault)
    return search_kernel(session, fault)


def _place_of(session: Session, fault: Fault) -> int:
    """Returns the position of a fault's node in the order of the graph; that of a kernel in a
    branch or loop is after all others.
    """
    order = {n.id: k for k, n in enumerate(post_order(session.main(session.last)))}
    return order.get(fault.node.id, 0 if fault.use is None else len(order))


def _region(session: Session, fault: Fault, faults: Sequence[Fault]) -> Verdict:
    """Returns the region that its backend computes wrongly, and further ones as culprits."""
    uses = {use.call.id: use for use in session.build.regions}
    use = uses[fault.node.id]
    session.evidence.append(
        f"region {use.name} is {fault.error:.2g} off the reference of its operators, on the "
        f"operands it had in the run on {use.backend}"
    )
    session.evidence.append(f"{len(uses) - len(faults)} of {len(uses)} regions are right")
    culprits = [
        Culprit(uses[f.node.id].layers, session.text(session.last, f.node), f.error, f.due)
        for f in faults
    ]
    facts: dict[str, Any] = {
        "stage": session.last,
        "node": session.text(session.last, fault.node),
        "layers": use.layers,
        "kernel": use.name,
        "backend": use.backend,
        "ops": tuple(use.ops),
        "local_error": fault.error,
        "due": fault.due,
        "culprits": tuple(culprits) if len(culprits) > 1 else (),
    }
    text = f"the backend {use.backend} computes the region {use.name} wrongly"
    return session.verdict("backend", text, **facts)


def _host(session: Session, fault: Fault) -> Verdict:
    """Returns the operator between kernels that differs from its reference."""
    facts = {**facts_of(session, fault), "ops": (fault.name,)}
    check = session.check(fault.due, session.options.threads)
    facts["reduced"] = smallest_around(session, check, session.last, fault.node)
    text = f"{fault.name}, which runs between kernels, differs from its reference"
    return session.verdict("host", text, **facts)


# --- memory ---------------------------------------------------------------------------------------


def _memory(session: Session, fault: Fault) -> Verdict:
    """Returns the kernel whose result was overwritten, and the kernels that ran in between."""
    assert fault.lost is not None
    owner = _kernel_name(session, fault.lost)
    session.evidence.append(f"kernel {fault.name} reads what is no longer {owner}'s result")
    facts = {**facts_of(session, fault), "due": None}
    facts["old_node"] = session.text(session.last, fault.lost)
    check = session.check(_least_due(fault.error), session.options.threads)
    facts["reduced"] = smallest_program(session, check, fault)
    writers = _between(session, owner, fault.name)
    by = f", overwritten by {' or '.join(writers[:3])}" if writers else ""
    text = f"{fault.name} reads the result of {owner}{by}"
    return session.verdict("memory", text, **facts)


def _kernel_name(session: Session, node: Expr) -> str:
    """Returns the kernel that computes a node, or the source of a view."""
    names = {u.call.id: u.name for u in session.build.uses}
    behind = [names[n.id] for n in post_order(node) if n.id in names]
    return names.get(node.id) or (behind[-1] if behind else "an input")


def _between(session: Session, owner: str, reader: str) -> list[str]:
    """Returns the kernels that ran between two others, the last first."""
    names = [u.name for u in session.build.uses]
    start = names.index(owner) + 1 if owner in names else 0
    return names[start : names.index(reader)][::-1]


def _least_due(error: float) -> float:
    """Returns the allowed error of a smaller part: a lost operand has no rounding error."""
    return min(1e-4, error / 4) if np.isfinite(error) else 1e-4


# --- no faulty kernel -----------------------------------------------------------------------------


def _no_fault(
    session: Session, wanted: Mapping[str, Any], errors: Sequence[tuple[KernelUse, float]]
) -> Verdict:
    """Returns the verdict on wrong outputs with every kernel right (`errors` has their errors):
    threads, or accumulated rounding.
    """
    threads = session.options.threads
    session.evidence.append(f"all {len(errors)} kernels are right on the operands they had")
    if threads > 1:
        session.say("running the program on one thread")
        check = session.check(session.tolerance, 1, RACES)
        single = check.outputs(session.build.stages[-1].module, session.inputs)
        error = max(worst(wanted, found) for found in single)
        session.evidence.append(f"on one thread the outputs are {error:.2g} off")
        if error <= session.tolerance:
            return search_threads(session)
    use, error = max(errors, key=lambda e: e[1], default=(None, 0.0))
    if use is not None:
        function = use.call.op
        assert isinstance(function, Function)
        rounding = session.base.error <= session.rounding
        if rounding or error > due_of_function(function) / 10:
            text = f"rounding accumulates over kernels, mostly in {use.name}"
            return session.verdict(
                "precision", text, kernel=use.name, layers=layers_in(function), local_error=error
            )
    text = "every stage and every kernel is right on its own operands"
    return session.verdict("unknown", text)
