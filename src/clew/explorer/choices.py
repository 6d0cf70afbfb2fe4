"""The choices of the page's form and the list of actions, both derived from the compiler."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from clew.backends.option_checks import PRECISIONS
from clew.explorer.failures import Failure
from clew.support.errors import InputError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.settings import usable_cpus


@cache
def choices() -> dict[str, Any]:
    """Returns the options of a build: targets, precisions, backends, passes with descriptions, the
    number of threads, and the suffixes of models. It imports much, so do not call it on the event
    loop's thread.
    """
    with LOADING, held_interrupts():
        from clew.backends.registry import backend_names  # noqa: PLC0415
        from clew.frontends.formats import uploaded_suffixes  # noqa: PLC0415
        from clew.machine.target import target_names  # noqa: PLC0415
        from clew.pipelines import pipeline  # noqa: PLC0415

    return {
        "targets": list(target_names()),
        "precisions": list(PRECISIONS),
        "backends": backend_names(),
        "passes": {p.name: _summary(p) for p in pipeline(3)},
        "threads": usable_cpus(),
        "suffixes": uploaded_suffixes(),
    }


def _summary(chosen: Any) -> str:
    text = inspect.getdoc(type(chosen)) or ""
    return " ".join(text.split("\n\n")[0].split())


def action_params(name: str) -> dict[str, Any]:
    """Returns the parameters of an action by name, with their types.

    Raises `Failure` (404) with I223 for an unknown action.
    """
    with LOADING, held_interrupts():
        from clew.explorer.actions.table import ACTIONS  # noqa: PLC0415 - it imports the compiler

    if name not in ACTIONS:
        known = ", ".join(ACTIONS) or "none"
        raise Failure(
            InputError("I223", f"no action {name[:40]!r}", hint=f"the actions are {known}"), 404
        )
    return dict(ACTIONS[name].params)
