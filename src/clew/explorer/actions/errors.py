"""Compares layers' values with f32 at opt level 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clew.compare.align import align
from clew.compare.reference import reference_of
from clew.compare.state import Side
from clew.compare.values import Run, compare_values
from clew.explorer.inputs import drawn
from clew.explorer.schema import Heat
from clew.explorer.session import Session
from clew.explorer.views.heat import heat


def errors(
    session: Session,
    params: Mapping[str, Any],
    say: Callable[[str, float | None], None],
) -> Heat:
    """Compares each layer whose value is in memory, in this build and at opt level 0, and stores
    the errors as `session.measured["errors"]`: by layer, None if its value is not in memory.

    Errors: I061 (inputs without random values).
    """
    model = session.compiled
    say("drawing inputs", 0.0)
    arrays = drawn(session)
    model.run_checked(arrays)
    say("compiling the reference: f32, opt level 0", 0.1)
    exact = reference_of(model)
    exact.run_checked(arrays)
    say("comparing values", 0.7)
    ours = Side(model)
    theirs = ours if exact is model else Side(exact)
    matches = align(theirs.layers, ours.layers).matches
    found = compare_values(Run(theirs, arrays), Run(ours, arrays), (None, None), matches)
    # A follower's error says little about a layer whose own value is not in memory.
    own = {m.b: found[m.a].between.worst for m in matches if m.a in found and found[m.a].at == m.a}
    session.measured["errors"] = {name: own.get(name) for name in session.layers}
    return heat(session, "error")
