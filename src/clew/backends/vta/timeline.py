"""A timeline of a program for Perfetto and `chrome://tracing`: a track for each engine, with arrows
from the instruction that gives a token to the one that takes it.

Source: Trace Event Format, Google, 2016 (complete events, `ph: X`; flow events, `ph: s` and `f`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from clew.backends.vta.assembler import instruction_text
from clew.backends.vta.names import Engine
from clew.backends.vta.timing import Slice, Timing
from clew.support.errors import InputError
from clew.support.files import reason_of
from clew.support.trace_events import name_event, slice_event
from clew.support.writing import write_text

_PROCESS: Final = 1


def timeline(timing: Timing, path: str | Path | None = None) -> dict[str, Any]:
    """Returns the timeline as JSON, with cycles as time at the configured clock; also writes it to
    `path`, if given.

    Errors: I115.
    """
    made = {
        "displayTimeUnit": "ns",
        "otherData": {
            "tool": "clew",
            "cycles": timing.cycles,
            "clock_mhz": timing.config.clock_mhz,
        },
        "traceEvents": list(_events(timing)),
    }
    if path is not None:
        try:
            write_text(path, json.dumps(made))
        except OSError as error:
            why = f"{str(path)!r} cannot be written: {reason_of(error)}"
            raise InputError("I115", why) from None
    return made


def _events(timing: Timing) -> Iterator[dict[str, Any]]:
    yield name_event("process_name", _PROCESS, 0, f"VTA, {timing.config.clock_mhz} MHz")
    for engine in Engine:
        yield name_event("thread_name", _PROCESS, _track(engine), engine.name.lower())
    by_index = {s.index: s for s in timing.slices}
    ns = 1e3 / timing.config.clock_mhz
    arrows = 0
    for each in timing.slices:
        origin = timing.program.origins.get(each.index)
        instruction = timing.program.instructions[each.index]
        text = instruction_text(instruction)
        name = (origin.label or ", ".join(origin.layers)) if origin else ""
        about: dict[str, Any] = {"instruction": each.index, "text": text, "cycles": each.cycles}
        about |= {"begin": each.begin, "waited": each.waited, "waited_for": each.waited_for}
        about |= {"layers": list(timing.program.layers(each.index))}
        kind = instruction.opcode.name.lower()
        ids = (_PROCESS, _track(each.engine))
        yield slice_event(ids, name or kind, kind, each.begin * ns, each.cycles * ns, about)
        for giver in each.tokens:
            arrows += 1
            yield from _arrow(arrows, by_index[giver], each, ns)


def _arrow(number: int, giver: Slice, taker: Slice, ns: float) -> Iterator[dict[str, Any]]:
    shared = {"name": "token", "cat": "token", "id": number, "pid": _PROCESS}
    # Arrows bind to the slice around their time: the giver's last moment, the taker's first.
    last = max(giver.begin, giver.end - 0.5) * ns / 1e3
    yield {**shared, "ph": "s", "tid": _track(giver.engine), "ts": last}
    first = taker.begin * ns / 1e3
    yield {**shared, "ph": "f", "bp": "e", "tid": _track(taker.engine), "ts": first}


def _track(engine: Engine) -> int:
    return int(engine) + 1
