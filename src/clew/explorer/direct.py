"""Answers without a server or worker processes: `clew explore --get`, reports, notebooks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from clew.compare.diff import diff
from clew.explorer.actions.table import Say
from clew.explorer.compiling import drawn_inputs, open_session
from clew.explorer.routes import answer as route_answer
from clew.explorer.schema import Diff, Options
from clew.explorer.session import Session
from clew.explorer.wire import to_json
from clew.support.errors import InputError

_NAMES: Final = ("a", "b")


def answer(models: Sequence[tuple[Path, Options]], route: str, say: Say) -> bytes:
    """Returns a route's JSON: of the first model, or of the one that it begins with (`b/overview`);
    `diff` is the difference of two.

    Errors: I201 for an unknown route, and those of loading, compiling and the view.
    """
    if route == "diff" and len(models) == 2:
        sessions = [_session(model, say) for model in models]
        return to_json(compare(sessions[0], sessions[1], say))
    head, _, rest = route.partition("/")
    if rest and head in _NAMES[: len(models)]:
        return to_json(route_answer(_session(models[_NAMES.index(head)], say), rest))
    return to_json(route_answer(_session(models[0], say), route))


def compare(
    a: Session,
    b: Session,
    say: Say,
    *,
    names: tuple[str, str] = ("a", "b"),
    time: bool = True,
    numerics: bool = True,
) -> Diff:
    """Returns the difference of two builds.

    Errors: those of `clew.diff`.
    """
    arrays = drawn_inputs(a.compiled) if time or numerics else None
    report = diff(
        a.compiled,
        b.compiled,
        arrays,
        time=time,
        numerics=numerics,
        names=names,
        on_progress=lambda text: say(text, None),
    )
    view: Diff = _diff_view()(report, a, b)
    return view


def _diff_view() -> Callable[..., Diff]:
    try:
        found: Callable[..., Diff] = importlib.import_module("clew.explorer.views.diff").diff_view
    except ModuleNotFoundError:
        raise InputError("I229", "this version cannot show differences") from None
    return found


def _session(model: tuple[Path, Options], say: Say) -> Session:
    path, options = model
    return open_session(path, path.name, options, say)
