"""A region's story: its backend, layers and operators, its time, and the copies at its borders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.explorer.schema import Part, RegionInfo, Section, Sentence, Story
from clew.explorer.session import Session
from clew.explorer.views.regions import placement, regions
from clew.explorer.views.stories.parts import (
    amount,
    code,
    code_sentences,
    count,
    duration,
    layer_parts,
    named,
    operator_part,
    percent,
    region_part,
    sentence,
    taken,
)

if TYPE_CHECKING:
    from clew.profile.report import Profile
    from clew.profile.rows import KernelProfile

_MOST_OPERATORS = 40


def region_story(session: Session, place: int) -> Story:
    """Returns the story of a region that exists."""
    facts = session.once(regions)[place]
    sections = [
        _short(session, place, facts),
        *_lines(session, place),
        _operators(session, place, facts),
        _borders(session, facts),
        *_placed(session, place, facts),
    ]
    use = session.regions[place]
    return Story(f"region:{place}", use.name, f"on {use.backend}", sections)


def _short(session: Session, place: int, facts: RegionInfo) -> Section:
    use = session.regions[place]
    sentences = [
        sentence(f"The backend {use.backend} runs ", layer_parts(session, use.layers), ".")
        if use.layers
        else sentence(f"The backend {use.backend} runs it for no layer of the model by itself.")
    ]
    row = region_profile(session, place)
    if row is not None:
        took = f"{taken(row.ns, row.runs)} (median, spread {percent(row.time.spread, 1)})"
        sentences.append(sentence(f"Takes {took}, {percent(row.share, 1)} of a run."))
    same = [n for n, r in enumerate(session.once(regions)) if r.distinct == facts.distinct]
    if len(same) > 1:
        others = named([region_part(session, n) for n in same if n != place])
        text = f"Compiled once for {count(len(same), 'equal region')}, also for "
        sentences.append(sentence(text, others, "."))
    if not facts.described:
        sentences.append(sentence("The backend provides no details of its regions."))
    return Section("region", "In short", f"region:{place}", sentences)


def _lines(session: Session, place: int) -> Iterator[Section]:
    told = list(code_sentences(session, session.regions[place].layers))
    if told:
        yield Section("code", "your code", f"region:{place}", told)


def _operators(session: Session, place: int, facts: RegionInfo) -> Section:
    calls = session.regions[place].operators
    sentences = [sentence(f"Holds {count(len(calls), 'operator')}:")]
    for call in calls[:_MOST_OPERATORS]:
        layers = layer_parts(session, call.span.layers)
        work = [Part(" for "), *layers] if layers else []
        sentences.append(sentence(operator_part(session, call.id), work, level=1))
    if len(calls) > _MOST_OPERATORS:
        sentences.append(sentence(f"and {len(calls) - _MOST_OPERATORS} more", level=1))
    return Section("fuse", "operators", f"region:{place}", sentences)


def _borders(session: Session, facts: RegionInfo) -> Section:
    """Returns the values at a region's borders, and those that the program copies."""
    sentences = [sentence("Reads ", code(type_), ".") for type_ in facts.reads]
    sentences += [sentence("Gives ", code(type_), ".") for type_ in facts.results]
    sentences += [
        sentence(
            "Copies ", code(c.value), f" ({amount(c.bytes, 'B')}) from {c.source} to {c.target}."
        )
        for c in facts.copies
    ]
    if not facts.copies:
        sentences.append(
            sentence("The program copies nothing: the backend reads and writes the host's memory.")
        )
    else:
        sentences += _copy_time(session)
    return Section("memory", "borders", "", sentences)


def _copy_time(session: Session) -> Iterator[Sentence]:
    profile: Profile | None = session.measured.get("profile")
    for row in () if profile is None else profile.outside:
        if row.what == "copies between memories":
            yield sentence(f"All copies of a run between memories took about {duration(row.ns)}.")


def _placed(session: Session, place: int, facts: RegionInfo) -> Iterator[Section]:
    """Yields the measured cost of the region elsewhere, if the build was placed by costs."""
    placed = placement(session)
    if placed is None:
        return
    sentences = []
    for part in placed.regions:
        if part.backend != facts.backend or not set(part.layers) & set(facts.layers):
            continue
        own = _cost(part.seconds, part.borders)
        sentences.append(
            sentence(f"Placement expected {own} on {part.backend} (from: {part.basis}).")
        )
        for other in part.others:
            cost = (
                f"not possible: {other.why_not}"
                if other.seconds is None
                else _cost(other.seconds, other.borders)
            )
            sentences.append(sentence(f"On {other.backend}: {cost}.", level=1))
    if sentences:
        yield Section("place", "placement", "", sentences)


def _cost(seconds: float, borders: float) -> str:
    return f"{duration(seconds * 1e9)} and {duration(borders * 1e9)} at its borders"


def region_profile(session: Session, place: int) -> KernelProfile | None:
    """Returns a region's profile row, if it was measured."""
    profile: Profile | None = session.measured.get("profile")
    if profile is None:
        return None
    call = session.regions[place].call.id
    return next((row for row in profile.kernels if row.node == call), None)
