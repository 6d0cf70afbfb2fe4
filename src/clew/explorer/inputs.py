"""Inputs of measurements: random with a fixed seed."""

from __future__ import annotations

from typing import Any, Final

from clew.explorer.session import Session

SEED: Final = 0


def drawn(session: Session) -> list[Any]:
    """Returns values in the order of the model's inputs: those given to the session; others are
    random, at the sizes of the model's last run.

    Errors: I061 for an input with unknown named sizes, or one that is not a tensor.
    """
    if session.inputs is not None:
        return session.inputs
    return session.compiled.drawn(seed=SEED)
