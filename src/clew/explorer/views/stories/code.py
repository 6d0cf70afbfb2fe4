"""Backwards: the origin of an instruction, a line of code or a node, back to the layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.explorer.schema import Section, Sentence, Story
from clew.explorer.session import Session
from clew.explorer.views.refs import Place as Named
from clew.explorer.views.refs import wire_ref
from clew.explorer.views.stories.parts import (
    code,
    code_sentences,
    kernel_part,
    kernel_parts,
    layer_parts,
    line_sentences,
    operator_part,
    place_of,
    purpose_of_pass,
    region_parts,
    sentence,
    title,
)
from clew.trace.queries import ops_of_line
from clew.trace.refs import NodeRef, Reach

_WHAT = {
    "loop": "line {} of the loop nest",
    "llvm": "line {} of LLVM text",
    "asm": "instruction {}",
}
_MOST_NODES = 4


def line_story(session: Session, named: Named) -> Story:
    """Returns the origin of a line of a loop nest or LLVM text, or of an instruction."""
    kernel, place = session.kernels[named.number], named.number
    about = f"{named.kind}:{place}:{named.line}"
    texts = {"loop": kernel.loops, "llvm": kernel.llvm}
    if named.kind == "asm":
        text, loop = kernel.asm[named.line - 1].text, kernel.asm[named.line - 1].loop_line
    else:
        text = texts[named.kind][named.line - 1].strip()
        loop = named.line if named.kind == "loop" else kernel.llvm_lines.get(named.line, 0)
    what = _WHAT[named.kind].format(named.line)
    sections = [
        Section(
            "code", "code", about,
            [sentence(code(text, about)), sentence(f"This is {what} of ",
             kernel_part(session, place), ".")],
        )
    ]  # fmt: skip
    if not loop:
        unknown = "It belongs to no line of the loop nest, like declarations and debug information."
        sections[0].sentences.append(sentence(unknown))
        return Story(about, text, kernel.name, sections)
    ops = list(ops_of_line(kernel, loop))
    line = f"loop:{place}:{loop}"
    if named.kind != "loop":
        shown = sentence(f"line {loop}: ", code(kernel.loops[loop - 1].strip(), line))
        sections.append(Section("loops", "loop nest", line, [shown]))
    sections.append(_operators(session, ops, alone=len(ops) < len(kernel.ops)))
    last = session.trace.last
    reach = _joined(session, last, ops)
    sections += _stages(session, reach, last, ops)
    sections.append(_layers(session, reach))
    return Story(about, text, kernel.name, sections)


def node_story(session: Session, stage: int, node: int) -> Story:
    """Returns a node's origin, and the nodes and kernels made from it."""
    trace = session.trace
    found = trace.nodes(stage)[node]
    about = session.ref(stage, node)
    born = next(n for n in range(len(trace.stages)) if node in trace.nodes(n))
    place = place_of(session, stage, node)
    sentences = list(line_sentences(session, [place] if place else []))
    made = trace.stages[born].name
    by = "It came with the import." if not born else f"{made} made it."
    sentences.append(sentence(code(by, f"stage:{born}")))
    purpose = purpose_of_pass(session, made)
    if purpose:
        sentences.append(sentence(f"What {made} is for: ", purpose))
    results = [s.layer for s in found.span.sources if s.output is not None]
    if results:
        sentences.append(
            sentence("Its value is the result of ", layer_parts(session, results), ".")
        )
    sections = [Section("code", f"after {trace.stages[stage].name}", about, sentences)]
    back = trace.backward(NodeRef(stage, node))
    sections += _stages(session, back, stage, [node])
    ahead = trace.forward(NodeRef(stage, node))
    places = [session.kernel_of_call[k.call] for k in ahead.kernels]
    if places:
        text = sentence("It runs in ", kernel_parts(session, places), ".")
        sections.append(Section("kernel", "kernels", f"kernel:{places[0]}", [text]))
    inside = {**session.region_of_call, **session.region_of_node}
    regions = [inside[ref.node] for ref in ahead.at(trace.last) if ref.node in inside]
    regions = list(dict.fromkeys(regions))
    if regions:
        text = sentence("It runs in ", region_parts(session, regions), ".")
        sections.append(Section("region", "regions", f"region:{regions[0]}", [text]))
    if not places and not ahead.at(trace.last):
        gone = next(n for n in range(stage, len(trace.stages)) if not ahead.at(n))
        text = sentence(
            "It no longer exists after ", code(trace.stages[gone].name, f"stage:{gone}")
        )
        sections.append(Section("end", "in the end", f"stage:{gone}", [text]))
    sections.append(_layers(session, back))
    return Story(about, title(session, found), str(found.type), sections)  # type: ignore[arg-type]


def _operators(session: Session, ops: list[int], *, alone: bool) -> Section:
    """Returns the operators that a line computes."""
    nodes = session.trace.nodes(session.trace.last)
    if alone:
        sentences = [sentence("It belongs to the operator ", operator_part(session, ops[0]), ".")]
    elif len(ops) == 1:
        sentences = [
            sentence("The kernel's only operator is ", operator_part(session, ops[0]), ".")
        ]
    else:
        sentences = [sentence("It serves all operators of the kernel:")]
        sentences += [
            sentence(
                operator_part(session, op),
                " for ",
                layer_parts(session, nodes[op].span.layers),
                level=1,
            )
            for op in ops
        ]
    return Section("fuse", "operator", session.ref(session.trace.last, ops[0]), sentences)


def _joined(session: Session, stage: int, nodes: Iterable[int]) -> Reach:
    """Returns the common origin of several nodes."""
    layers: dict[object, None] = {}
    found: dict[int, dict[NodeRef, None]] = {}
    for node in nodes:
        reach = session.trace.backward(NodeRef(stage, node))
        layers.update(dict.fromkeys(reach.layers))
        for at, refs in reach.nodes.items():
            found.setdefault(at, {}).update(dict.fromkeys(refs))
    return Reach(tuple(layers), {at: tuple(refs) for at, refs in found.items()})  # type: ignore[arg-type]


def _stages(session: Session, reach: Reach, last: int, start: Iterable[int]) -> Iterator[Section]:
    """Yields, backwards, the stages whose pass made these nodes from others."""
    now = list(start)
    for stage in range(last, 0, -1):
        before = [ref.node for ref in reach.at(stage - 1)]
        if not session.trace.stages[stage].changed or set(before) == set(now):
            now = before
            continue
        name = session.trace.stages[stage].name
        ref = f"stage:{stage}"
        if not before:
            yield Section("pass", name, ref, [sentence(f"{name} made it from no earlier node.")])
            return
        known = session.trace.nodes(stage - 1)
        kept = set(before) & set(now)
        made = [n for n in before if n not in kept] or before
        places = [p for n in made if (p := place_of(session, stage - 1, n)) is not None]
        titles = dict.fromkeys(title(session, known[n]) for n in made)  # type: ignore[arg-type]
        shown = ", ".join(list(titles)[:_MOST_NODES]) + (
            " ..." if len(titles) > _MOST_NODES else ""
        )
        lines: list[Sentence] = [
            sentence("Before ", code(name, ref), " this was ", code(shown), ":")
        ]
        yield Section("pass", name, ref, [*lines, *line_sentences(session, places, _MOST_NODES)])
        now = before


def _layers(session: Session, reach: Reach) -> Section:
    names = [ref.layer for ref in reach.layers]
    text = sentence("All of this is work for ", layer_parts(session, names), ".")
    none = sentence("It serves no named layer of the model.")
    return Section(
        "layer",
        "layers",
        wire_ref(session, reach.layers[0]) if names else "",
        [text if names else none, *code_sentences(session, names)],
    )
