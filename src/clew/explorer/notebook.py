"""What notebooks show of a compiled model, a kernel and a layer's story: small static HTML.

There are no scripts in it, all text is escaped, and colours suit light and dark notebooks. What it
says is what the page and the tables of the command line say.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, Final

from clew.compiled import CompiledModel, Kernel
from clew.correlate.facts import describe_kernel
from clew.explorer.views.code import loop_ops
from clew.profile.report import Profile
from clew.profile.tables import percent, us
from clew.trace.story import LayerStory, Section, place_lines, said

_ROWS: Final = 12
_NAMES: Final = 3
_LINES: Final = 60
# The page's hues (frontend/src/colors.ts), at a lightness that both themes can bear.
_HUES: Final = (250, 65, 205, 105, 345, 160, 300, 30)
_CODE: Final = "font-family:ui-monospace,monospace;font-size:0.9em;white-space:pre"
_CELL: Final = "padding:1px 10px 1px 0;text-align:left;vertical-align:baseline"
_NUMBER: Final = "padding:1px 10px 1px 0;text-align:right;vertical-align:baseline"
_FAINT: Final = "opacity:0.7"


def model_html(model: CompiledModel) -> str:
    """Returns a compiled model's inputs and outputs, and its kernels: those that take longest where
    the model has been profiled, else the first. One with symbolic sizes has none before it has run.
    """
    target = f"for {model.options.target.name}"
    parts = [_head("compiled model", target), _facts(_signature(model))]
    if model.is_built:
        parts += _kernels(model)
    return _framed(parts)


def kernel_html(kernel: Kernel) -> str:
    """Returns a kernel's layers, operators and loop nest, each line in its layer's colour."""
    facts = describe_kernel(kernel)
    about = {
        "layers": _code(_listed(kernel.layers, len(kernel.layers))),
        "operators": _code(", ".join(kernel.ops)),
        "schedule": _code(", ".join(kernel.rules)),
        "code": _text(f"{facts['code_bytes']} bytes"),
    }
    used = kernel.traced
    colours = [_colour_of(kernel, position) for position in range(len(kernel.ops))]
    positions = loop_ops(len(used.loops), used.loop_stages, used.stage_ops)
    lines = [
        _line(number, text, colours[op] if op >= 0 else "")
        for number, (text, op) in enumerate(zip(used.loops, positions, strict=True), 1)
    ]
    if len(lines) > _LINES:
        rest = f"… and {len(lines) - _LINES} more lines"
        lines = [*lines[:_LINES], f'<div style="{_FAINT}">{_text(rest)}</div>']
    nest = f'<div style="{_CODE};overflow-x:auto">{"".join(lines)}</div>'
    return _framed([_head(kernel.name, "kernel"), _facts(about), nest])


def story_html(story: LayerStory) -> str:
    """Returns a layer's story, section by section."""
    return _framed([_head(story.layer, story.op), *(_section(s) for s in story.sections)])


# --- a model ---


def _signature(model: CompiledModel) -> dict[str, str]:
    inputs = [f"{i.name}: {i.dtype}[{', '.join(map(str, i.shape))}]" for i in model.inputs]
    return {
        "inputs": _code(_listed(inputs, 8)),
        "outputs": _code(_listed(model.output_names, 8)),
    }


def _kernels(model: CompiledModel) -> list[str]:
    kernels = model.kernels
    distinct = len({k.key for k in kernels})
    profile: Profile | None = model.last_profile
    about = f"{len(kernels)} kernels, {distinct} distinct"
    if profile is None:
        rows = [[_code(k.name), _layers(k.layers), _code(", ".join(k.ops))] for k in kernels]
        table = _table(["kernel", "layers", "operators"], rows[:_ROWS], 3)
        return [_paragraph(about), table, _more(len(rows))]
    about += f"; a run takes {us(profile.wall.ns)} µs on {profile.threads} threads"
    longest = sorted(profile.kernels, key=lambda k: -k.ns)[:_ROWS]
    layers = sorted(profile.layers, key=lambda la: -la.ns)[:_ROWS]
    return [
        _paragraph(about),
        _table(
            ["kernel", "layers", "µs", "share"],
            [[_code(k.name), _layers(k.layers), us(k.ns), percent(k.share)] for k in longest],
            2,
        ),
        _more(len(profile.kernels)),
        _table(
            ["layer", "type", "µs", "share"],
            [[_code(x.layer), _text(x.op), us(x.ns), percent(x.share)] for x in layers],
            2,
        ),
        _more(len(profile.layers)),
    ]


def _more(count: int) -> str:
    rest = f"and {count - _ROWS} more; clew report writes all of it"
    return _paragraph(rest, _FAINT) if count > _ROWS else ""


# --- a kernel ---


def _colour_of(kernel: Kernel, position: int) -> str:
    """Returns the colour of the first layer of an operator, by its place in the kernel's layers."""
    own = kernel.calls[position].layers
    place = next((n for n, layer in enumerate(kernel.layers) if layer in own), None)
    return "" if place is None else f"oklch(65% 0.12 {_HUES[place % len(_HUES)]}"


def _line(number: int, text: str, colour: str) -> str:
    mark = f"border-left:3px solid {colour});background:{colour} / 0.12)" if colour else ""
    edge = mark or "border-left:3px solid transparent"
    count = f'<span style="{_FAINT};user-select:none">{number:>4}  </span>'
    return f'<div style="{edge};padding-left:4px">{count}{html.escape(text)}</div>'


# --- a story ---


def _section(section: Section) -> str:
    told = "".join(_paragraph(said(sentence)) for sentence in section.sentences)
    lines = "".join(f"<div>{html.escape(line)}</div>" for line in place_lines(section.places))
    places = f'<div style="{_CODE};{_FAINT};overflow-x:auto">{lines}</div>' if lines else ""
    head = f'<div style="font-weight:600;margin-top:6px">{html.escape(section.head)}</div>'
    return head + told + places


# --- pieces of HTML ---


def _framed(parts: Iterable[str]) -> str:
    return f'<div style="line-height:1.4">{"".join(parts)}</div>'


def _head(title: str, about: str) -> str:
    faint = f'<span style="{_FAINT}">{html.escape(about)}</span>'
    return f"<div><b>{html.escape(title)}</b> {faint}</div>"


def _facts(rows: dict[str, str]) -> str:
    return _table([], [[f'<span style="{_FAINT}">{k}</span>', v] for k, v in rows.items()], 2)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Returns a table of cells that are HTML already; the columns after `texts` hold numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        styles = [_CELL if n < texts else _NUMBER for n in range(len(row))]
        return "".join(f'<{tag} style="{s}">{c}</{tag}>' for s, c in zip(styles, row, strict=True))

    head = f"<thead><tr>{cells(list(map(html.escape, heads)), 'th')}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:4px 0"
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def _layers(names: Sequence[str]) -> str:
    return _code(_listed(names, _NAMES))


def _listed(names: Iterable[Any], most: int) -> str:
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _paragraph(text: str, style: str = "") -> str:
    return f'<div style="{style}">{html.escape(text)}</div>'


def _code(text: str) -> str:
    return f'<code style="background:none;color:inherit">{html.escape(text)}</code>'


def _text(text: str) -> str:
    return html.escape(text)
