"""Notebook views of a compiled model and a kernel, as small static HTML; stories render themselves.

The HTML has no scripts, all text is escaped, and colors suit light and dark notebooks. The facts
are those of the page and of the command line's tables.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clew.compiled import CompiledModel
from clew.explorer.views.code import loop_ops
from clew.kernel import Kernel
from clew.profile.report import Profile
from clew.profile.tables import percent, us
from clew.support import markup
from clew.support.shown import counted

_ROWS: Final = 12
_NAMES: Final = 3
_LINES: Final = 60
# The page's hues (frontend/src/colors.ts), at a lightness that suits both themes.
_HUES: Final = (250, 65, 205, 105, 345, 160, 300, 30)


def model_html(model: CompiledModel) -> str:
    """Returns a compiled model's inputs, outputs and kernels: the slowest kernels if the model has
    been profiled, else the first ones. A model with symbolic sizes has no kernels before a run.
    """
    target = f"for {model.options.target.name}"
    parts = [markup.head("compiled model", target), markup.facts(_signature(model))]
    if model.is_built:
        parts += _kernels(model)
    return markup.framed(parts)


def kernel_html(kernel: Kernel) -> str:
    """Returns a kernel's layers, operators and loop nest, each line in its layer's color."""
    about = {
        "layers": markup.code(_listed(kernel.layers, len(kernel.layers))),
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


# --- a model ---


def _signature(model: CompiledModel) -> dict[str, str]:
    inputs = [f"{i.name}: {i.dtype}[{', '.join(map(str, i.shape))}]" for i in model.inputs]
    return {
        "inputs": markup.code(_listed(inputs, 8)),
        "outputs": markup.code(_listed(model.output_names, 8)),
    }


def _kernels(model: CompiledModel) -> list[str]:
    kernels = model.kernels
    distinct = len({k.key for k in kernels})
    profile: Profile | None = model.last_profile
    about = f"{counted(len(kernels), 'kernel')}, {distinct} distinct"
    if profile is None:
        rows = [
            [markup.code(k.name), _layers(k.layers), markup.code(", ".join(k.ops))] for k in kernels
        ]
        table = markup.table(["kernel", "layers", "operators"], rows[:_ROWS], 3)
        return [markup.paragraph(about), table, _more(len(rows))]
    about += f"; a run takes {us(profile.wall.ns)} µs on {profile.threads} threads"
    longest = sorted(profile.kernels, key=lambda k: -k.ns)[:_ROWS]
    layers = sorted(profile.layers, key=lambda la: -la.ns)[:_ROWS]
    return [
        markup.paragraph(about),
        markup.table(
            ["kernel", "layers", "µs", "spread", "share"],
            [
                [
                    markup.code(k.name),
                    _layers(k.layers),
                    us(k.ns),
                    percent(k.time.spread),
                    percent(k.share),
                ]
                for k in longest
            ],
            2,
        ),
        _more(len(profile.kernels)),
        markup.table(
            ["layer", "type", "µs", "share"],
            [[markup.code(x.layer), markup.text(x.op), us(x.ns), percent(x.share)] for x in layers],
            2,
        ),
        _more(len(profile.layers)),
    ]


def _more(count: int) -> str:
    rest = f"and {count - _ROWS} more; clew report writes all of them"
    return markup.paragraph(rest, markup.FAINT) if count > _ROWS else ""


# --- a kernel ---


def _color_of(kernel: Kernel, position: int) -> str:
    """Returns the color of an operator's first layer, by its place in the kernel's layers."""
    own = kernel.calls[position].layers
    place = next((n for n, layer in enumerate(kernel.layers) if layer in own), None)
    return "" if place is None else f"oklch(65% 0.12 {_HUES[place % len(_HUES)]}"


def _line(number: int, text: str, color: str) -> str:
    mark = f"border-left:3px solid {color});background:{color} / 0.12)" if color else ""
    edge = mark or "border-left:3px solid transparent"
    count = f'<span style="{markup.FAINT};user-select:none">{number:>4}  </span>'
    return f'<div style="{edge};padding-left:4px">{count}{html.escape(text)}</div>'


def _layers(names: Sequence[str]) -> str:
    return markup.code(_listed(names, _NAMES))


def _listed(names: Iterable[Any], most: int) -> str:
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
