"""A report as tables that adapt to the width of the terminal."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from clew.compare.precision import Deviation
from clew.compare.rows import BuildFacts, LayerDiff, Rows, Summary
from clew.compare.rows import Group as LayerGroup
from clew.compare.state import State
from clew.compare.times import Timing
from clew.compare.values import Numerics
from clew.support.consoles import VisibleConsole
from clew.support.tables import table

_TEXT_COLUMNS = 100
# From this width on, tables have both errors against f32, and sentences.
_ROOMY = 110
_WIDE = 150
_ROWS = 40
_NAMES = 5
# Differences between the models come before differences in their compilation.
_OF_MODELS = ("added", "removed", "operator", "attributes", "weights", "inputs")
# Kinds shown in other columns.
_TOLD = ("time", "values", "name")
_LENGTHY = ("packing", "passes")


def as_text(report: Rows, columns: int = _TEXT_COLUMNS) -> str:
    """Returns a report as plain text."""
    console = VisibleConsole(file=io.StringIO(), width=columns, highlight=False, color_system=None)
    console.print(whole(report))
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def whole(
    report: Rows,
    rows: Sequence[LayerDiff] | None = None,
    most: int = _ROWS,
    *,
    grouped: bool = False,
) -> RenderableType:
    """Returns the summary and layers: the given ones, or all that differ. `most` limits them to the
    most important (0: no limit). `grouped` shows groups of layers instead.
    """
    chosen = list(report.changed if rows is None else rows)
    parts: list[RenderableType] = [summary_table(report.summary), Text("")]
    parts += [Text(line) for line in findings(report)]
    if grouped:
        parts += [Text(""), groups_table(report, most)]
    elif chosen:
        parts += [Text(""), _Layers(foremost(chosen, most), len(chosen))]
    return Group(*parts)


def foremost(layers: Sequence[LayerDiff], most: int) -> list[LayerDiff]:
    """Returns the most important layers in their order: those whose imported layers differ, then
    those whose values differ, then those whose time changes most.
    """
    if not most or len(layers) <= most:
        return list(layers)

    def weight(layer: LayerDiff) -> tuple[bool, bool, float]:
        rises = layer.numerics is not None and layer.numerics.rises
        moved = abs(layer.time.b - layer.time.a) if layer.time else float(len(layer.differs))
        return any(kind in layer.differs for kind in _OF_MODELS), rises, moved

    kept = {id(x) for x in sorted(layers, key=weight, reverse=True)[:most]}
    return [layer for layer in layers if id(layer) in kept]


# --- summary ---


def summary_table(summary: Summary) -> Table:
    """Returns a table of the two builds."""
    a, b = summary.a, summary.b
    made = table("", a.name, b.name, "B / A", right=(a.name, b.name, "B / A"))
    for option in a.options:
        if a.options[option] != b.options.get(option):
            made.add_row(option, Text(a.options[option] or "-"), Text(b.options[option] or "-"), "")
    if summary.time is not None:
        time = summary.time
        made.add_row("ms a run", _ms(time.a), _ms(time.b), ratio(time))
    counts = [
        ("layers", a.layers, b.layers),
        ("kernels", a.kernels, b.kernels),
        ("  distinct", a.distinct_kernels, b.distinct_kernels),
        ("host steps", a.host_steps, b.host_steps),
        ("regions of backends", a.regions, b.regions),
    ]
    for name, x, y in counts:
        if x or y:
            made.add_row(name, str(x), str(y), _quotient(x, y))
    sizes = [
        ("intermediate values", a.arena_bytes, b.arena_bytes),
        ("weights", a.weights_bytes, b.weights_bytes),
        ("code", a.code_bytes, b.code_bytes),
    ]
    for name, x, y in sizes:
        made.add_row(name, size(x), size(y), _quotient(x, y))
    made.add_row("compiled in", _compiled(a), _compiled(b), "")
    if a.error is not None or b.error is not None:
        made.add_row("output error, against f32", deviation(a.error), deviation(b.error), "")
    if summary.error is not None:
        made.add_row("output error, B against A", "", deviation(summary.error), "")
    return made


def findings(report: Rows) -> Iterator[str]:
    """Yields the findings about both builds, one line each."""
    summary = report.summary
    how = ", ".join(f"{count} by {name}" for name, count in summary.paired.items())
    pairs = sum(summary.paired.values())
    yield f"{pairs} layers in both ({how or 'none'}); {_alone(summary)}"
    changed = len(report.changed)
    if not changed:
        yield "no layer differs"
    else:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary.differs.items())
        yield f"{changed} of {len(report.layers)} layers differ: {kinds}"
    uneven = [
        _uneven(p.name, p.a, p.b) for p in summary.passes if p.otherwise or None in (p.a, p.b)
    ]
    told = [text for text in uneven if text]
    if told:
        yield f"passes (layers treated in A, B): {', '.join(told)}"
    yield from _conversions(report)
    if summary.bound is not None:
        yield _beyond(report, summary.bound)
    if summary.first_rise is not None:
        yield _part(report, report.layer(summary.first_rise))
    elif summary.error is not None:
        known = [layer for layer in report.layers if layer.numerics is not None]
        worst = max(known, key=lambda la: la.numerics.between.worst, default=None)  # type: ignore[union-attr]
        if worst is None or not worst.numerics or not worst.numerics.between.worst:
            yield "values are the same wherever they can be read"
        else:
            yield f"values do not diverge; the largest error is {_at(worst)}"

    yield from summary.notes


def _conversions(report: Rows) -> Iterator[str]:
    """Yields the numbers of layers that only convert values, by the model that has them."""
    rows = [layer for layer in report.layers if "conversion" in layer.differs]
    for name, side in (("A", [r for r in rows if r.a]), ("B", [r for r in rows if r.b])):
        kinds = Counter(layer.op for layer in side)
        told = ", ".join(f"{count} {op}" for op, count in kinds.items())
        if side:
            yield f"{len(side)} of the layers only in {name} are conversions: {told}"


def _beyond(report: Rows, bound: float) -> str:
    """Returns a line about the first layer whose error is above the bound."""
    name = report.summary.first_beyond
    if name is None:
        return f"no layer that can be compared is off by more than {bound:g} (rms)"
    layer = report.layer(name)
    found = layer.numerics
    assert found is not None
    before = [x for x in report.layers if x.numerics is not None and x.numerics.at == x.a]
    last = before[before.index(layer) - 1] if layer in before[1:] else None
    rest = ""
    if last is not None and last.numerics is not None:
        rest = f"; {last.name} before it is off by {_number(last.numerics.between.rms)}"
    return (
        f"the first layer off by more than {bound:g} (rms) is {layer.name} ({layer.op}): "
        f"{_number(found.between.rms)}{_or_hidden(report, layer)}{rest}"
    )


def _uneven(name: str, a: int | None, b: int | None) -> str:
    """Returns how a pass treated layers; empty if it did nothing and is in only one list."""
    if not a and not b:
        return ""
    return f"{name} ({'not run' if a is None else a}, {'not run' if b is None else b})"


def _alone(summary: Summary) -> str:
    told = []
    for name, layers in (("A", summary.only_a), ("B", summary.only_b)):
        shown = ", ".join(layers[:4]) + (" ..." if len(layers) > 4 else "")
        told.append(f"{len(layers)} only in {name}" + (f": {shown}" if layers else ""))
    return "; ".join(told)


def _part(report: Rows, layer: LayerDiff) -> str:
    """Returns a line about the first layer whose values diverge."""
    found = layer.numerics
    assert found is not None
    text = f"values first diverge at {layer.name} ({layer.op}): {_number(found.between.worst)}"
    text += _or_hidden(report, layer)
    if found.a is not None and found.b is not None:
        text += f"; against f32 A is off by {_number(found.a.worst)}, B by {_number(found.b.worst)}"
    rises = len(report.summary.rises)
    return text + (f"; the error rises at {rises} layers" if rises > 1 else "")


def _or_hidden(report: Rows, layer: LayerDiff) -> str:
    """Returns the layers of which a layer's value is the nearest in memory, in brackets."""
    hidden = [
        x.name for x in report.layers if x is not layer and x.numerics and x.numerics.at == layer.a
    ]
    return f" (or at {_shown(hidden)}, whose values are not in memory)" if hidden else ""


def _at(layer: LayerDiff) -> str:
    assert layer.numerics is not None
    return f"{_number(layer.numerics.between.worst)}, at {layer.name} ({layer.op})"


def _compiled(facts: BuildFacts) -> str:
    cached = f" ({facts.cached_kernels} cached)" if facts.cached_kernels else ""
    return f"{sum(facts.seconds.values()):.2f} s{cached}"


# --- layers ---


class _Layers:
    """The table of layers, with as many columns as fit."""

    def __init__(self, rows: Sequence[LayerDiff], total: int) -> None:
        self._rows = rows
        self._total = total

    def __rich_console__(self, console: Console, options: object) -> Iterator[RenderableType]:
        width = console.options.max_width
        yield layers_table(self._rows, width)
        hidden = self._total - len(self._rows)
        if hidden:
            yield Text(f"{hidden} more, that differ less: --layers 0", style="dim")
        yield Text(legend(self._rows, width), style="dim")


def layers_table(layers: Sequence[LayerDiff], columns: int) -> Table:
    """Returns a table of layers for a number of columns."""
    timed = any(layer.time for layer in layers)
    valued = any(layer.numerics for layer in layers)
    exact = any(layer.numerics and layer.numerics.a for layer in layers)
    rounded = valued and any(_rounds(layer) for layer in layers)
    wide, roomy = columns >= _WIDE, columns >= _ROOMY
    heads = ["layer", "op"]
    numbers = ["µs A", "µs B", "B / A"] if timed else []
    numbers += ["error"] if valued else []
    numbers += ["rms"] if rounded else []
    numbers += ["of A", "of B"] if exact and roomy else []
    made = table(*heads, *numbers, "differs in", right=numbers)
    made.columns[0].overflow = "ellipsis"
    made.columns[0].max_width = 40 if roomy else 24
    made.columns[0].no_wrap = True
    made.columns[1].overflow = "ellipsis"
    made.columns[1].max_width = 24 if roomy else 12
    made.columns[1].no_wrap = True
    for layer in layers:
        row = [Text(layer.name), Text(layer.op)]
        if timed:
            row += [Text(x) for x in _time_cells(layer.time, layer)]
        if valued:
            row.append(Text(error(layer.numerics, layer)))
        if rounded:
            found = layer.numerics
            row.append(Text("" if found is None else _number(found.between.rms)))
        if exact and roomy:
            row += [Text(x) for x in _exact_cells(layer.numerics)]
        made.add_row(*row, difference_text(layer, wide))
    return made


def _rounds(layer: LayerDiff) -> bool:
    """Whether a layer, or what is stored of it, is quantized in only one model. The errors of such
    models are compared by their root mean squares.
    """
    return "conversion" in layer.differs or bool(layer.numerics and layer.numerics.quantized)


def groups_table(report: Rows, most: int = _ROWS) -> RenderableType:
    """Returns a table of the groups of layers whose kernels or times differ: the `most` that change
    most (0: all).
    """
    chosen = [g for g in report.groups if _group_differs(g)]
    kept = chosen
    if most and len(chosen) > most:

        def weight(group: LayerGroup) -> float:
            return abs(group.time.b - group.time.a) if group.time else float(len(group.kernels_b))

        ids = {id(g) for g in sorted(chosen, key=weight, reverse=True)[:most]}
        kept = [g for g in chosen if id(g) in ids]
    timed = any(group.time for group in kept)
    numbers = ["µs A", "µs B", "B / A"] if timed else []
    made = table("layers", *numbers, "kernels of A", "kernels of B", right=numbers)
    for group in kept:
        cells = [Text(_shown(group.layers))]
        if timed and group.time is not None:
            cells += [Text(_us(group.time.a)), Text(_us(group.time.b)), Text(ratio(group.time))]
        made.add_row(*cells, Text(_shown(group.kernels_a)), Text(_shown(group.kernels_b)))
    if len(kept) == len(chosen):
        return made
    hidden = Text(f"{len(chosen) - len(kept)} more, that change less: --layers 0", style="dim")
    return Group(made, hidden)


def _group_differs(group: LayerGroup) -> bool:
    return group.kernels_a != group.kernels_b or (group.time is not None and group.time.differs)


def _shown(names: Sequence[str]) -> str:
    """Returns names; of many, only the first and last."""
    few = names if len(names) <= _NAMES else [*names[: _NAMES - 1], "...", names[-1]]
    return ", ".join(few)


def difference_text(layer: LayerDiff, wide: bool) -> Text:
    """Returns a layer's differences: sentences if there is room, else their kinds."""
    if not wide:
        converts = layer.differs.get("conversion", "").partition(" of ")[0]
        return Text(converts or ", ".join(layer.differs))
    text = Text()
    for kind, sentence in layer.differs.items():
        if kind not in (*_TOLD, *_LENGTHY):
            text.append("; " if text else "")
            text.append(f"{kind}: ", style="cyan").append(sentence)
    rest = ", ".join(kind for kind in _LENGTHY if kind in layer.differs)
    return text.append("; " if text and rest else "").append(rest, style="cyan")


def legend(layers: Sequence[LayerDiff], columns: int) -> str:
    """Returns the legend of the signs that occur in the table."""
    parts = []
    if any(layer.time and not layer.time.differs for layer in layers):
        parts.append("≈ within the spread of the rounds")
    found = [layer.numerics for layer in layers if layer.numerics is not None]
    if any(n.rises for n in found):
        parts.append("↑ well above that of its inputs")
    if any(layer.numerics and layer.numerics.at != layer.a for layer in layers):
        parts.append("~ of its nearest follower in memory")
    if any(n.quantized for n in found):
        parts.append("~ of what is stored quantized")
    if found:
        parts.insert(0, "error: largest difference / largest value, B against A")
    if any(map(_rounds, layers)) and found:
        parts.insert(1, "rms: norm of the difference / norm of A, with all that comes before")
    if any(n.a for n in found) and columns >= _ROOMY:
        parts.append("of A, of B: against f32 at opt level 0")
    return "; ".join(parts)


def _time_cells(time: Timing | None, layer: LayerDiff) -> tuple[str, str, str]:
    if time is None:
        return "", "", ""
    a = _us(time.a) if layer.a is not None else ""
    b = _us(time.b) if layer.b is not None else ""
    return a, b, ratio(time) if a and b else ""


def ratio(time: Timing) -> str:
    """Returns B's time divided by A's, marked if the difference is within the spread."""
    if not time.a or not time.b:
        return ""
    mark = "" if time.differs else "≈"
    return f"{mark}{time.ratio:.2f}"


def error(found: Numerics | None, layer: LayerDiff) -> str:
    """Returns a layer's error, marked if it is a follower's or rises."""
    if found is None:
        return ""
    if found.at != layer.a or found.quantized:
        return f"~{_number(found.between.worst)}"
    return f"{'↑' if found.rises else ''}{_number(found.between.worst)}"


def _exact_cells(found: Numerics | None) -> tuple[str, str]:
    if found is None:
        return "", ""
    return (
        _number(found.a.worst) if found.a else "",
        _number(found.b.worst) if found.b else "",
    )


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


# --- one layer ---


def layer_table(layer: LayerDiff, names: tuple[str, str] = ("A", "B")) -> RenderableType:
    """Returns everything known about one layer."""
    made = table(Text(f"{layer.name} ({layer.op})"), *names)  # type: ignore[arg-type]
    a, b = layer.state_a or State(), layer.state_b or State()
    rows = [
        ("kernels", _kernels(a), _kernels(b)),
        ("fate", a.fate, b.fate),
        ("result", _typed(a), _typed(b)),
        ("weights", "\n".join(a.weights), "\n".join(b.weights)),
    ]
    rows += [
        (name, " ".join(a.passes.get(name, ("-",))), " ".join(b.passes.get(name, ("-",))))
        for name in {**a.passes, **b.passes}
    ]
    if layer.time is not None:
        rows.append(("µs", _us(layer.time.a), _us(layer.time.b)))
    found = layer.numerics
    if found is not None:
        through = f" (quantized by {', '.join(found.quantized)})" if found.quantized else ""
        rows.append((f"error of {found.at}{through}", deviation(found.a), deviation(found.b)))
    for name, x, y in rows:
        if x or y:
            made.add_row(Text(name), Text(x), Text(y))
    told = [Text(f"{kind}: {text}") for kind, text in layer.differs.items()]
    if layer.how:
        told.insert(0, Text(f"matched by {layer.how}, confidence {layer.confidence:.2g}"))
    return Group(made, Text(""), *told)


def _kernels(state: State) -> str:
    return "\n".join(
        f"{part.kernel}: {', '.join(part.ops)}"
        + (f" (with {', '.join(la for la in part.layers)})" if len(part.layers) > 1 else "")
        for part in state.kernels
    )


def _typed(state: State) -> str:
    if not state.type:
        return "held by no node"
    return state.type + ("" if state.in_memory else ", inside a kernel")


# --- text ---


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f}"


def _us(microseconds: float) -> str:
    if not microseconds:
        return "0"
    return f"{microseconds:.1f}" if microseconds >= 1 else f"{microseconds:.2f}"


def _quotient(a: float, b: float) -> str:
    return f"{b / a:.2f}" if a and a != b else ""


def size(count: int) -> str:
    """Returns a number of bytes in readable form."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def deviation(found: Deviation | None) -> str:
    """Returns an error: the largest, and the root mean square."""
    if found is None:
        return "-"
    if math.isinf(found.worst):
        return "cannot be compared"
    return f"{_number(found.worst)} (rms {_number(found.rms)})"
