"""The details of a program for VTA: its cycles, engines, memories and instructions."""

from __future__ import annotations

from clew.backends.details import (
    DetailLine,
    DetailRow,
    DetailSlice,
    DetailTable,
    DetailTrack,
    RegionDetails,
)
from clew.backends.vta.assembler import instruction_text
from clew.backends.vta.names import Engine
from clew.backends.vta.timing import Timing


def details_of(timing: Timing) -> RegionDetails:
    """Returns the details of a program."""
    program = timing.program
    texts = [instruction_text(i) for i in program.instructions]
    layers = [program.layers(n) for n in range(len(texts))]
    tracks = []
    for engine in Engine:
        own = sorted((s for s in timing.slices if s.engine is engine), key=lambda s: s.begin)
        slices = [
            DetailSlice(
                s.begin, s.end, f"{s.index}: {texts[s.index]}", layers[s.index], s.waited,
                s.waited_for,
            )
            for s in own
        ]  # fmt: skip
        tracks.append(DetailTrack(engine.name.lower(), slices))
    lines = [
        DetailLine(f"{n}: {text}", of)
        for n, (text, of) in enumerate(zip(texts, layers, strict=True))
    ]
    summary = (
        f"{timing.cycles:,} cycles ({timing.seconds * 1e6:,.1f} µs at {timing.config.clock_mhz} "
        f"MHz), {timing.macs:,} MACs, {timing.utilization:.1%} of the GEMM unit's peak"
    )
    tables = (_engines(timing), _memories(timing), _layers(timing))
    return RegionDetails(summary, tables, "cycles", tracks, "instructions", lines)


def _engines(timing: Timing) -> DetailTable:
    rows = []
    for engine in Engine:
        busy, waits = timing.busy(engine), timing.waits(engine)
        share = f"{busy / timing.cycles:.1%}" if timing.cycles else ""
        what = ", ".join(f"{n:,} for {reason}" for reason, n in waits.most_common())
        rows.append(DetailRow((engine.name.lower(), f"{busy:,}", share, what)))
    return DetailTable("Engines", ("engine", "busy", "share", "waits"), rows)


def _memories(timing: Timing) -> DetailTable:
    rows = [
        DetailRow((memory.name.lower(), f"{count:,}"))
        for memory, count in sorted(timing.bytes_moved.items())
    ]
    return DetailTable("Bytes moved", ("memory", "bytes"), rows)


def _layers(timing: Timing) -> DetailTable:
    rows = []
    for each in timing.layers():
        layers = each.layers
        figures = (each.span, *(each.busy[e] for e in Engine), each.macs)
        name = ", ".join(layers) or "(none)"
        rows.append(DetailRow((name, *(f"{n:,}" for n in figures)), layers))
    columns = ("layers", "span", *(e.name.lower() for e in Engine), "MACs")
    return DetailTable("Cycles of layers", columns, rows)
