"""Stories: a layer's life, a kernel's making, and what a line of code or a node comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.explorer.schema import Part, Section, Sentence, Story
from clew.explorer.session import Session
from clew.explorer.views.refs import Place, parse_ref, wire_ref
from clew.support.errors import InputError
from clew.trace.story import LayerStory
from clew.trace.story import Phrase as TracePhrase
from clew.trace.story import Section as TraceSection

_MOST_LINES = 12


def story(session: Session, ref: str) -> Story:
    """Returns the story of a layer or kernel, or what a node or a line of code comes from.

    Errors: I240 for a ref that has no story; I070 to I072, I200 for things that do not exist.
    """
    place = parse_ref(session, ref)
    match place.kind:
        case "layer":
            return _layer(session, place)
        case "kernel":
            return _kernel(session, place)
    raise InputError("I240", f"{ref[:80]!r} has no story", hint="stories are of layers, kernels")


def _layer(session: Session, place: Place) -> Story:
    told: LayerStory = session.trace.layer(place.name)
    sections = [_section(session, section) for section in told.sections]
    return Story(f"layer:{place.name}", told.layer, told.op, sections)


def _kernel(session: Session, place: Place) -> Story:
    kernel = session.uses[place.number]
    layers = [Part(name, f"layer:{name}", True) for name in kernel.layers]
    parts = [Part("computes "), *joined(layers)]
    section = Section("kernel", "layers", f"kernel:{place.number}", [Sentence(parts)])
    return Story(f"kernel:{place.number}", kernel.name, ", ".join(kernel.rules), [section])


def joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Yields parts with commas between them."""
    for n, part in enumerate(parts):
        if n:
            yield Part(", ")
        yield part


def _section(session: Session, section: TraceSection) -> Section:
    sentences = [
        Sentence([_part(session, phrase) for phrase in sentence]) for sentence in section.sentences
    ]
    sentences += [
        Sentence([Part(f"{p.line:>5}", wire_ref(session, p.ref)), Part(p.text, code=True)], 1)
        for p in section.places[:_MOST_LINES]
    ]
    return Section(section.kind, section.head, wire_ref(session, section.ref), sentences)


def _part(session: Session, phrase: TracePhrase) -> Part:
    return Part(phrase.text, wire_ref(session, phrase.ref), phrase.code)
