"""The search in the stages: the node that a pass changed, and whether the change is only
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from clew.bisection.checks import PassCheck
from clew.bisection.numbers import due_of, error_of
from clew.bisection.reduced import Reduced
from clew.bisection.session import Session
from clew.bisection.smallest import smallest_around
from clew.bisection.stages import Parting, is_rounding, outputs_of, partings, traced_down
from clew.bisection.verdict import Culprit, Verdict
from clew.ir.expr import Expr
from clew.passes.base import Pass
from clew.passes.manager import PassManager
from clew.trace.refs import NodeRef

_CULPRITS: Final = 10


def search_stage(session: Session, before: int, after: int) -> Verdict:
    """Returns the pass's error that made the right stage `before` into the wrong stage `after`."""
    name = session.build.stages[after].name
    session.evidence.append(f"the outputs diverge at stage {after}, {name}")
    session.say(f"looking for the node that {name} changed")
    found = partings(session.stages, before, after)
    wrong = [p for p in found if p.excess > 1] or _moved_output(session, before, after)
    if not wrong and not found:
        text = f"{name} changed the outputs and recorded no lineage"
        return session.verdict("pass", text, pass_name=name, stage=after)
    culprit, rounding = _culprit(session, before, after, wrong, found)
    old, new = culprit.old, culprit.new
    if not rounding:
        old, new = traced_down(session.stages, before, after, old, new, culprit.due)
    layers = tuple(old.span.layers or culprit.old.span.layers)
    layers = layers or session.compiled.trace.layers_of(NodeRef(before, culprit.old.id))
    session.evidence.append(
        f"{len(wrong)} of {len(found)} nodes there are off by more than rounding on operands "
        "from the previous stage"
    )
    by_error = rounding or not wrong
    facts: dict[str, Any] = {
        "pass_name": name,
        "stage": after,
        "old_node": session.text(before, old),
        "node": session.text(after, new),
        "layers": layers,
        "local_error": culprit.error,
        "due": culprit.due,
        "culprits": _culprits(session, before, wrong or found, by_error),
        "reduced": _smallest(session, before, after, old, culprit),
    }
    where = f"{name} at {', '.join(layers[:3]) or 'a node of no layer'}"
    if not wrong:
        text = f"rounding of {name} accumulates, mostly at {', '.join(layers[:3])}"
    elif rounding:
        lost = "does not fit the dtype" if culprit.error > 1 else "loses more than one rounding"
        text = f"{where}: the value {lost}"
    else:
        text = f"{where} computes something else"
    return session.verdict("precision" if by_error else "pass", text, **facts)


def _culprit(
    session: Session, before: int, after: int, wrong: Sequence[Parting], found: Sequence[Parting]
) -> tuple[Parting, bool]:
    """Returns the node to name, and whether its error is only rounding: the first with another
    error, or the one with the largest rounding error.
    """

    def rounds(parting: Parting) -> bool:
        return is_rounding(session.stages, before, after, parting)

    first = wrong[0] if wrong else max(found, key=lambda p: p.error)
    if rounds(first):
        # Every node is rounded a little: the largest contribution is more useful than the first.
        first = max(wrong or found, key=lambda p: p.error)
        if rounds(first):
            return first, True
    return next((p for p in wrong if not rounds(p)), first), False


def _moved_output(session: Session, before: int, after: int) -> list[Parting]:
    """Returns the first output that has the value of another output, which the pass left
    unchanged.
    """
    kept = session.compiled.trace.nodes(before)
    old, new = (outputs_of(session.build.stages[s].module) for s in (before, after))
    for a, b in zip(old, new, strict=False):
        error = error_of(session.stages.value(before, a), session.stages.value(after, b))
        if error > session.tolerance and b.id in kept:
            return [Parting(a, b, error, due_of(()))]
    return []


def _culprits(
    session: Session, before: int, found: Sequence[Parting], by_error: bool
) -> tuple[Culprit, ...]:
    order = sorted(found, key=lambda p: -p.error) if by_error else list(found)
    return tuple(
        Culprit(tuple(p.old.span.layers), session.bare_text(before, p.old), p.error, p.due)
        for p in order[:_CULPRITS]
    )


def _smallest(
    session: Session, before: int, after: int, old: Expr, culprit: Parting
) -> Reduced | None:
    """Returns the smallest part that the pass alone changes."""
    changes = _pass_of(session, after)
    if changes is None:
        return None
    due = culprit.due if culprit.error > culprit.due else culprit.error / 2
    check = PassCheck(due, changes, session.options.target, session.options.opt_level)
    return smallest_around(session, check, before, old)


def _pass_of(session: Session, stage: int) -> Pass | None:
    """Returns the pass that made a stage."""
    options = session.options
    manager = PassManager(
        options.passes, options.opt_level, required=options.required, disabled=options.disabled
    )
    shift = session.last - len(manager.passes)  # the first stages may only substitute sizes
    position = stage - 1 - shift
    return manager.passes[position] if position >= 0 else None
