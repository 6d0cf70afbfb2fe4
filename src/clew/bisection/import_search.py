"""The search in the import: finds the layer that was imported incorrectly."""

from __future__ import annotations

from typing import Any, Final

from clew.bisection.checks import ValueCheck
from clew.bisection.imports import WrongLayer, file_case, layer_case, wrong_layers
from clew.bisection.reduced import Reduced
from clew.bisection.references import Reference
from clew.bisection.session import Session
from clew.bisection.smallest import reduced
from clew.bisection.verdict import Culprit, Verdict
from clew.support.errors import ClewError

_CULPRITS: Final = 10


def search_import(session: Session, reference: Reference) -> Verdict:
    """Returns the first layer whose imported form differs from the reference."""
    session.say(f"comparing layers with {reference.text}")
    wrong = wrong_layers(session.build.stages[0].module, session.arrays, reference)
    if not wrong:
        text = "the imported graph is wrong; the reference has no layer values that show where"
        return session.verdict("import", text, stage=0)
    first = wrong[0]
    what = f"{first.op} {first.layer}".strip()
    session.evidence.append(f"{len(wrong)} layers are wrong on right inputs; {what} first")
    facts: dict[str, Any] = {
        "stage": 0,
        "node": session.text(0, first.node),
        "layers": (first.layer,),
        "local_error": first.error,
        "due": first.due,
        "culprits": tuple(
            Culprit((w.layer,), session.bare_text(0, w.node), w.error, w.due)
            for w in wrong[:_CULPRITS]
        ),
        "reduced": _smallest(session, first, reference),
    }
    text = f"the layer {first.layer} ({first.op or 'no operator'}) was imported incorrectly"
    return session.verdict("import", text, **facts)


def _smallest(session: Session, first: WrongLayer, reference: Reference) -> Reduced | None:
    """Returns the layer alone: as a part of the model's own file, or as operators."""
    if not session.seconds:
        return None
    check = ValueCheck(first.due)
    try:
        made = file_case(first, reference)
    except ClewError:  # a layer that cannot be imported without its neighbors
        made = None
    if made is not None:
        case, alone = made
        error = check.error(case.module, case.inputs, case.expected)
        if error > first.due:
            return Reduced(case.module, case.inputs, case.expected, 1, error, check, alone)
    operators = layer_case(session.build.stages[0].module, first, reference)
    return None if operators is None else reduced(operators, check)
