"""What measurements run a build with: inputs drawn from a seed, the same each time."""

from __future__ import annotations

from typing import Any, Final

from clew.explorer.session import Session

SEED: Final = 0


def drawn(session: Session) -> list[Any]:
    """Returns values in the order of the model's inputs: those that the session was given, else
    drawn at the sizes that the model last ran with.

    Errors: I061 for an input whose named sizes nobody settled, or that is no tensor.
    """
    if session.inputs is not None:
        return session.inputs
    return session.compiled.drawn(seed=SEED)
