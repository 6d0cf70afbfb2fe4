"""The notebook view of a compiled model, as small static HTML; kernels and stories have their own.

The HTML has no scripts, all text is escaped, and colors suit light and dark notebooks. The facts
are those of the page and of the command line's tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from clew.profile.report import Profile
from clew.profile.tables import percent, us
from clew.serving.built_model import BuiltModel
from clew.support import markup
from clew.support.shown import counted

_ROWS: Final = 12
_NAMES: Final = 3


def model_html(model: BuiltModel, profile: Profile | None) -> str:
    """Returns a compiled model's inputs, outputs and kernels: the slowest kernels of a profile,
    else the first ones. A model with symbolic sizes has no kernels before a run.
    """
    target = f"for {model.options.target.name}"
    parts = [markup.head("compiled model", target), markup.facts(_signature(model))]
    if model.is_built:
        parts += _kernels(model, profile)
    return markup.framed(parts)


def _signature(model: BuiltModel) -> dict[str, str]:
    inputs = [f"{i.name}: {i.dtype}[{', '.join(map(str, i.shape))}]" for i in model.inputs]
    return {
        "inputs": markup.code(_listed(inputs, 8)),
        "outputs": markup.code(_listed(model.output_names, 8)),
    }


def _kernels(model: BuiltModel, profile: Profile | None) -> list[str]:
    kernels = model.kernels
    distinct = len({k.key for k in kernels})
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


def _layers(names: Sequence[str]) -> str:
    return markup.code(_listed(names, _NAMES))


def _listed(names: Iterable[Any], most: int) -> str:
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
