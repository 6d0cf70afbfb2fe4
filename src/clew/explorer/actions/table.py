"""All actions of the page on a build, in one table that worker, server and page share.

`POST /TOKEN/api/BUILD/actions/NAME` with a JSON object of parameters starts one in the build's
worker process, as a job. To add one: a file in this folder with a function as `Run`, and a line in
`ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from clew.explorer import schema
from clew.explorer.actions.errors import errors
from clew.explorer.actions.profile import profile
from clew.explorer.actions.schedule import schedule
from clew.explorer.actions.tokens import tokens
from clew.explorer.session import Session

# Reports progress: a text, and the fraction done from 0 to 1 (None: unknown). It raises if the job
# was cancelled: the action's measurements until then are lost, the build lives on.
Say: TypeAlias = Callable[[str, float | None], None]
# `run(session, params, say)` returns an object of the schema.
Run: TypeAlias = Callable[[Session, Mapping[str, Any], Say], Any]


@dataclass(frozen=True)
class Action:
    """Work done on request, such as a measurement. `answer` is the schema type of its result.

    `params` gives for each parameter its type: bool, int, float, str, lists, `X | None`, types of
    the schema. The parameters passed to `run` have been checked against it; any may be left out,
    and is then missing from the mapping.
    """

    name: str
    run: Run
    params: Mapping[str, Any] = field(default_factory=dict)
    answer: type | None = None


def act(action: Action, session: Session, params: Mapping[str, Any], say: Say) -> Any:
    """Returns the result of an action on a session; nothing else runs its model meanwhile."""
    run = object()
    with session.running:
        try:
            session.measuring.begin(run)
            return action.run(session, params, say)
        finally:
            if 0 in session.measuring.held and session.measuring.held[0] is run:
                del session.measuring.held[0]


_ALL: Final = (
    Action("profile", profile, {"seconds": float, "sample": float}, schema.Profiled),
    Action("errors", errors, {}, schema.Heat),
    Action(
        "schedule",
        schedule,
        {"kernel": int, "steps": list[str], "seconds": float},
        schema.ScheduleTrial,
    ),
    Action("tokens", tokens, {"length": int, "prompt": int}, schema.TokenCosts),
)
ACTIONS: Final[Mapping[str, Action]] = {action.name: action for action in _ALL}
