"""Figures to color by, for layers, kernels and, where known, lines and instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, get_args

from clew.compare.reference import is_reference
from clew.compare.state import Side
from clew.explorer.schema import Heat, Metric
from clew.explorer.session import Session
from clew.explorer.views.measured import errors_of, profile_of
from clew.explorer.views.node_figures import (
    Portion,
    means,
    of_operators,
    of_results,
    portions_of,
    sums,
)
from clew.profile.report import Profile
from clew.profile.rollup import divided
from clew.profile.rows import NO_LAYER, KernelProfile
from clew.profile.split import OperatorShare, estimated_splits
from clew.profile.work import LayerWork
from clew.support.errors import InputError

Figures = list[float | None]


def heat(session: Session, metric: str) -> Heat:
    """Returns the figures of a metric.

    Errors: I232 for an unknown metric; I230, I231 if it has not been measured.
    """
    view = _METRICS.get(metric)
    if view is None:
        known = ", ".join(get_args(Metric))
        raise InputError("I232", f"no metric {metric[:40]!r}", hint=f"the metrics are {known}")
    return view(session)


# --- measured time ---


def _time(session: Session) -> Heat:
    found = profile_of(session)
    rows = _rows(session, found)
    layers = {row.layer: row.ns for row in found.layers}
    notes = list(found.notes)
    if layers.get(NO_LAYER):
        notes.append(f"{layers[NO_LAYER] / 1e3:.1f} µs belong to operators that serve no layer")
    hosts = sum(row.ns for row in found.kernels if row.kind == "host")
    if hosts:
        notes.append(f"{hosts / 1e3:.1f} µs belong to host steps, which are not kernels")
    regions = sum(row.ns for row in found.kernels if row.kind == "region")
    if regions:
        notes.append(f"{regions / 1e3:.1f} µs belong to regions on other backends")
    return Heat(
        metric="time",
        unit="ns",
        total=found.kernels_ns,
        layers=[layers.get(name, 0.0) for name in session.layers],
        kernels=[None if row is None else row.ns for row in rows],
        regions=region_figures(session, found),
        nodes=sums(session, portions_of(session, found.kernels)),
        lines=[[] if row is None else [x.share * row.ns for x in row.lines] for row in rows],
        instructions=[_instructions(session, n, row) for n, row in enumerate(rows)],
        runs=[None if row is None else row.runs for row in rows],
        basis=_time_basis(found),
        notes=notes,
    )


def _rows(session: Session, found: Profile) -> list[KernelProfile | None]:
    """Returns the profile rows of the build's kernels; None for kernels that did not run."""
    by_name = {row.name: row for row in found.kernels}
    return [by_name.get(kernel.name) for kernel in session.kernels]


def region_figures(session: Session, found: Profile) -> Figures:
    """Returns the times of the build's regions; None for regions that did not run."""
    by_node = {row.node: row.ns for row in found.kernels if row.kind == "region"}
    return [by_node.get(use.call.id) for use in session.regions]


def _instructions(session: Session, kernel: int, row: KernelProfile | None) -> Figures:
    if row is None or not row.instructions:
        return []
    found: Figures = [0.0] * len(session.kernels[kernel].asm)
    for instruction in row.instructions:
        found[instruction.place] = instruction.share * row.ns
    return found


def _time_basis(found: Profile) -> str:
    """Returns a text on how the times of layers were obtained, with shares of the total."""
    whole = found.kernels_ns or 1.0
    measured = sum(la.alone_ns + la.measured_ns for la in found.layers)
    estimated = sum(la.estimated_ns for la in found.layers)
    share = 100 * measured / whole
    text = f"kernel timers, {found.rounds} rounds; layers: {share:.0f} % measured"
    if estimated:
        text += f", {100 * estimated / whole:.0f} % divided by FLOPs or bytes (estimates)"
    samples = sum(row.samples for row in found.kernels)
    return f"{text}; lines and instructions: {samples:,} samples" if samples else text


# --- static: what operators have to do ---


def _flops(session: Session) -> Heat:
    return _static(
        session, "flops", "flop", lambda kernel: kernel.work.flops, lambda op: op.by_flops
    )


def _bytes(session: Session) -> Heat:
    return _static(session, "bytes", "B", lambda kernel: kernel.work.bytes, lambda op: op.by_bytes)


def _static(
    session: Session,
    metric: Metric,
    unit: str,
    amount: Callable[..., int],
    weight: Callable[[OperatorShare], float],
) -> Heat:
    """Returns the least work of kernels, divided among their operators and the operators'
    layers.
    """
    model = session.compiled
    splits = estimated_splits(model)
    work = LayerWork(model.build)
    known: dict[str, float] = {}
    kernels: list[float] = []
    portions: list[Portion] = []
    layers = dict.fromkeys(session.layers, 0.0)
    for place, kernel in enumerate(model.kernels):
        if kernel.key not in known:
            known[kernel.key] = float(amount(kernel))
        kernels.append(known[kernel.key])
        operators = splits[kernel.call.id].operators
        for op, part in zip(
            operators, divided(kernels[-1], [weight(op) for op in operators]), strict=True
        ):
            for name, figure in _by_layer(part, op, work):
                portions.append(Portion(session.kernels[place].ops[op.position], name, figure))
                if name in layers:
                    layers[name] += figure
    total = sum(kernels)
    notes = []
    left = total - sum(layers.values())
    if left > 0:
        notes.append(f"{left / total:.1%} belong to operators that serve no layer")
    own = "FLOPs of the kernels' expressions" if metric == "flops" else "operands, once each"
    return Heat(
        metric=metric,
        unit=unit,
        total=total,
        layers=list(layers.values()),
        kernels=list(kernels),
        regions=[None] * len(session.regions),
        nodes=sums(session, portions),
        lines=[],
        instructions=[],
        runs=[],
        basis=f"counted, not measured: {own}, for one run each; divided among the layers of a "
        f"kernel by their {metric} (estimates)",
        notes=notes,
    )


def _by_layer(figure: float, op: OperatorShare, work: LayerWork) -> list[tuple[str, float]]:
    if len(op.layers) <= 1:
        return [(op.layers[0] if op.layers else NO_LAYER, figure)]
    return list(zip(op.layers, divided(figure, work.weigh(op.layers)), strict=True))


# --- how near to what the machine gives ---


def _peak(session: Session) -> Heat:
    found = profile_of(session)
    rows = _rows(session, found)
    shares = {
        row.name: row.roof.limit_share for row in found.kernels if row.roof is not None and row.ns
    }
    weighed: dict[str, list[float]] = {}
    for row in found.kernels:
        for part in (part for op in row.operators for part in op.parts):
            if row.name in shares:
                sums = weighed.setdefault(part.layer, [0.0, 0.0])
                sums[0] += part.ns * shares[row.name]
                sums[1] += part.ns
    layers = {name: reached / ns for name, (reached, ns) in weighed.items() if ns}
    under = sum(row.ns for row in found.kernels if row.name in shares)
    reached = sum(row.ns * shares[row.name] for row in found.kernels if row.name in shares)
    known = [row for row in found.kernels if row.name in shares]
    portions = [(p, shares[row.name]) for row in known for p in portions_of(session, [row])]
    notes = [] if found.limits is not None else ["the machine was not measured"]
    together = f"all kernels together {reached / under:.0%}; " if under else ""
    return Heat(
        metric="peak",
        unit="share",
        total=None,
        layers=[layers.get(name) for name in session.layers],
        kernels=[None if row is None else shares.get(row.name) for row in rows],
        regions=[None] * len(session.regions),
        nodes=means(session, portions),
        lines=[],
        instructions=[],
        runs=[],
        basis=f"{together}the least time by a kernel's roofline (the peak of its products, or the "
        "bandwidth of the memory that holds its operands) over the measured time; for layers, the "
        "mean over their kernels, weighted by time",
        notes=notes,
    )


# --- numeric error ---


def _error(session: Session) -> Heat:
    found = errors_of(session)
    side = Side(session.compiled)
    kernels: Figures = [None] * len(session.kernels)
    for name, error in found.items():
        node = side.held(name) if error is not None else None
        kernel = None if node is None else session.kernel_of_call.get(node)
        if kernel is not None and error is not None:
            kernels[kernel] = max(error, kernels[kernel] or 0.0)
    missing = sum(error is None for error in found.values())
    notes = []
    if is_reference(session.compiled):
        notes.append("this build is the reference itself: f32, opt level 0")
    if missing:
        notes.append(f"{missing} of {len(found)} layers have no value in memory to compare")
    return Heat(
        metric="error",
        unit="relative",
        total=None,
        layers=[found.get(name) for name in session.layers],
        kernels=kernels,
        regions=[None] * len(session.regions),
        nodes=of_results(session, found),
        lines=[],
        instructions=[],
        runs=[],
        basis="the largest difference from f32 at opt level 0, over the largest magnitude there; "
        "for values in memory, with inputs drawn from a seed",
        notes=notes,
    )


def _quantization(session: Session) -> Heat:
    """Returns the errors that were measured when the model was quantized. Conversions and other
    operators of a layer have its figure.
    """
    notes = [note for notes in session.trace.notes.values() for note in notes]
    found: dict[str, float] = {}
    for note in notes:
        if note.error is not None:
            found[note.layer] = max(note.error, found.get(note.layer, 0.0))
    kernels: Figures = []
    for kernel in session.kernels:
        known = [found[la] for la in session.trace.kernel_layers(kernel) if la in found]
        kernels.append(max(known, default=None))
    none = "no errors are known: clew.quantize measures them, and its files have them"
    return Heat(
        metric="quantization",
        unit="relative",
        total=None,
        layers=[found.get(name) for name in session.layers],
        kernels=kernels,
        regions=[None] * len(session.regions),
        nodes=of_operators(session, found),
        lines=[],
        instructions=[],
        runs=[],
        basis="the difference of a layer's result from that of the model in floats, relative to it "
        "(root mean squares), on the calibration data; with all that comes before it",
        notes=[] if found else [none],
    )


_METRICS: Final[Mapping[str, Callable[[Session], Heat]]] = {
    "time": _time,
    "flops": _flops,
    "bytes": _bytes,
    "peak": _peak,
    "error": _error,
    "quantization": _quantization,
}
