"""Building blocks of stories: sentences with links, formatted figures, purposes of passes and
rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from clew.correlate.conversion_rows import Conversion, Conversions
from clew.correlate.conversions import conversions_of
from clew.explorer.schema import Part, Section, Sentence
from clew.explorer.session import Session
from clew.explorer.views.refs import wire_ref
from clew.ir.expr import Call, Expr
from clew.schedules import RULES, stack
from clew.trace.refs import LayerRef, NodeRef
from clew.trace.story import Place
from clew.trace.story import Section as ToldSection
from clew.trace.story import Sentence as ToldSentence

# Limits of a section: lines of graph or loops, and names in a list.
MOST_LINES: Final = 12
MOST_NAMES: Final = 8
_STEPS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_THOUSANDS: Final = ("", "k", "M", "G", "T")


def sentence(*pieces: Part | str | Iterable[Part], level: int = 0) -> Sentence:
    """Returns a sentence; strings are set as plain text."""
    parts: list[Part] = []
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(Part(piece))
        elif isinstance(piece, Part):
            parts.append(piece)
        else:
            parts += piece
    return Sentence(parts, level)


def code(text: str, ref: str = "") -> Part:
    """Returns a name or text of the graph or of code."""
    return Part(text, ref, code=True)


def layer_part(session: Session, name: str) -> Part:
    """Returns a layer's name as a link; without a link for one that a pass added."""
    return code(name, wire_ref(session, LayerRef(name)))


def layer_parts(session: Session, names: Iterable[str]) -> list[Part]:
    """Returns names of layers in the model's order, the first few."""
    return named([layer_part(session, name) for name in session.trace.in_order(names)])


def code_sentences(session: Session, layers: Iterable[str]) -> Iterator[Sentence]:
    """Yields the lines of the user's code that call layers, each once, with the layers."""
    places = session.trace.places
    by_line: dict[tuple[str, str], list[str]] = {}
    for layer in session.trace.in_order(layers):
        place = places.get(layer)
        if place is not None and place.file:
            by_line.setdefault((place.where, place.code), []).append(layer)
    for (where, text), called in by_line.items():
        shown: list[Part | str] = [": ", code(text)] if text else []
        yield sentence(code(where), *shown, " calls ", layer_parts(session, called), ".")


def kernel_part(session: Session, place: int) -> Part:
    """Returns a kernel's name as a link."""
    return code(session.kernels[place].name, f"kernel:{place}")


def kernel_parts(session: Session, places: Sequence[int]) -> list[Part]:
    """Returns names of kernels, the first few."""
    return named([kernel_part(session, place) for place in places])


def region_part(session: Session, place: int) -> Part:
    """Returns a region's name as a link."""
    return code(session.regions[place].name, f"region:{place}")


def region_parts(session: Session, places: Sequence[int]) -> list[Part]:
    """Returns names of regions with their backends, the first few."""
    return named(
        [
            Part(f"{session.regions[p].name} on {session.regions[p].backend}", f"region:{p}", True)
            for p in places
        ]
    )


def named(parts: Sequence[Part], most: int = MOST_NAMES) -> list[Part]:
    """Returns parts as a list in words: `a, b and c`, or `a, b and 7 more`."""
    shown = list(parts[:most] if len(parts) > most + 1 else parts)
    rest = len(parts) - len(shown)
    found: list[Part] = []
    for n, part in enumerate(shown):
        last = n == len(shown) - 1 and n and not rest
        found += [Part(" and " if last else ", ")] if n else []
        found.append(part)
    return [*found, Part(f" and {rest} more")] if rest else found


def line_sentences(
    session: Session, places: Sequence[Place], most: int = MOST_LINES
) -> Iterator[Sentence]:
    """Yields lines of text with their numbers, each a link."""
    for place in places[:most]:
        ref = wire_ref(session, place.ref)
        # The layers behind the comment mark are left out: the story is about them.
        text = place.text.partition("  // ")[0]
        yield sentence(Part(f"{place.line:>5}", ref), "  ", code(text, ref), level=1)
    if len(places) > most:
        yield sentence(f"and {count(len(places) - most, 'more line')}", level=1)


def told(session: Session, section: ToldSection, kind: str = "", head: str = "") -> Section:
    """Returns a section of a trace's story with links."""
    sentences = [said(session, s, first=not n) for n, s in enumerate(section.sentences)]
    sentences += line_sentences(session, section.places)
    ref = wire_ref(session, section.ref)
    return Section(kind or section.kind, head or section.head, ref, sentences)


def said(session: Session, phrases: ToldSentence, *, first: bool = False) -> Sentence:
    """Returns a sentence of a trace's story with links."""
    parts = [Part(p.text, wire_ref(session, p.ref), p.code) for p in phrases]
    if first and parts and not parts[0].code:
        parts[0] = Part(capital(parts[0].text), parts[0].ref)
    return Sentence(parts)


def conversion_section(session: Session, rows: Sequence[Conversion]) -> Iterator[Section]:
    """Yields the steps that change how a value is stored, if there are any."""
    places = {kernel.name: place for place, kernel in enumerate(session.kernels)}
    sentences = []
    for row in rows:
        name = row.kernel
        before, _, after = row.ending.partition(name) if name else (row.ending, "", "")
        where = [kernel_part(session, places[name])] if name in places else []
        why = f" ({'; '.join(row.why)})" if row.why else ""
        made = f", inserted by {row.inserted_by}" if row.inserted_by else ""
        sentences.append(
            sentence(
                code(f"{row.step} {row.before} → {row.after}"),
                [Part(" of "), layer_part(session, row.value)] if row.value else [],
                [Part(" for "), *layer_parts(session, row.readers)] if row.readers else [],
                [Part(", the layer "), layer_part(session, row.layer)] if row.layer else [],
                f", {row.numbers}" if row.numbers else "",
                f"{made}: {before}", where, f"{after}{why}.",
            )
        )  # fmt: skip
    if sentences:
        yield Section("layout", "conversions", "", sentences)


def conversions(session: Session) -> Conversions:
    """Returns the build's conversions; for `Session.once`."""
    return conversions_of(session.compiled)


def capital(text: str) -> str:
    """Returns text with a capital first letter."""
    return text[:1].upper() + text[1:]


# --- figures ---


def duration(ns: float) -> str:
    """Returns a time in three digits: `1.23 ms`."""
    unit, name = next(((u, n) for u, n in _STEPS if ns >= u), _STEPS[-1])
    return f"{_three(ns / unit)} {name}"


def taken(ns: float, runs: float) -> str:
    """Returns the time of a kernel in a run, and of an iteration where it runs in loops."""
    if runs <= 1:
        return duration(ns)
    return f"{duration(ns)} ({runs:.0f} iterations of {duration(ns / runs)})"


def amount(value: float, unit: str) -> str:
    """Returns a number in three digits with its unit: `236 MFLOP`."""
    scale = 0
    while value >= 1000 and scale < len(_THOUSANDS) - 1:
        value, scale = value / 1000, scale + 1
    return f"{_three(value)} {_THOUSANDS[scale]}{unit}"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def percent(part: float, whole: float) -> str:
    """Returns a share: `12 %`."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.5 or not share else f"{share:.1g} %"


def count(number: int, what: str, plural: str = "") -> str:
    """Returns a number of things: `1 line`, `2 lines`."""
    return f"{number} {what if number == 1 else plural or what + 's'}"


# --- nodes ---


def title(session: Session, node: Expr) -> str:
    """Returns a node's short name."""
    return session.trace.reader.title(node)


def place_of(session: Session, stage: int, node: int) -> Place | None:
    """Returns the line of a node at a stage; None for one without a line."""
    line = session.trace.printed(stage).line_of.get(node)
    if line is None:
        return None
    text = session.trace.lines(stage)[line - 1].strip()
    return Place(line, text, NodeRef(stage, node))


def operator_part(session: Session, node: int) -> Part:
    """Returns an operator of the last stage as a link to its node."""
    last = session.trace.last
    found = session.trace.nodes(last)[node]
    name = found.title if isinstance(found, Call) else session.trace.reader.title(found)
    return code(name, session.ref(last, node))


# --- what things are for ---


def first_paragraph(text: str | None) -> str:
    """Returns the first paragraph of a description, on one line."""
    return " ".join((text or "").split("\n\n")[0].split())


def purpose_of_pass(session: Session, name: str) -> str:
    """Returns the purpose of a pass; empty for stages that are not passes of the list."""
    for chosen in session.compiled.options.passes:
        if chosen.name == name:
            return first_paragraph(inspect.getdoc(type(chosen)))
    return ""


@lru_cache(maxsize=1)
def rules() -> dict[str, str]:
    """Returns the purpose of each schedule rule, by its name."""
    modules = {rule.name: inspect.getmodule(type(rule)) for rule in RULES}
    return {name: first_paragraph(module.__doc__) for name, module in modules.items()} | {
        stack.STACK: first_paragraph(stack.__doc__)
    }
