"""A profile as text, for terminals of any width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clew.profile.flat import sizes_text
from clew.profile.frames import By
from clew.profile.rows import Gain, KernelProfile, LayerProfile, OperatorProfile, ProfileRows
from clew.profile.timing import Time
from clew.support.errors import InputError
from clew.support.shown import counted

TOP: Final = 20
_GAP = 2
_LEAST_TEXT = 15  # minimum width of a column of names
_GOOD_TEXT = 26  # other columns are dropped before names get narrower than this
_WORDS: Final = {
    "alone": "timers",
    "measured": "samples",
    "flops": "FLOPs (estimate)",
    "bytes": "bytes (estimate)",
    "undivided": "not divided",
}


@dataclass(frozen=True)
class _Column:
    """A column: its head, a function for its cells, and its rank. If a line is too wide, the
    columns of the highest rank are dropped first; rank 0 is never dropped.
    """

    head: str
    cell: Callable[[Any], str]
    rank: int = 0
    number: bool = True


def text(profile: ProfileRows, by: By | None, top: int | None, width: int) -> str:
    """Returns a heading and the requested tables."""
    lines = [part for line in _heading(profile) for part in textwrap.wrap(line, width)]
    kinds: Sequence[By] = ("kernel", "layer") if by is None else (by,)
    for kind in kinds:
        lines += ["", *_TABLES[kind](profile, top, width)]
        if kind == "kernel" and len(profile.outside) > 1:
            lines += textwrap.wrap(_outside_line(profile), width)
        if kind != "kernel":
            lines += [part for line in _legend(profile) for part in textwrap.wrap(line, width)]
    if profile.gains:
        lines += ["", *_gains(profile, top, width)]
    for note in profile.notes:
        lines += textwrap.wrap(f"note: {note}", width)
    return "\n".join(lines)


def _drawn(
    columns: Sequence[_Column],
    rows: Sequence[Any],
    sums: Sequence[dict[str, str]],
    width: int,
) -> list[str]:
    """Returns a table's lines: heads, `rows`, and `sums` (cells by head) below a gap."""
    shown = list(columns)
    cells = {c.head: [c.cell(row) for row in rows] for c in columns}
    ends = {c.head: [row.get(c.head, "") for row in sums] for c in columns}
    natural = {h: max(map(len, (h, *cells[h], *ends[h]))) for h in cells}

    def least(column: _Column) -> int:
        full = natural[column.head]
        return full if column.number else min(full, _GOOD_TEXT)

    def taken(sizes: Sequence[int]) -> int:
        return sum(sizes) + _GAP * (len(sizes) - 1)

    while taken([least(c) for c in shown]) > width and any(c.rank for c in shown):
        shown.remove(max(shown, key=lambda c: c.rank))
    sizes = {c.head: natural[c.head] for c in shown}
    while taken(list(sizes.values())) > width:
        texts = [c.head for c in shown if not c.number and sizes[c.head] > _LEAST_TEXT]
        if not texts:
            break
        sizes[max(texts, key=lambda head: sizes[head])] -= 1

    def line(values: Sequence[str]) -> str:
        parts = []
        for column, value in zip(shown, values, strict=True):
            size = sizes[column.head]
            short = value if len(value) <= size else _shortened(value, size, column.rank == 0)
            parts.append(short.rjust(size) if column.number else short.ljust(size))
        return (" " * _GAP).join(parts).rstrip()

    lines = [line([c.head for c in shown])]
    lines += [line([cells[c.head][n] for c in shown]) for n in range(len(rows))]
    lines += [line([ends[c.head][n] for c in shown]) for n in range(len(sums))]
    return lines


def _shortened(value: str, size: int, middle: bool) -> str:
    """Returns a text without its end, or its middle, since names often differ at the end."""
    kept = size // 3 if middle else 0
    return f"{value[: size - 1 - kept]}…{value[len(value) - kept :]}"


def us(ns: float) -> str:
    """Returns microseconds with the significant decimals."""
    value = ns / 1e3
    return (
        f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2f}"
        if abs(value) >= 1
        else f"{value:.3f}"
    )


def percent(share: float, decimals: int = 1) -> str:
    """Returns a share as a percentage."""
    return f"{100 * share:.{decimals}f} %"


def _heading(profile: ProfileRows) -> list[str]:
    lines = [_run_line(profile)]
    if profile.unfused is not None:
        lines.append(_run_line(profile.unfused))
        lines.append(f"with fusion, a run is {profile.gains[0].speedup:.2f} times as fast")
    limits = profile.limits
    if limits is not None:
        speeds = ", ".join(f"{name} {gbps:.0f}" for name, gbps in limits.bandwidth_gbps.items())
        tiles = f", of bf16 tiles {limits.tile_gflops:.0f}" if limits.tile_gflops else ""
        lines.append(f"FMA peak {limits.peak_gflops:.0f} GFLOP/s{tiles}; GB/s: {speeds}")
    return lines


def _run_line(profile: ProfileRows) -> str:
    kernels = sum(k.kind == "kernel" for k in profile.kernels)
    hosts = sum(k.kind == "host" for k in profile.kernels)
    regions = len(profile.kernels) - kernels - hosts
    steps = counted(kernels, "kernel")
    steps += f" and {counted(hosts, 'host step')}" if hosts else ""
    steps += f" and {counted(regions, 'region')} of other backends" if regions else ""
    threads = f"{profile.threads} thread{'s' * (profile.threads != 1)}"
    each = f" of {profile.runs_a_round} runs" if profile.runs_a_round > 1 else ""
    inside = profile.kernels_ns / max(profile.wall.ns, 1.0)
    return (
        f"{profile.mode}, {threads}: a run takes {us(profile.wall.ns)} µs "
        f"({_range(profile.wall)}), "
        f"{percent(inside)} of it in {steps}; "
        f"{profile.rounds} rounds{each} after {profile.warmup} to warm up, "
        f"timers {percent(profile.overhead, 2)}"
    )


def _outside_line(profile: ProfileRows) -> str:
    parts = [f"{row.what} {us(row.ns)} µs ({row.count})" for row in profile.outside]
    return f"outside kernels, about: {', '.join(parts)}"


def _range(time: Time) -> str:
    return f"half of the runs {us(time.q1_ns)} to {us(time.q3_ns)}"


def _names(names: Sequence[str], most: int = 2) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _largest(rows: Sequence[Any], top: int | None) -> list[Any]:
    return sorted(rows, key=lambda row: -row.ns)[:top]


def _sums(
    profile: ProfileRows, head: str, count: int, shown: Sequence[Any]
) -> list[dict[str, str]]:
    """Returns the rows below a table's: omitted rows, time outside kernels, the whole run."""
    wall_ns = max(profile.wall.ns, 1.0)
    rest = profile.kernels_ns - sum(row.ns for row in shown)
    sums = [(f"{count - len(shown)} more", rest)] if len(shown) < count else []
    sums += [("outside kernels", profile.outside_ns), ("a run", profile.wall.ns)]
    return [{head: name, "µs": us(ns), "share": percent(ns / wall_ns)} for name, ns in sums]


def _kernels(profile: ProfileRows, top: int | None, width: int) -> list[str]:
    rows = profile.kernels
    several = any(k.runs != 1 for k in rows)
    roofs = any(k.roof is not None for k in rows)

    def roof(show: Callable[[Any], str]) -> Callable[[KernelProfile], str]:
        return lambda kernel: show(kernel.roof) if kernel.roof is not None else ""

    columns = [
        _Column("kernel", lambda k: k.name, number=False),
        _Column("layers", lambda k: _names(k.layers), 2, number=False),
        *([_Column("runs", lambda k: f"{k.runs:g}", 4)] if several else []),
        _Column("µs", lambda k: us(k.ns)),
        _Column("spread", lambda k: percent(k.time.spread), 5),
        _Column("share", lambda k: percent(k.share)),
    ]
    if roofs:
        columns += [
            _Column("GFLOP/s", roof(lambda r: f"{r.gflops:.1f}"), 7),
            _Column("% of peak", roof(lambda r: f"{100 * r.peak_share:.0f}"), 6),
            _Column("GB/s", roof(lambda r: f"{r.gbps:.1f}"), 8),
            _Column("limit", roof(lambda r: f"{r.limit} {100 * r.limit_share:.0f} %"), 1),
        ]
    shown = _largest(rows, top)
    return _drawn(columns, shown, _sums(profile, "kernel", len(rows), shown), width)


def _layers(profile: ProfileRows, top: int | None, width: int) -> list[str]:
    rows = profile.layers
    columns = [
        _Column("layer", lambda la: la.layer or "(no layer)", number=False),
        _Column("type", lambda la: la.op, 2, number=False),
        _Column("µs", lambda la: us(la.ns)),
        _Column("share", lambda la: percent(la.share)),
        _Column("known by", _known_by, 1, number=False),
        _Column("kernels", lambda la: _names(la.kernels), 3, number=False),
    ]
    shown = _largest(rows, top)
    return _drawn(columns, shown, _sums(profile, "layer", len(rows), shown), width)


def _known_by(layer: LayerProfile) -> str:
    """Returns the basis of a layer's time, the largest part first."""
    parts = [
        (layer.alone_ns, "timers"),
        (layer.measured_ns, "samples"),
        (layer.estimated_ns, "estimate"),
        (layer.undivided_ns, "not divided"),
    ]
    some = sorted((p for p in parts if p[0] > 0), key=lambda p: -p[0])
    if len(some) == 1:
        return some[0][1]
    return ", ".join(f"{word} {100 * ns / layer.ns:.0f} %" for ns, word in some)


def _operators(profile: ProfileRows, top: int | None, width: int) -> list[str]:
    rows = profile.operators

    def share(of: Callable[[OperatorProfile], float | None]) -> Callable[[OperatorProfile], str]:
        def cell(row: OperatorProfile) -> str:
            value = of(row)
            return "" if value is None else f"{100 * value:.0f} %"

        return cell

    columns = [
        _Column("operator", lambda o: o.op, number=False),
        _Column("kernel", lambda o: o.kernel, number=False),
        _Column("layers", lambda o: _names(o.layers), 2, number=False),
        _Column("sizes", lambda o: sizes_text(o.facts), 2, number=False),
        _Column("µs", lambda o: us(o.ns)),
        _Column("of kernel", share(lambda o: o.share)),
        _Column("by samples", share(lambda o: o.measured), 3),
        _Column("by FLOPs", share(lambda o: o.by_flops), 4),
        _Column("by bytes", share(lambda o: o.by_bytes), 5),
        _Column("known by", lambda o: _WORDS[o.basis], 1, number=False),
    ]
    shown = _largest(rows, top)
    return _drawn(columns, shown, _sums(profile, "operator", len(rows), shown), width)


def _modules(profile: ProfileRows, top: int | None, width: int) -> list[str]:
    """Returns the table of modules, which are nested, in the order of the model."""
    if not profile.modules:
        return [
            "the model does not say which modules its layers belong to: it is no PyTorch module"
        ]
    columns = [
        _Column("module", lambda m: m.module or "(the model)", number=False),
        _Column("class", lambda m: m.kind, 2, number=False),
        _Column("µs", lambda m: us(m.ns)),
        _Column("share", lambda m: percent(m.share)),
        _Column("layers", lambda m: str(len(m.layers)), 4),
        _Column("kernels", lambda m: _names(m.kernels), 3, number=False),
    ]
    longest = set(map(id, _largest(profile.modules, top)))
    shown = [module for module in profile.modules if id(module) in longest]
    hidden = len(profile.modules) - len(shown)
    more = [{"module": f"{hidden} more, inside these"}] if hidden else []
    ends = _sums(profile, "module", 0, profile.kernels)
    return _drawn(columns, shown, [*more, *ends], width)


_TABLES: Final = {
    "kernel": _kernels, "layer": _layers, "operator": _operators, "module": _modules
}  # fmt: skip


def _legend(profile: ProfileRows) -> list[str]:
    bases = {part.basis for o in profile.operators for part in o.parts}
    lines = []
    if "measured" in bases:
        lines.append("samples: of the instructions that fused kernels ran")
    if bases & {"flops", "bytes"}:
        lines.append(
            "estimate: not measured, divided by the FLOPs or bytes of operators and layers"
        )
    return lines


def _gains(profile: ProfileRows, top: int | None, width: int) -> list[str]:
    rows = sorted(profile.gains[1:], key=lambda g: -abs(g.saved_ns))[:top]
    columns = [
        _Column("layer", _layer_name, number=False),
        _Column("type", lambda g: g.op, 2, number=False),
        _Column("unfused µs", lambda g: us(g.unfused_ns)),
        _Column("fused µs", lambda g: us(g.fused_ns)),
        _Column("saved µs", lambda g: us(g.saved_ns)),
        _Column("times as fast", _speedup, 1),
        _Column("kernels", lambda g: f"{g.unfused_kernels} → {g.fused_kernels}", 3),
    ]
    hidden = len(profile.gains) - 1 - len(rows)
    sums = [{"layer": f"{hidden} more"}] if hidden else []
    return _drawn(
        columns, rows, [*sums, {c.head: c.cell(profile.gains[0]) for c in columns}], width
    )


def _layer_name(gain: Gain) -> str:
    return "a run" if gain.layer is None else gain.layer or "(no layer)"


def _speedup(gain: Gain) -> str:
    return f"{gain.speedup:.2f}" if gain.fused_ns else "all saved"


def annotated(kernel: KernelProfile, width: int) -> str:
    """Returns a kernel's operators and its loop nest, each line with its share of the samples.

    Errors: I114.
    """
    if not kernel.lines:
        raise InputError(
            "I114",
            f"no samples were taken of {kernel.name}",
            hint="kernels are sampled in the mode fused, unless sampling is off",
        )
    lines = [
        f"{kernel.name}: {us(kernel.ns)} µs, {percent(kernel.share)} of a run, "
        f"{kernel.samples} samples",
    ]
    for operator in kernel.operators:
        lines.append(
            f"{100 * operator.share:6.1f} %  {operator.op} ({_WORDS[operator.basis]}): "
            f"{_names(operator.layers, 4)}"
        )
    lines.append("")
    for line in kernel.lines:
        share = f"{100 * line.share:6.1f} %" if line.samples else " " * 8
        text = f"{share} │ {line.text}"
        lines.append(text if len(text) <= width else _shortened(text, width, False))
    return "\n".join(lines)
