"""A kernel's story: its layers, the reasons for its operators, its work and its code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from clew.correlate.facts import describe_kernel
from clew.explorer.schema import Part, Section, Sentence, Story
from clew.explorer.session import Session
from clew.explorer.views.loops import loops_of_call
from clew.explorer.views.refs import wire_ref
from clew.explorer.views.stories.layer import rule_sentences
from clew.explorer.views.stories.neighbors import dataflow
from clew.explorer.views.stories.parts import (
    amount,
    code,
    code_sentences,
    conversion_section,
    conversions,
    count,
    kernel_part,
    kernel_parts,
    layer_part,
    layer_parts,
    named,
    operator_part,
    percent,
    sentence,
    taken,
    title,
)
from clew.ir.expr import Constant, Expr, TupleGetItem, Var
from clew.trace.refs import NodeRef
from clew.trace.stages import Remark
from clew.trace.story import noted
from clew.trace.values import follow_values

if TYPE_CHECKING:
    from clew.profile.report import Profile
    from clew.profile.rows import KernelProfile


_MOST_PARAMETERS: Final = 3


def kernel_story(session: Session, place: int) -> Story:
    """Returns the story of a kernel that exists."""
    facts = describe_kernel(session.uses[place])
    sections = [
        _short(session, place, facts),
        *_lines(session, place),
        *_notes(session, place),
        _operators(session, place),
        *conversion_section(
            session, session.once(conversions).in_kernel(session.kernels[place].name)
        ),
        *_decisions(session, place),
        _memory(session, place),
        _work(session, place, facts),
        _loops(session, place),
        _code(session, place, facts),
    ]
    used = session.uses[place]
    return Story(f"kernel:{place}", used.name, ", ".join(used.ops), sections)


def _short(session: Session, place: int, facts: dict[str, Any]) -> Section:
    used = session.uses[place]
    sentences = [
        sentence("Computes ", layer_parts(session, used.layers), ".")
        if used.layers
        else sentence("Works for no layer of the model by itself.")
    ]
    row = kernel_profile(session, place)
    if row is not None:
        took = f"{taken(row.ns, row.runs)} (median, spread {percent(row.time.spread, 1)})"
        sentences.append(sentence(f"Takes {took}, {percent(row.share, 1)} of a run."))
    sentences += _in_loops(session, place)
    results = ", ".join(str(n.type) for n in (used.call,))
    sentences.append(sentence("Gives ", code(results), "."))
    same = [n for n, other in enumerate(session.uses) if other.key == used.key and n != place]
    if same:
        sentences.append(sentence("The same code runs as ", kernel_parts(session, same), "."))
    where = [f"Runs {_ordinal(place + 1)} of {count(len(session.uses), 'kernel')}"]
    around: list[Part | str | list[Part]] = []
    if place:
        around += [", after ", kernel_part(session, place - 1)]
    if place + 1 < len(session.uses):
        around += [" and before " if place else ", before ", kernel_part(session, place + 1)]
    sentences.append(sentence(*where, *around, "."))
    return Section("kernel", "In short", "", sentences)


def _notes(session: Session, place: int) -> Iterator[Section]:
    """Yields the notes about the layers that it computes."""
    notes = session.trace.notes
    told = [
        sentence(layer_part(session, layer), ": ", noted(note), ".")
        for layer in session.trace.kernel_layers(session.kernels[place])
        for note in notes.get(layer, ())
    ]
    if told:
        yield Section("note", "notes", f"kernel:{place}", told)


def _lines(session: Session, place: int) -> Iterator[Section]:
    """Yields the lines of the user's code that call the layers that it computes."""
    layers = session.trace.kernel_layers(session.kernels[place])
    told = list(code_sentences(session, layers))
    if told:
        yield Section("code", "your code", f"kernel:{place}", told)


def _in_loops(session: Session, place: int) -> Iterator[Sentence]:
    """Yields the loops that a kernel runs in, outermost first."""
    names = list(session.layers)
    around = list(loops_of_call(session, session.kernels[place].call))
    for depth, loop in enumerate(around):
        which = "In that loop it runs in " if depth else "Runs in the loop "
        if loop.iterations is None:
            often = ", whose trip count depends on its values."
        else:
            entry = " per entry" if depth else ""
            often = f", which has {count(loop.iterations, 'iteration')}{entry}."
        yield sentence(which, layer_part(session, names[loop.layer]), often, level=depth)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def _operators(session: Session, place: int) -> Section:
    """Returns its operators, each with its layers and its share of the code."""
    kernel = session.kernels[place]
    nodes = session.trace.nodes(session.trace.last)
    line_op: dict[int, int] = {
        line: kernel.stage_ops[stage]
        for line, stage in kernel.loop_stages.items()
        if stage in kernel.stage_ops
    }
    instructions: dict[int, int] = {}
    for i in kernel.asm:
        op = line_op.get(i.loop_line, -1)
        instructions[op] = instructions.get(op, 0) + 1
    sentences = []
    for position, op in enumerate(kernel.ops):
        layers = nodes[op].span.layers
        number = instructions.get(position, 0)
        own = f": {count(number, 'instruction')}" if number else ": none of the instructions"
        text = f"{own} ({percent(number, len(kernel.asm))})" if number else own
        work = [Part(" for "), *layer_parts(session, layers)] if layers else []
        sentences.append(sentence(operator_part(session, op), work, text, level=1))
    shared = instructions.get(-1, 0)
    if shared and len(kernel.ops) > 1:
        text = f"{count(shared, 'instruction')} for loops and addresses serve all of them"
        sentences.append(sentence(text, level=1))
    head = sentence(f"Holds {count(len(kernel.ops), 'operator')}:")
    return Section("fuse", "operators", f"kernel:{place}", [head, *sentences])


def decisions(session: Session) -> dict[int, list[tuple[int, Remark]]]:
    """Returns the remarks of passes about the contents of kernels, by kernel place; for
    `Session.once`.

    A remark is about a node of the previous stage; nodes that have its value in the last stage lead
    to the kernels.
    """
    found: dict[int, list[tuple[int, Remark]]] = {}
    last = session.trace.last
    for stage, record in enumerate(session.trace.stages):
        before = max(stage - 1, 0)
        known = session.trace.nodes(before)
        wanted = {r.node_id for r in record.remarks if r.node_id in known}
        held = follow_values(session.trace, before, wanted) if wanted else {}
        for remark in record.remarks:
            nodes = held.get(remark.node_id, ((), None))[0]
            places = dict.fromkeys(
                place
                for node in nodes
                for place in session.kernels_of_node.get(node, ())
                if node in session.trace.nodes(last)
            )
            for place in places:
                known_here = found.setdefault(place, [])
                if all(r.text != remark.text for _, r in known_here):
                    known_here.append((stage, remark))
    return found


def _decisions(session: Session, place: int) -> Iterator[Section]:
    told = session.once(decisions).get(place, ())
    by_pass: dict[tuple[int, str], list[Sentence]] = {}
    for stage, remark in told:
        ref = wire_ref(session, NodeRef(max(stage - 1, 0), remark.node_id))
        line = sentence(code(remark.text, ref))
        by_pass.setdefault((stage, remark.pass_name), []).append(line)
    for (stage, name), sentences in by_pass.items():
        yield Section("remark", f"why: {name}", f"stage:{stage}", sentences)


def _memory(session: Session, place: int) -> Section:
    """Returns the operands that it reads, and the readers of its results."""
    flow = session.once(dataflow)
    sentences = []
    last = session.trace.last
    for operand in flow.reads.get(place, ()):
        parts: list[Part | str] = ["Reads ", code(operand.type)]
        node = operand.node
        if operand.kernel >= 0:
            parts += [", the result of ", kernel_part(session, operand.kernel)]
        elif isinstance(node, Constant):
            parts += [", ", code(_constant(node), session.ref(last, node.id))]
        elif isinstance(node, Var):
            parts += [", the value ", code(node.name, session.ref(last, node.id))]
        elif node is not None:
            parts += [", from ", *_node_parts(session, node)]
        sentences.append(sentence(*parts, "."))
    readers = flow.readers.get(place, [])
    if readers:
        sentences.append(sentence("Its result is read by ", kernel_parts(session, readers), "."))
    for node in flow.others.get(place, {}).values():
        sentences.append(sentence("Its result goes to ", _node_parts(session, node), "."))
    outputs = flow.outputs.get(place, [])
    if outputs:
        given = named([code(name) for name in outputs])
        sentences.append(sentence("It produces the model's output ", given, "."))
    if not (readers or outputs or flow.others.get(place)):
        sentences.append(sentence("Its result is returned by its branch or loop."))
    return Section("memory", "memory", "", sentences)


def _constant(node: Constant) -> str:
    """Returns a description of a constant in terms of the user's model."""
    if node.name:
        return f"the parameter {node.name}"
    names = [s.layer for s in node.span.sources if s.kind == "parameter"]
    more = " ..." if len(names) > _MOST_PARAMETERS else ""
    made = f" made of {', '.join(names[:_MOST_PARAMETERS])}{more}" if names else ""
    return f"a constant{made}"


def _node_parts(session: Session, node: Expr) -> list[Part]:
    """Returns a node that no kernel computes, with the layers that it serves."""
    ref = session.ref(session.trace.last, node.id)
    held = node.value if isinstance(node, TupleGetItem) else node
    layers = layer_parts(session, node.span.layers)
    return [code(title(session, held), ref), *([Part(" of "), *layers] if layers else [])]


def _work(session: Session, place: int, facts: dict[str, Any]) -> Section:
    flops, moved = float(facts.get("flops", 0) or 0), float(facts["bytes"])
    does = f"Does {amount(flops, 'FLOP')}" if flops else "Computes nothing"
    sentences = [sentence(f"{does} and moves {amount(moved, 'B')} of operands and results.")]
    if flops and moved:
        sentences.append(sentence(f"That is {flops / moved:.3g} FLOP for each byte."))
    row = kernel_profile(session, place)
    if row is not None:
        sentences.append(sentence(f"Took {taken(row.ns, row.runs)} (median)."))
        if row.roof is not None:
            roof = row.roof
            limit = "arithmetic" if roof.limit == "compute" else f"memory ({roof.limit})"
            sentences.append(
                sentence(
                    f"It reaches {roof.gflops:.3g} GFLOP/s and {roof.gbps:.3g} GB/s; it is bound "
                    f"by {limit}, at {percent(roof.limit_share, 1)} of the machine's limit."
                )
            )
    return Section("time", "work", "", sentences)


def _loops(session: Session, place: int) -> Section:
    kernel, used = session.kernels[place], session.uses[place]
    sentences = list(rule_sentences(session, place))
    steps = len(used.schedule.steps)
    sentences.append(
        sentence(
            "The loop nest has ", code(count(len(kernel.loops), "line"), f"loop:{place}:1"),
            f" after {count(steps, 'step')} of scheduling.",
        )
    )  # fmt: skip
    return Section("loops", "loops", f"loop:{place}:1", sentences)


def _code(session: Session, place: int, facts: dict[str, Any]) -> Section:
    kernel = session.kernels[place]
    first = f"asm:{place}:1" if kernel.asm else ""
    sentences = [
        sentence(
            "It became ",
            code(count(len(kernel.llvm), "line"), f"llvm:{place}:1"), " of LLVM text, ",
            code(count(len(kernel.asm), "instruction"), first),
            f" and {amount(float(facts['code_bytes']), 'B')} of object code.",
        )
    ]  # fmt: skip
    for number, phase in enumerate(facts["phases"], 1):
        which = "It runs" if len(facts["phases"]) == 1 else f"Phase {number} runs"
        by = (
            f"shared by {count(facts['threads'], 'thread')}"
            if phase["shared"] and facts["threads"] > 1
            else "on one thread"
        )
        pieces, lines = count(int(phase["grid"]), "piece"), count(int(phase["lines"]), "line")
        sentences.append(sentence(f"{which} in {pieces} of {lines} each, {by}."))
    return Section("code", "code", first, sentences)


def kernel_profile(session: Session, place: int) -> KernelProfile | None:
    """Returns a kernel's profile row, if it was measured."""
    profile: Profile | None = session.measured.get("profile")
    if profile is None:
        return None
    name = session.kernels[place].name
    return next((row for row in profile.kernels if row.name == name), None)
