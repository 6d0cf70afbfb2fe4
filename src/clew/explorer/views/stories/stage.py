"""A stage's story: the pass's purpose, changes and remarks."""

from __future__ import annotations

from typing import Final

from clew.explorer.schema import Section, Story
from clew.explorer.session import Session
from clew.explorer.views.stories.parts import (
    code,
    count,
    duration,
    purpose_of_pass,
    sentence,
)

_MOST_REMARKS: Final = 100


def stage_story(session: Session, place: int) -> Story:
    """Returns the story of a stage that exists."""
    record = session.trace.stages[place]
    difference = record.difference
    sentences = []
    purpose = purpose_of_pass(session, record.name)
    if purpose:
        sentences.append(sentence(purpose))
    if not place:
        sentences.append(sentence(f"The import made {count(len(record.nodes), 'node')}."))
    elif not record.changed:
        sentences.append(sentence("It changed nothing here."))
    else:
        added, removed = len(difference.added), len(difference.removed)
        sentences.append(
            sentence(
                f"It made {count(added, 'node')}, dropped {removed} and kept "
                f"{len(difference.kept)}: {len(record.nodes)} after it."
            )
        )
    if place:
        sentences.append(sentence(f"It took {duration(record.seconds * 1e9)}."))
    sections = [Section("pass" if place else "import", "In short", f"stage:{place}", sentences)]
    counts: dict[str, list[str]] = {}
    for remark in record.remarks:
        counts.setdefault(remark.text, []).append(session.remark_ref(place, remark.node_id))
    if counts:
        told = [
            sentence(code(text, refs[0]), f" ({len(refs)} times)" if len(refs) > 1 else "")
            for text, refs in list(counts.items())[:_MOST_REMARKS]
        ]
        if len(counts) > _MOST_REMARKS:
            told.append(sentence(f"And {len(counts) - _MOST_REMARKS} more."))
        sections.append(Section("remark", "remarks", f"stage:{place}", told))
    return Story(f"stage:{place}", record.name, count(len(record.remarks), "remark"), sections)
