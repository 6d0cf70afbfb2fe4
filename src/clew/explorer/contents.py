"""The contents of a report: the answers to all routes, with equal pieces stored once.

It calls every route with all values of its parameters. Lines of code have no stories: the page
derives a line's story from that of its operator's first line, and a node's story from that of the
node where it was made (frontend/src/report.ts).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from clew.explorer import schema
from clew.explorer.failures import error_info
from clew.explorer.routes import ROUTES, answer
from clew.explorer.session import Session
from clew.explorer.views.code import code
from clew.explorer.views.links import links
from clew.explorer.views.regions import regions
from clew.explorer.views.story import story_refs
from clew.explorer.views.values import values_in_report
from clew.explorer.wire import to_plain
from clew.support.errors import ClewError

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
# A piece of an answer is stored once if its JSON is longer than this.
_SHARED_FROM: Final = 60
# Stories of more nodes would take minutes to write; the page then shows those of their layers.
_MOST_NODES: Final = 20_000

Say = Callable[[str], None]


def gather(sessions: Mapping[str, Session], diff: schema.Diff | None, say: Say) -> dict[str, Any]:
    """Returns `answers`, by their paths under the server's `api/`, and the pieces they `share`.

    `{"$": 3}` in a value stands for piece 3, `{"$": {"$": ...}}` for an object that looks like
    that. For a route that fails, the value is `{"refused": ErrorInfo}`.
    """
    shared = _Shared()
    found: dict[str, Any] = {"start": _start(sessions, diff)}
    for name, session in sessions.items():
        for path in paths(session):
            say(f"{session.model}: {path}")
            found[f"{name}/{path}"] = _asked(session, path)
    if diff is not None:
        a, b = list(sessions)[:2]
        found[f"diff/{a}/{b}"] = diff
    answers = {path: shared.kept(to_plain(value)) for path, value in found.items()}
    return {"shared": shared.pieces, "answers": answers}


def paths(session: Session) -> Iterator[str]:
    """Yields the paths of all routes, with all values of their parameters in a build."""
    values: dict[str, Callable[[], Iterable[object]]] = {
        "stage": lambda: [n for n, s in enumerate(session.trace.stages) if s.changed or not n],
        "kernel": lambda: range(len(session.kernels)),
        "region": lambda: [n for n, r in enumerate(session.once(regions)) if r.described],
        "metric": lambda: get_args(schema.Metric),
        "ref": lambda: stories(session),
        "which": lambda: values_in_report(session),
    }
    for route in ROUTES:
        names = _PARAMETER.findall(route.path)
        for chosen in itertools.product(*(values[name]() for name in names)):
            # Even positions of a split by the parameters are the text between these.
            between = _PARAMETER.split(route.path)[::2]
            texts = itertools.zip_longest(between, map(str, chosen), fillvalue="")
            yield "".join(itertools.chain.from_iterable(texts))


def stories(session: Session) -> Iterator[schema.Ref]:
    """Yields the refs whose stories a report holds: layers, kernels and stages, the first line of
    each operator in each kernel, and nodes where they were made.
    """
    yield from story_refs(session)
    for kernel in range(len(session.kernels)):
        first: dict[int, int] = {}
        for line, op in enumerate(code(session, kernel).loop_op, 1):
            first.setdefault(op, line)
        for line in first.values():
            yield f"loop:{kernel}:{line}"
    born = session.once(links).born
    if len(born) <= _MOST_NODES:
        for number, stage in enumerate(born):
            yield f"node:{stage}:{number}"


def _start(sessions: Mapping[str, Session], diff: schema.Diff | None) -> schema.Start:
    builds = [
        schema.BuildInfo(name, session.model, session.options, "ready", "", None)
        for name, session in sessions.items()
    ]
    return schema.Start(schema.VERSION, False, builds, diff is not None, None)


def _asked(session: Session, path: str) -> Any:
    try:
        return answer(session, path)
    except ClewError as error:
        return {"refused": error_info(error)}


class _Shared:
    """Pieces of answers, each stored once."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self._places: dict[str, int] = {}

    def kept(self, value: Any) -> Any:
        """Returns a plain value with its larger pieces replaced by references to the stored
        ones.
        """
        if isinstance(value, dict):
            made: Any = {key: self.kept(v) for key, v in value.items()}
            if list(made) == ["$"]:
                made = {"$": made}
        elif isinstance(value, list):
            made = [self.kept(v) for v in value]
        else:
            return value
        text = json.dumps(made, separators=(",", ":"))
        if len(text) <= _SHARED_FROM:
            return made
        place = self._places.setdefault(text, len(self.pieces))
        if place == len(self.pieces):
            self.pieces.append(made)
        return {"$": place}
