"""The frontier of a quantized model as a picture: error against time, or against the number of
layers in floats if nothing was timed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from clew.quantization.search import FloatSet, Step
from clew.quantization.times import Timing
from clew.support.unseen import visible

_WIDTH, _HEIGHT = 760, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 24, 48, 62
_TICKS: Final = 6
_NAMED: Final = 14  # points of more steps than this get no names, except for the largest steps
_LONGEST: Final = 24
_STYLE: Final = """
text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}
.faint{fill:#777}.axis{stroke:#999}.grid{stroke:#e4e4e4}.back{fill:#fff}
.way{fill:none;stroke:#0072b2;stroke-width:1.5}.point{fill:#0072b2}
.estimate{fill:#fff;stroke:#0072b2;stroke-width:1.5}.bound{stroke:#d55e00;stroke-dasharray:6 4}
.chosen{fill:none;stroke:#d55e00;stroke-width:2.5}.run{stroke:#777;stroke-dasharray:2 3}
@media(prefers-color-scheme:dark){text{fill:#ddd}.faint{fill:#999}.grid{stroke:#333}
.back,.estimate{fill:#1b1b1b}}"""


@dataclass(frozen=True)
class _Point:
    """A set of layers in floats: how many, the layer that the last step added, where it lies, and
    whether its figure was evaluated.
    """

    count: int
    layer: str
    x: float
    figure: float
    evaluated: bool


class _Axis:
    """Numbers along an axis of so many pixels. Those of a logarithmic one are positive."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self._log = log
        low, high = min(values), max(values)
        if log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            high = high if high > low else 10 * low
        else:
            room = 0.05 * (high - low) if high > low else 0.5 * abs(high) or 0.5
            low, high = low - room, high + room
        self.low, self.high = low, high
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Returns the place of a value, at the nearer end for one beyond the axis."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self._log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Returns round numbers on the axis."""
        if self._log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**n for n in range(first, last + 1)]
        step = 10 ** math.floor(math.log10((self.high - self.low) / _TICKS))
        step *= next(m for m in (1, 2, 5, 10) if step * m * _TICKS >= self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, int(self.high / step + 1e-9) + 1)]


def frontier_svg(
    steps: Sequence[Step], floats: FloatSet | None, timing: Timing | None, figure: str
) -> str:
    """Returns the picture as a standalone SVG document. Layers that stay in floats cost the time
    that quantization would save; their total cost is estimated by the sum, so that the model
    with all of them in floats takes its own time. `figure` names what steps are about.
    """
    points = list(_points(steps, timing))
    chosen = None if floats is None else _chosen(floats, timing)
    every = [*points, *([chosen] if chosen else [])]
    runs = _runs(timing)
    figures = [p.figure for p in every] + ([floats.bound] if floats else [])
    positive = [f for f in figures if f > 0]
    log = bool(positive) and min(figures) >= 0 and max(positive) > 20 * min(positive)
    if log:
        positive = [f for f in positive if f > 1e-4 * max(positive)]
    xs = _Axis([p.x for p in every] + [ms for _, ms in runs], _LEFT, _WIDTH - _RIGHT, log=False)
    ys = _Axis(positive if log else figures, _HEIGHT - _BOTTOM, _TOP, log=log)
    heading = _heading(figure, floats, timing)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{heading}</title>',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text class="title" x="{_LEFT}" y="20">{heading}</text>',
        f'<text class="faint" x="{_LEFT}" y="37">{_legend(every)}</text>',
        *_grid(xs, ys, "time of a run in ms" if timing else "layers in floats", figure),
        *_references(xs, ys, runs, floats),
        *_way(xs, ys, points),
        *_circles(xs, ys, points),
    ]
    if chosen is not None:
        x, y = xs.at(chosen.x), ys.at(chosen.figure)
        parts.append(f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="8">{_told(chosen)}')
        parts.append("</circle>")
    return "\n".join([*parts, "</svg>\n"])


def _points(steps: Sequence[Step], timing: Timing | None) -> Iterator[_Point]:
    kept: list[str] = []
    for count, step in enumerate(steps):
        kept += [step.layer] if step.layer else []
        yield _Point(count, step.layer, _x(kept, timing), step.figure, step.evaluated)


def _chosen(floats: FloatSet, timing: Timing | None) -> _Point:
    where = _x(floats.layers, timing)
    return _Point(len(floats.layers), ", ".join(floats.layers), where, floats.figure, True)


def _x(kept: Sequence[str], timing: Timing | None) -> float:
    """Returns the estimated time in ms with these layers in floats, or their number."""
    if timing is None:
        return len(kept)
    saved = {time.layer: time.saved_us for time in timing.layers}
    own = [saved[layer] for layer in kept if layer in saved]
    # What runs differ by beyond the kernels of layers, in equal parts.
    rest = timing.float_us - timing.quantized_us - sum(saved.values())
    share = rest * len(own) / max(len(saved), 1)
    return max(timing.quantized_us + sum(own) + share, 0.0) / 1e3


def _runs(timing: Timing | None) -> list[tuple[str, float]]:
    if timing is None:
        return []
    found = [("f32", timing.float_us / 1e3)]
    return found + ([("bf16", timing.bf16_us / 1e3)] if timing.bf16_us is not None else [])


def _heading(figure: str, floats: FloatSet | None, timing: Timing | None) -> str:
    against = "time" if timing else "layers in floats"
    bound = f", bound {floats.bound:g}" if floats else ""
    return f"Quantization: {figure} against {against}{bound}"


def _legend(points: Sequence[_Point]) -> str:
    estimated = "" if all(p.evaluated for p in points) else " (hollow: estimated)"
    return f"from all layers quantized to none, one more in floats at each point{estimated}"


def _grid(xs: _Axis, ys: _Axis, name: str, figure: str) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in xs.ticks():
        x = xs.at(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:.4g}</text>'
    for tick in ys.ticks():
        y = ys.at(tick)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>'
    yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{name}</text>'
    turned = f'transform="translate(16 {(_TOP + bottom) / 2:.0f}) rotate(-90)"'
    yield f'<text {turned} text-anchor="middle">{figure}</text>'


def _references(
    xs: _Axis, ys: _Axis, runs: Sequence[tuple[str, float]], floats: FloatSet | None
) -> Iterator[str]:
    """Yields the lines of whole runs, and that of the bound."""
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for name, ms in runs:
        x = xs.at(ms)
        yield f'<line class="run" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text class="faint" x="{x - 4:.1f}" y="{_TOP + 12}" text-anchor="end">{name}</text>'
    if floats is not None:
        y = ys.at(floats.bound)
        yield f'<line class="bound" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'


def _way(xs: _Axis, ys: _Axis, points: Sequence[_Point]) -> Iterator[str]:
    places = " L".join(f"{xs.at(p.x):.1f} {ys.at(p.figure):.1f}" for p in points)
    if places:
        yield f'<path class="way" d="M{places}"/>'


def _circles(xs: _Axis, ys: _Axis, points: Sequence[_Point]) -> Iterator[str]:
    gains = [a.figure - b.figure for a, b in pairwise(points)]
    most = sorted(range(len(gains)), key=lambda n: -gains[n])[:_NAMED]
    for n, p in enumerate(points):
        x, y = xs.at(p.x), ys.at(p.figure)
        kind = "point" if p.evaluated else "estimate"
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4">{_told(p)}</circle>'
        if n - 1 in most or not n:
            after = x < (_LEFT + _WIDTH - _RIGHT) / 2 or not n
            name = _short(p.layer) if n else "all quantized"
            name += ": 0" if not p.figure else ""
            at = f'x="{x + (8 if after else -8):.1f}" y="{y - 6:.1f}"'
            anchor = "" if after else ' text-anchor="end"'
            yield f"<text {at}{anchor}>{name}</text>"


def _told(point: _Point) -> str:
    """Returns the tooltip of a point."""
    how = "" if point.evaluated else ", estimated"
    which = f"{point.count} in floats ({_text(point.layer)})" if point.layer else "all quantized"
    return f"<title>{which}: {point.figure:.3g}{how}; x {point.x:.4g}</title>"


def _short(name: str) -> str:
    return _text(name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}")


def _text(name: str) -> str:
    return html.escape(visible(name))
