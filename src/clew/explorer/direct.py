"""Answers without a server or worker processes: `clew explore --get`, reports, notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clew.compare.diff import diff
from clew.explorer.actions.table import Say
from clew.explorer.builds.compiling import open_session
from clew.explorer.inputs import drawn
from clew.explorer.own import Own
from clew.explorer.routes import answer as route_answer
from clew.explorer.schema import Diff, Options
from clew.explorer.session import Session
from clew.explorer.views.diff import diff_view
from clew.explorer.wire import to_json

_NAMES: Final = ("a", "b")


def answer(models: Sequence[tuple[Path, Options]], route: str, say: Say, own: Own) -> bytes:
    """Returns a route's JSON for the first model, or for the one that the route begins with
    (`b/overview`); `diff` is the difference of two models. `own` applies to all models.

    Errors: I201 for an unknown route, and those of loading, compiling and the view.
    """
    if route == "diff" and len(models) == 2:
        sessions = [_session(model, say, own) for model in models]
        return to_json(compare(sessions[0], sessions[1], say))
    head, _, rest = route.partition("/")
    if rest and head in _NAMES[: len(models)]:
        return to_json(route_answer(_session(models[_NAMES.index(head)], say, own), rest))
    return to_json(route_answer(_session(models[0], say, own), route))


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
    names_of = a.compiled.input_names
    arrays = dict(zip(names_of, drawn(a), strict=True)) if time or numerics else None
    report = diff(
        a.compiled,
        b.compiled,
        arrays,
        time=time,
        numerics=numerics,
        names=names,
        on_progress=lambda text: say(text, None),
    )
    return diff_view(report, a, b)


def _session(model: tuple[Path, Options], say: Say, own: Own) -> Session:
    path, options = model
    return open_session(path, path.name, options, say, own=own)
