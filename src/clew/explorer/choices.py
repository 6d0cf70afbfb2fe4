"""What the page's form offers, and which actions there are; both read off the compiler."""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from typing import Any

from clew.explorer.failures import Failure
from clew.support.errors import InputError
from clew.support.settings import usable_cpus


@cache
def choices() -> dict[str, Any]:
    """Returns what a build may be made with: targets, precisions, passes with what they do, and the
    number of threads. Imports much: not for the event loop's thread.
    """
    target = importlib.import_module("clew.target")
    compiler = importlib.import_module("clew.compiler")
    pipelines = importlib.import_module("clew.pipelines")
    return {
        "targets": list(target.target_names()),
        "precisions": list(compiler.PRECISIONS),
        "passes": {p.name: _summary(p) for p in pipelines.pipeline(3)},
        "threads": usable_cpus(),
    }


def _summary(chosen: Any) -> str:
    text = inspect.getdoc(type(chosen)) or ""
    return " ".join(text.split("\n\n")[0].split())


def action_params(name: str) -> dict[str, Any]:
    """Returns the parameters of an action by name, with their types.

    Raises `Failure` (404) with I223 for an action that there is not.
    """
    table = importlib.import_module("clew.explorer.actions.table")
    if name not in table.ACTIONS:
        known = ", ".join(table.ACTIONS) or "none"
        raise Failure(
            InputError("I223", f"no action {name[:40]!r}", hint=f"there are {known}"), 404
        )
    return dict(table.ACTIONS[name].params)
