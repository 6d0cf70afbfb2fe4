"""One run of median times, drawn from left to right: layers, kernels, operators."""

from __future__ import annotations

from clew.explorer.schema import Slice, Timeline
from clew.explorer.session import Session
from clew.explorer.views.measured import profile_of
from clew.profile.slices import kernel_slices, layer_slices

_OUTSIDE = "outside kernels"


def timeline(session: Session) -> Timeline:
    """Returns the slices of a run.

    Errors: I230 if the build was not profiled.
    """
    found = profile_of(session)
    places = {kernel.name: n for n, kernel in enumerate(session.kernels)}
    slices: list[Slice] = []
    for piece in layer_slices(found):
        if piece.part is None:
            ref = f"layer:{piece.layer}" if piece.layer in session.layers else ""
            text = _OUTSIDE if piece.outside else piece.layer or "(no layer)"
            slices.append(Slice("layers", piece.start_ns, piece.ns, text, ref))
    for piece in kernel_slices(found):
        if piece.kernel is None:
            slices.append(Slice("kernels", piece.start_ns, piece.ns, _OUTSIDE, ""))
            continue
        if piece.kernel.kind == "region":
            at = session.region_of_call.get(-1 if piece.kernel.node is None else piece.kernel.node)
            ref = "" if at is None else f"region:{at}"
            track = "kernels" if piece.operator is None else "operators"
            slices.append(Slice(track, piece.start_ns, piece.ns, piece.kernel.name, ref))
            continue
        place = places.get(piece.kernel.name)
        if piece.operator is None:
            ref = "" if place is None else f"kernel:{place}"
            slices.append(Slice("kernels", piece.start_ns, piece.ns, piece.kernel.name, ref))
        else:
            ref = "" if place is None else _node(session, place, piece.operator.position)
            slices.append(Slice("operators", piece.start_ns, piece.ns, piece.operator.op, ref))
    return Timeline(wall_ns=found.wall.ns, slices=slices)


def _node(session: Session, kernel: int, position: int) -> str:
    """Returns the ref of a kernel's operator in the last stage."""
    number = session.numbers[session.kernels[kernel].ops[position]]
    return f"node:{session.trace.last}:{number}"
