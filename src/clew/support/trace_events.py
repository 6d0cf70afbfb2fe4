"""Events of traces for Perfetto and `chrome://tracing`.

Source: Trace Event Format, Google, 2016.
"""

from __future__ import annotations

from typing import Any


def slice_event(
    ids: tuple[int, int], name: str, kind: str, start_ns: float, ns: float, args: dict[str, Any]
) -> dict[str, Any]:
    """Returns a slice on the track `ids`, its process and its thread.

    Edges are whole nanoseconds, so nested slices stay nested in any viewer.
    """
    begin, end = round(start_ns), round(start_ns + ns)
    process, thread = ids
    place = {"ph": "X", "pid": process, "tid": thread}
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"name": name, "cat": kind, **place, **times, "args": args}


def name_event(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Returns the name of a process or of a thread; `kind` says which."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
