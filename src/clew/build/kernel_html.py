"""The notebook view of a kernel: its layers, operators and loop nest, as small static HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from clew.build.kernel_trace import UseTrace
from clew.ir.expr import Call
from clew.support import markup

_LINES: Final = 60
# The page's hues (frontend/src/colors.ts), at a lightness that suits both themes.
_HUES: Final = (250, 65, 205, 105, 345, 160, 300, 30)


class ShownKernel(Protocol):
    """What the view shows of a `clew.Kernel`."""

    @property
    def name(self) -> str: ...
    @property
    def layers(self) -> Sequence[str]: ...
    @property
    def ops(self) -> Sequence[str]: ...
    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def rules(self) -> Sequence[str]: ...
    @property
    def object_code(self) -> bytes: ...
    @property
    def traced(self) -> UseTrace: ...


def kernel_html(kernel: ShownKernel) -> str:
    """Returns a kernel's layers, operators and loop nest, each line in its layer's color."""
    about = {
        "layers": markup.code(", ".join(kernel.layers)),
        "operators": markup.code(", ".join(kernel.ops)),
        "schedule": markup.code(", ".join(kernel.rules)),
        "code": html.escape(f"{len(kernel.object_code)} bytes"),
    }
    used = kernel.traced
    colors = [_color_of(kernel, position) for position in range(len(kernel.ops))]
    positions = loop_ops(len(used.loops), used.loop_stages, used.stage_ops)
    lines = [
        _line(number, text, colors[op] if op >= 0 else "")
        for number, (text, op) in enumerate(zip(used.loops, positions, strict=True), 1)
    ]
    if len(lines) > _LINES:
        rest = f"… and {len(lines) - _LINES} more lines"
        lines = [*lines[:_LINES], f'<div style="{markup.FAINT}">{html.escape(rest)}</div>']
    nest = f'<div style="{markup.FIXED_WIDTH};overflow-x:auto">{"".join(lines)}</div>'
    return markup.framed([markup.head(kernel.name, "kernel"), markup.facts(about), nest])


def loop_ops(lines: int, stages: Mapping[int, str], ops: Mapping[str, int]) -> list[int]:
    """Returns for each line of a loop nest the position of the operator it computes, -1 for all."""
    return [ops.get(stages[n], -1) if n in stages else -1 for n in range(1, lines + 1)]


def _color_of(kernel: ShownKernel, position: int) -> str:
    """Returns the color of an operator's first layer, by its place in the kernel's layers."""
    own = kernel.calls[position].layers
    place = next((n for n, layer in enumerate(kernel.layers) if layer in own), None)
    return "" if place is None else f"oklch(65% 0.12 {_HUES[place % len(_HUES)]}"


def _line(number: int, text: str, color: str) -> str:
    mark = f"border-left:3px solid {color});background:{color} / 0.12)" if color else ""
    edge = mark or "border-left:3px solid transparent"
    count = f'<span style="{markup.FAINT};user-select:none">{number:>4}  </span>'
    return f'<div style="{edge};padding-left:4px">{count}{html.escape(text)}</div>'
