"""All that a page can have done to a build: one table, which worker, server and page share.

`POST /TOKEN/api/BUILD/actions/NAME` with a JSON object of parameters starts one in the build's
worker process, as a job. To add one: a file in this folder with a function as `Run`, and a line
in `ACTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from clew.explorer.session import Session

# Says what is at work and how much of it is done, from 0 to 1 (None: unknown). It raises where the
# job was cancelled: what an action measured until then is lost, the build lives on.
Say: TypeAlias = Callable[[str, float | None], None]
# `run(session, params, say)` returns an object of the schema.
Run: TypeAlias = Callable[[Session, Mapping[str, Any], Say], Any]


@dataclass(frozen=True)
class Action:
    """Something done on request, such as a measurement. `answer` is the schema type of its result.

    `params` gives for each parameter its type: bool, int, float, str, lists, `X | None`, types of
    the schema. What `run` gets has been checked against it; any may be left out, and is then
    missing from the mapping.
    """

    name: str
    run: Run
    params: Mapping[str, Any] = field(default_factory=dict)
    answer: type | None = None


ACTIONS: Final[dict[str, Action]] = {}


def add(action: Action) -> None:
    """Adds an action to the table."""
    assert action.name not in ACTIONS, action.name
    ACTIONS[action.name] = action
