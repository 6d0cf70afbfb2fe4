"""All questions about a build, in one table that server, report, command line and page share.

A route is a path of `/`-separated words; `{name}` is a parameter, and the last one may contain
slashes. `GET /TOKEN/api/BUILD/PATH` answers it, and `clew explore model.onnx --get PATH` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clew.explorer import schema
from clew.explorer.session import Session
from clew.explorer.views.code import code
from clew.explorer.views.heat import heat
from clew.explorer.views.index import index
from clew.explorer.views.links import links
from clew.explorer.views.overview import overview, totals
from clew.explorer.views.region_details import region_details
from clew.explorer.views.roofline import roofline
from clew.explorer.views.schedule import schedule
from clew.explorer.views.source import source
from clew.explorer.views.stage import stage
from clew.explorer.views.story import story
from clew.explorer.views.timeline import timeline
from clew.explorer.views.tokens import tokens
from clew.explorer.views.values import values
from clew.support.errors import InputError


@dataclass(frozen=True)
class Route:
    """A question: `answer` is the schema type of `view(session, **parameters)`."""

    path: str
    answer: type
    view: Callable[..., Any]
    about: str

    @property
    def name(self) -> str:
        """Its first word."""
        return self.path.split("/", 1)[0]


ROUTES: Final = (
    Route("overview", schema.Overview, overview, "layers, stages and kernels"),
    Route("totals", schema.CodeTotals, totals, "the amount of the kernels' code"),
    Route("stage/{stage:int}", schema.Stage, stage, "a stage's graph IR"),
    Route("links", schema.Links, links, "links between nodes, stage by stage"),
    Route("source", schema.Source, source, "the model as in its file"),
    Route("index", schema.Index, index, "all entries of the search"),
    Route("story/{ref:path}", schema.Story, story, "the story of a layer or kernel"),
    Route("schedule/{kernel:int}", schema.ScheduleView, schedule, "a kernel's recorded schedule"),
    Route("code/{kernel:int}", schema.Code, code, "a kernel's loops, LLVM text and instructions"),
    Route("details/{region:int}", schema.RegionDetails, region_details, "a region's inside"),
    Route("heat/{metric:path}", schema.Heat, heat, "figures to color by, such as time"),
    Route("values/{which:path}", schema.Values, values, "a layer's value: ITERATION/RESULT/LAYER"),
    Route("roofline", schema.Roofline, roofline, "kernels and the machine's roofline"),
    Route("timeline", schema.Timeline, timeline, "one run: layers, kernels, operators"),
    Route("tokens", schema.TokenCosts, tokens, "the cost of a token of a language model"),
)

_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_FORMS: Final[Mapping[str, str]] = {"int": r"\d{1,9}", "path": "(?s:.+)"}


def _shown(path: str) -> str:
    """Returns a route's path without the types of its parameters."""
    return _PARAMETER.sub(r"{\1}", path)


def _pattern(path: str) -> re.Pattern[str]:
    parts, end = [], 0
    for found in _PARAMETER.finditer(path):
        form = _FORMS[found[2] or "path"]
        parts += [re.escape(path[end : found.start()]), f"(?P<{found[1]}>{form})"]
        end = found.end()
    return re.compile("".join([*parts, re.escape(path[end:])]))


_PATTERNS: Final = [(route, _pattern(route.path)) for route in ROUTES]
_NUMBERS: Final = {
    (route.path, found[1])
    for route in ROUTES
    for found in _PARAMETER.finditer(route.path)
    if found[2] == "int"
}


def answer(session: Session, path: str) -> Any:
    """Returns a route's answer, an object of the schema.

    Errors: I201 for an unknown path, and those of the view.
    """
    for route, pattern in _PATTERNS:
        found = pattern.fullmatch(path)
        if found is not None:
            given = {
                name: int(value) if (route.path, name) in _NUMBERS else value
                for name, value in found.groupdict().items()
            }
            return route.view(session, **given)
    known = ", ".join(_shown(route.path) for route in ROUTES)
    raise InputError("I201", f"no route {path[:80]!r}", hint=f"the routes are {known}")
