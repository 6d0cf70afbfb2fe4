"""A layer's story: its import, the changes by passes and their reasons, its kernels, its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.explorer.schema import Section, Sentence, Story
from clew.explorer.session import Session
from clew.explorer.views.stories.neighbors import neighbors
from clew.explorer.views.stories.parts import (
    capital,
    code,
    conversion_section,
    conversions,
    count,
    duration,
    first_paragraph,
    kernel_part,
    kernel_parts,
    layer_parts,
    line_sentences,
    operator_part,
    percent,
    purpose_of_pass,
    region_part,
    region_parts,
    rules,
    sentence,
    taken,
    told,
)
from clew.trace.story import KernelShare, LayerStory
from clew.trace.story import Section as ToldSection

if TYPE_CHECKING:
    from clew.profile.report import Profile
    from clew.profile.rows import LayerProfile


def layer_story(session: Session, name: str) -> Story:
    """Returns the story of a layer that the model has."""
    story = session.trace.layer(name)
    sections = [_short(session, story)]
    for section in story.sections:
        match section.kind:
            case "import":
                sections.append(_import(session, story, section))
            case "note" | "code":
                sections.append(told(session, section))
            case "kernel" | "end":
                pass
            case _:
                sections.append(_pass(session, section))
    if not story.chapters:
        sections.append(_import(session, story, None))
    sections += conversion_section(session, session.once(conversions).of(name))
    sections += [_kernel(session, share) for share in story.kernels]
    sections += [_region(session, name, place) for place in regions_of(session, name)]
    sections += _time(session, name)
    return Story(f"layer:{name}", name, story.op, sections)


def _short(session: Session, story: LayerStory) -> Section:
    """Returns a summary of the layer's fate."""
    sentences = []
    regions = regions_of(session, story.layer)
    if regions:
        sentences.append(sentence("Runs in ", region_parts(session, regions), "."))
    if story.kernels:
        places = [session.kernel_of_call[share.call] for share in story.kernels]
        runs = f"{'Also in' if regions else 'Runs in'} {count(len(places), 'kernel')}: "
        sentences.append(sentence(runs, kernel_parts(session, places), "."))
        others = dict.fromkeys(la for share in story.kernels for la in share.layers)
        if others:
            sentences.append(sentence("Together with ", layer_parts(session, list(others)), "."))
    if not regions and (not story.kernels or story.fate.kind.value != "kernel"):
        sentences.append(sentence(f"{capital(str(story.fate))}."))
    if story.fate.kind.value == "kept":
        sentences.append(sentence("It runs on the host, between kernels."))
    folded = [c for c in story.chapters if c.kind == "fold"]
    if folded and story.kernels:
        names = dict.fromkeys(c.name for c in folded)
        sentences.append(
            sentence(f"Parts of it were computed while compiling ({', '.join(names)}).")
        )
    row = layer_profile(session, story.layer)
    if row is not None:
        sentences.append(_took(row))
    error = (session.measured.get("errors") or {}).get(story.layer)
    if error is not None:
        against = "from those of the model in f32 without optimization, relative to the largest"
        sentences.append(sentence(f"Its values differ by at most {error:.1e} {against}."))
    return Section("layer", "In short", "", sentences)


def _import(session: Session, story: LayerStory, section: ToldSection | None) -> Section:
    place = session.layers[story.layer]
    around = session.once(neighbors)
    sentences: list[Sentence] = []
    line = around.lines.get(place)
    if line is not None:
        sentences.append(sentence("In the model: ", code(around.texts[line - 1], f"source:{line}")))
    names = list(session.layers)
    held = around.holds.get(place, [])
    before = [names[n] for n in around.reads.get(place, ()) if n not in held]
    after = [names[n] for n in around.feeds.get(place, ())]
    if before:
        sentences.append(sentence("Reads the results of ", layer_parts(session, before), "."))
    if after:
        sentences.append(sentence("Its result is read by ", layer_parts(session, after), "."))
    if held:
        parts = layer_parts(session, [names[n] for n in held])
        sentences.append(sentence("Holds the layers ", parts, "."))
    if section is None:
        why = session.trace.eliminated.get(story.layer, "")
        sentences.append(sentence(f"The import needed no operator for it: {why}."))
        return Section("import", "import", "stage:0", sentences)
    imported = [p.text for p in story.chapters[0].told]
    sentences.append(sentence("Imported as ", code("".join(imported)), "."))
    sentences += line_sentences(session, section.places)
    return Section("import", "import", "stage:0", sentences)


def _pass(session: Session, section: ToldSection) -> Section:
    made = told(session, section)
    purpose = first_paragraph(purpose_of_pass(session, section.head))
    said = section.sentences
    sentences = made.sentences[: len(said)]
    if purpose:
        sentences.append(sentence(f"What {section.head} is for: ", purpose))
    return Section(made.kind, made.head, made.ref, [*sentences, *made.sentences[len(said) :]])


def _kernel(session: Session, share: KernelShare) -> Section:
    place = session.kernel_of_call[share.call]
    kernel = session.kernels[place]
    own = [p.line for p in share.loop_lines]
    sentences = [
        sentence(
            "Its part in ", kernel_part(session, place), ": ",
            code(", ".join(share.ops)), " of ",
            code(", ".join(share.all_ops)), ".",
        )
    ]  # fmt: skip
    if share.layers:
        sentences.append(sentence("In one kernel with ", layer_parts(session, share.layers), "."))
        sentences += [
            sentence(
                operator_part(session, op), " works for ", layer_parts(session, layers), level=1
            )
            for op in kernel.ops
            if (layers := session.trace.nodes(session.trace.last)[op].span.layers)
        ]
    if own:
        first = next((n for n, i in enumerate(kernel.asm, 1) if i.loop_line in set(own)), None)
        part = percent(share.instructions, share.kernel_instructions)
        text = f"{share.instructions} of {share.kernel_instructions} instructions ({part})"
        sentences.append(
            sentence(
                f"These operators account for {len(own)} of {len(kernel.loops)} lines of the loop "
                "nest and for ", code(text, f"asm:{place}:{first}" if first else ""), ".",
            )
        )  # fmt: skip
    sentences += rule_sentences(session, place)
    sentences += line_sentences(session, share.loop_lines)
    return Section("kernel", kernel.name, f"kernel:{place}", sentences)


def regions_of(session: Session, name: str) -> list[int]:
    """Returns the places of the regions with operators of a layer."""
    return [place for place, use in enumerate(session.regions) if name in use.layers]


def _region(session: Session, name: str, place: int) -> Section:
    use = session.regions[place]
    own = [call for call in use.operators if name in call.span.layers]
    others = [layer for layer in use.layers if layer != name]
    sentences = [
        sentence(
            "Its part in ", region_part(session, place), f" on {use.backend}: ",
            code(", ".join(call.op_name for call in own)),
            f", {len(own)} of {count(len(use.ops), 'operator')}.",
        )
    ]  # fmt: skip
    if others:
        sentences.append(sentence("In one region with ", layer_parts(session, others), "."))
    return Section("region", use.name, f"region:{place}", sentences)


def rule_sentences(session: Session, place: int) -> Iterator[Sentence]:
    """Yields the schedule rules that made a kernel's loops, with descriptions."""
    for rule in dict.fromkeys(session.uses[place].rules):
        about = rules().get(rule, "")
        yield sentence(
            "Loops made by the schedule rule ", code(rule, f"kernel:{place}"),
            f". {about}" if about else ".",
        )  # fmt: skip


# --- time ---


def layer_profile(session: Session, name: str) -> LayerProfile | None:
    """Returns a layer's profile row, if it was measured."""
    profile: Profile | None = session.measured.get("profile")
    if profile is None:
        return None
    return next((row for row in profile.layers if row.layer == name), None)


def _took(row: LayerProfile) -> Sentence:
    return sentence(f"Takes {duration(row.ns)}, {percent(row.share, 1)} of a run.")


def _time(session: Session, name: str) -> Iterator[Section]:
    profile: Profile | None = session.measured.get("profile")
    row = layer_profile(session, name)
    if profile is None or row is None:
        return
    sentences = [_took(row)]
    parts = [
        (row.alone_ns, "in its own kernels"),
        (row.measured_ns, "of shared kernels, by samples"),
        (row.estimated_ns, "of shared kernels, estimated from FLOPs or bytes"),
        (row.undivided_ns, "in kernels that could not be divided"),
    ]
    sentences += [sentence(f"{duration(ns)} {what}", level=1) for ns, what in parts if ns]
    place_of = {kernel.name: n for n, kernel in enumerate(session.kernels)}
    for kernel in profile.kernels:
        if name in kernel.layers and kernel.name in place_of:
            part = sum(p.ns for o in kernel.operators for p in o.parts if p.layer == name)
            sentences.append(
                sentence(
                    f"{duration(part)} of the {taken(kernel.ns, kernel.runs)} of ",
                    kernel_part(session, place_of[kernel.name]),
                    level=1,
                )
            )
        elif name in kernel.layers and kernel.node in session.region_of_call:
            part = sum(p.ns for o in kernel.operators for p in o.parts if p.layer == name)
            sentences.append(
                sentence(
                    f"{duration(part)} of the {taken(kernel.ns, kernel.runs)} of the region ",
                    region_part(session, session.region_of_call[kernel.node]),
                    level=1,
                )
            )
    yield Section("time", "time", "", sentences)
