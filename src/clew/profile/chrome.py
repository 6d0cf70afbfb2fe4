"""A profile as a trace of one run, for Perfetto and `chrome://tracing`.

The format has slices that nest by time on a track. A kernel may serve several layers, so there are
two tracks: *layers* has the model, its layers, and the parts of kernels that serve them; *kernels*
has the model, its kernels, and their operators. Both show the same time. The trace shows a typical
run with the kernels in order; all iterations of a loop form one slice.

Source: Trace Event Format, Google, 2016 (complete events, `ph: X`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from clew.profile.files import writing
from clew.profile.rows import KernelProfile, LayerPart, OperatorProfile, ProfileRows
from clew.profile.slices import kernel_slices, layer_slices
from clew.support.trace_events import name_event, slice_event
from clew.support.writing import write_text

LAYERS_TRACK: Final = 1
KERNELS_TRACK: Final = 2


def trace(profile: ProfileRows, path: Path | None) -> dict[str, Any]:
    """Returns the trace as JSON; also writes it to `path`, if given.

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
            write_text(path, json.dumps(made))
    return made


def _process(profile: ProfileRows, process: int) -> Iterator[dict[str, Any]]:
    threads = f"{profile.threads} thread{'s' * (profile.threads > 1)}"
    yield name_event("process_name", process, 0, f"model, {profile.mode}, {threads}")
    yield name_event("thread_name", process, LAYERS_TRACK, "layers")
    yield name_event("thread_name", process, KERNELS_TRACK, "kernels")
    about = {"wall_ns": profile.wall.ns, "kernels_ns": profile.kernels_ns}
    for track in (LAYERS_TRACK, KERNELS_TRACK):
        yield _Line(process, track).slice(
            "model", "model", 0.0, max(profile.wall.ns, profile.kernels_ns), about
        )
    yield from _layers(profile, _Line(process, LAYERS_TRACK))
    yield from _kernels(profile, _Line(process, KERNELS_TRACK))


class _Line:
    """A track of slices."""

    def __init__(self, process: int, track: int) -> None:
        self._ids = (process, track)

    def slice(
        self, name: str, kind: str, start_ns: float, ns: float, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns a slice."""
        return slice_event(self._ids, name, kind, start_ns, ns, {"ns": ns, **args})


def _layers(profile: ProfileRows, line: _Line) -> Iterator[dict[str, Any]]:
    types = {layer.layer: layer.op for layer in profile.layers}
    for piece in layer_slices(profile):
        name, kind = piece.layer or "(no layer)", "layer"
        args: dict[str, Any] = {"op": types.get(piece.layer, "")}
        if piece.outside:
            name, kind, args = "outside kernels", "outside", {}
        elif piece.kernel is not None and piece.operator is not None and piece.part is not None:
            name, kind = piece.kernel.name, piece.kernel.kind
            args = _part_args(piece.kernel, piece.operator, piece.part)
        yield line.slice(name, kind, piece.start_ns, piece.ns, args)


def _kernels(profile: ProfileRows, line: _Line) -> Iterator[dict[str, Any]]:
    for piece in kernel_slices(profile):
        name, kind, args = "outside kernels", "outside", {}
        if piece.operator is not None:
            name, kind, args = piece.operator.op, "operator", _operator_args(piece.operator)
        elif piece.kernel is not None:
            name, kind, args = piece.kernel.name, piece.kernel.kind, _kernel_args(piece.kernel)
        yield line.slice(name, kind, piece.start_ns, piece.ns, args)


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
