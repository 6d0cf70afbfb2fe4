"""What `compiled.conversions()` returns: the steps of a model that only change how a value is
stored, as integers or floats and in which layout. Those in the model, and those that passes
inserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from clew.support.shown import Brief, Shown, counted
from clew.support.tables import as_text, table

_COLUMNS: Final = 100
_NAMES: Final = 3
_NAME: Final = 22


@dataclass(frozen=True, repr=False)
class Conversion(Brief):
    """A step that changes how a value is stored.

    `step` is its operator, `layer` its layer in the model, "" if the pass `inserted_by` made it.
    `before` and `after` are dtypes, with layouts where these change. `value` names the converted
    value, and `constant` marks a parameter; `readers` are the layers that it is converted for.

    `fate` is `kernel` (it runs in a kernel for conversions), `fused` (in a kernel with other work),
    `folded` (computed at compile time), `merged` (another step does its work, too), `cancelled`
    (nothing needs its value, or an operator on integers gives it), or `kept` (outside kernels).
    `became` is its operator in the last stage, in the kernel `kernel` with the operators `beside`.
    `passes` are those that moved it or changed its operator, and `why` the remarks of passes about
    it. A step of the model has `scales` numbers, constant in the model: its `scale` if it is one,
    and its zero point `zero`.
    """

    step: str
    layer: str
    before: str
    after: str
    value: str
    readers: tuple[str, ...]
    constant: bool = False
    inserted_by: str = ""
    passes: tuple[str, ...] = ()
    fate: str = ""
    became: str = ""
    kernel: str = ""
    beside: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    scale: float | None = None
    zero: int | None = None
    scales: int = 0

    @property
    def numbers(self) -> str:
        """Returns its scale and zero point in words, as far as the model has them."""
        if not self.scales:
            return ""
        scale = f"{self.scales} scales" if self.scale is None else f"scale {self.scale:.4g}"
        return scale if self.zero is None else f"{scale}, zero point {self.zero}"

    @property
    def origin(self) -> str:
        """Returns where it comes from, in words."""
        return f"inserted by {self.inserted_by}" if self.inserted_by else "in the model"

    @property
    def ending(self) -> str:
        """Returns what became of it, in words."""
        by = f" by {', '.join(self.passes)}" if self.passes else ""
        renamed = f"became {self.became}{by}, " if self.became != self.step else ""
        match self.fate:
            case "folded":
                return f"folded into a constant{by}"
            case "cancelled":
                return f"cancelled{by}{f': {self.became} gives its value' if self.became else ''}"
            case "merged":
                return f"merged into the {self.became} of {self.kernel or 'the graph'}{by}"
            case "kept":
                return f"{renamed}outside kernels"
        moved = "" if renamed or not by else f"moved{by}, "
        where = "fused into" if self.fate == "fused" else "runs in"
        return f"{renamed or moved}{where} {self.kernel}"


@dataclass(frozen=True, repr=False)
class Conversions(Shown):
    """The conversions of a compiled model, in order: those of the model, then those that passes
    inserted.
    """

    rows: tuple[Conversion, ...]

    def _about(self) -> str:
        own = sum(not r.inserted_by for r in self.rows)
        return f"{own} in the model, {len(self.rows) - own} inserted by passes"

    def __iter__(self) -> Iterator[Conversion]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, layer: str) -> tuple[Conversion, ...]:
        """Returns the conversions that are this layer, convert its result, or work for it."""
        return tuple(r for r in self.rows if layer in (r.layer, r.value, *r.readers))

    def in_kernel(self, kernel: str) -> tuple[Conversion, ...]:
        """Returns the conversions that ended in a kernel."""
        return tuple(r for r in self.rows if r.kernel == kernel)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns plain data, a mapping for each conversion."""
        return [asdict(row) for row in self.rows]

    def lines(self) -> list[str]:
        """Returns the numbers of conversions by what became of them."""
        found = [self._about()]
        folded = [r for r in self.rows if r.constant]
        rest = Counter(r.fate for r in self.rows if not r.constant)
        if rest:
            told = ", ".join(f"{count} {_FATES[fate]}" for fate, count in rest.items())
            found.append(f"of values: {told}")
        if folded:
            found.append(
                f"of parameters: {len(folded)}, which are stored as kernels read them, and whose "
                "scales became part of others"
            )
        return found

    def __str__(self) -> str:
        return as_text(self, _COLUMNS)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        shown = [r for r in self.rows if not r.constant]
        parts: list[RenderableType] = [Text(line) for line in self.lines()]
        if shown:
            parts = [_table(shown), Text(""), *parts, *map(Text, _reasons(shown))]
        yield Group(*parts)


_FATES: Final = {
    "kernel": "in kernels for conversions",
    "fused": "fused into kernels with other work",
    "folded": "folded",
    "merged": "merged into others",
    "cancelled": "cancelled",
    "kept": "outside kernels",
}


def _table(rows: Sequence[Conversion]) -> RenderableType:
    made = table("step", "value", "for", "what became of it")
    for row in rows:
        where = f"{row.origin}: " if row.inserted_by else ""
        readers = _listed(row.readers)
        step = f"{row.step} {row.before} → {row.after}"
        made.add_row(step, row.value, readers, f"{where}{row.ending}")
    made.columns[0].no_wrap = True
    for column in made.columns[1:3]:
        column.overflow, column.no_wrap, column.max_width = "ellipsis", True, _NAME
    return made


def _reasons(rows: Sequence[Conversion]) -> Iterator[str]:
    """Yields the remarks of passes, each once, with the number of steps."""
    for why, count in Counter(w for row in rows for w in row.why).items():
        yield f"{why} ({counted(count, 'step')})"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(names[:_NAMES])}{more}"
