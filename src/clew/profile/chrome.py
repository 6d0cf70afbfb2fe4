"""A profile as a trace of one run, for Perfetto and `chrome://tracing`.

The format has slices that nest by time on a track. A kernel may serve several layers, so there are
two tracks: on *layers* the model holds layers, and these the parts of kernels that serve them; on
*kernels* it holds kernels, and these their operators. Both show the same time. A typical run is
drawn, kernels in order: what runs again in a loop is one slice.

Source: Trace Event Format, Google, 2016 (complete events, `ph: X`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clew.profile.files import writing

if TYPE_CHECKING:
    from clew.profile.report import Profile
    from clew.profile.rows import KernelProfile, LayerPart, OperatorProfile

LAYERS_TRACK: Final = 1
KERNELS_TRACK: Final = 2


def trace(profile: Profile, path: Path | None) -> dict[str, Any]:
    """Returns the trace as JSON, and writes it to a file if asked to.

    Errors: I115.
    """
    events = list(_process(profile, 1))
    if profile.unfused is not None:
        events += _process(profile.unfused, 2)
    made = {
        "displayTimeUnit": "ns",
        "otherData": {"tool": "clew", "threads": profile.threads, "rounds": profile.rounds},
        "traceEvents": events,
    }
    if path is not None:
        with writing(path):
            path.write_text(json.dumps(made))
    return made


def _process(profile: Profile, process: int) -> Iterator[dict[str, Any]]:
    threads = f"{profile.threads} thread{'s' * (profile.threads > 1)}"
    yield _name("process_name", process, 0, f"model, {profile.mode}, {threads}")
    yield _name("thread_name", process, LAYERS_TRACK, "layers")
    yield _name("thread_name", process, KERNELS_TRACK, "kernels")
    about = {"wall_ns": profile.wall.ns, "kernels_ns": profile.kernels_ns}
    for track in (LAYERS_TRACK, KERNELS_TRACK):
        yield _Line(process, track).slice(
            "model", "model", max(profile.wall.ns, profile.kernels_ns), about
        )
    yield from _layers(profile, _Line(process, LAYERS_TRACK))
    yield from _kernels(profile, _Line(process, KERNELS_TRACK))


class _Line:
    """A track on which slices are put one after another.

    Edges are whole nanoseconds, so that what is inside stays inside whatever reads it.
    """

    def __init__(self, process: int, track: int) -> None:
        self._ids = {"ph": "X", "pid": process, "tid": track}
        self._now = 0.0

    def slice(self, name: str, kind: str, ns: float, args: dict[str, Any]) -> dict[str, Any]:
        """Returns a slice that begins now; the time does not move on."""
        begin, end = round(self._now), round(self._now + ns)
        times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
        return {"name": name, "cat": kind, **self._ids, **times, "args": {"ns": ns, **args}}

    def advance(self, ns: float) -> None:
        """Moves on."""
        self._now += ns


def _layers(profile: Profile, line: _Line) -> Iterator[dict[str, Any]]:
    """Yields layers, those that follow each other as one, with the parts of kernels inside."""
    types = {layer.layer: layer.op for layer in profile.layers}
    parts = (
        (kernel, operator, part)
        for kernel in profile.kernels
        for operator in kernel.operators
        for part in operator.parts
    )
    for layer, group in groupby(parts, key=lambda row: row[2].layer):
        inside = list(group)
        total = sum(part.ns for _, _, part in inside)
        name = layer or "(no layer)"
        yield line.slice(name, "layer", total, {"op": types.get(layer, "")})
        for kernel, operator, part in inside:
            yield line.slice(kernel.name, "kernel", part.ns, _part_args(kernel, operator, part))
            line.advance(part.ns)
    yield line.slice("outside kernels", "outside", max(0.0, profile.outside_ns), {})


def _kernels(profile: Profile, line: _Line) -> Iterator[dict[str, Any]]:
    for kernel in profile.kernels:
        yield line.slice(kernel.name, kernel.kind, kernel.ns, _kernel_args(kernel))
        for operator in kernel.operators:
            yield line.slice(operator.op, "operator", operator.ns, _operator_args(operator))
            line.advance(operator.ns)
    yield line.slice("outside kernels", "outside", max(0.0, profile.outside_ns), {})


def _kernel_args(kernel: KernelProfile) -> dict[str, Any]:
    args: dict[str, Any] = {"layers": list(kernel.layers), "runs": kernel.runs}
    args |= {"median_ns": kernel.time.median_ns, "spread": kernel.time.spread}
    if kernel.roof is not None:
        roof = kernel.roof
        args |= {"gflops": roof.gflops, "gbps": roof.gbps}
        args |= {"limit": roof.limit, "limit_share": roof.limit_share}
    return args


def _operator_args(operator: OperatorProfile) -> dict[str, Any]:
    return {
        "layers": list(operator.layers),
        "share": operator.share,
        "basis": operator.basis,
        "by_flops": operator.by_flops,
        "by_bytes": operator.by_bytes,
    }


def _part_args(kernel: KernelProfile, operator: OperatorProfile, part: LayerPart) -> dict[str, Any]:
    share = part.ns / kernel.ns if kernel.ns else 0.0
    return {"operator": operator.op, "share_of_kernel": share, "basis": part.basis}


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
