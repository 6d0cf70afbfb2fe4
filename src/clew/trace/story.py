"""A layer's story: its nodes at every stage, its fate, and its code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clew.support import markup
from clew.support.shown import counted
from clew.trace.fates import Fate, fate_of
from clew.trace.kernels import KernelTrace
from clew.trace.links import LinkKind
from clew.trace.notes import Note
from clew.trace.places import CodePlace
from clew.trace.queries import Queries
from clew.trace.refs import KernelRef, LayerRef, LoopRef, NodeRef, Ref

if TYPE_CHECKING:
    from rich.console import RenderableType


_MOST_LINES: Final = 12
_NUMBER: Final = re.compile(r"%\d+")


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence; `ref` is the thing it mentions (for a stage, a place in it).

    `code` is set for names and text of the graph and of code.
    """

    text: str
    ref: Ref | int | None = None
    code: bool = False


Sentence: TypeAlias = tuple[Phrase, ...]


@dataclass(frozen=True)
class Place:
    """A node's line in a stage's text, or a line of a loop nest."""

    line: int
    text: str
    ref: Ref | None = None


@dataclass(frozen=True)
class Section:
    """A part of a story: `kind` is the kind of a chapter, `note`, `kernel` or `end`. The first of
    the `sentences` continues the head.
    """

    kind: str
    head: str
    ref: Ref | int | None
    sentences: tuple[Sentence, ...]
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A stage's effect on a layer, and the layer's nodes after it; `remarks` are those of the pass.
    `kind` is `import`, `fold` (new constants), `layout` (a different one), `fuse` (moved into
    functions) or `pass`.

    Stages that changed only the layer's operands have no chapter.
    """

    stage: int
    name: str
    told: Sentence
    places: tuple[Place, ...]
    remarks: tuple[Phrase, ...] = ()
    kind: str = "pass"

    @property
    def event(self) -> str:
        """The effect of the stage, as text."""
        return said(self.told)


@dataclass(frozen=True)
class KernelShare:
    """A layer's part in one kernel: operators, lines of the loop nest, instructions, bytes.

    `layers` are the other layers that the kernel computes.
    """

    name: str
    call: int
    ops: tuple[str, ...]
    all_ops: tuple[str, ...]
    loop_lines: tuple[Place, ...]
    instructions: int
    kernel_instructions: int
    layers: tuple[str, ...] = ()

    def told(self) -> Sentence:
        """Returns the share as a sentence."""
        parts = [
            Phrase(self.name, KernelRef(self.call), code=True),
            Phrase(": "),
            Phrase(", ".join(self.ops), code=True),
            Phrase(" of "),
            Phrase(", ".join(self.all_ops), code=True),
        ]
        if self.kernel_instructions:
            percent = 100 * self.instructions / self.kernel_instructions
            parts.append(
                Phrase(
                    f"; {self.instructions} of {self.kernel_instructions} instructions"
                    f" ({percent:.0f} %)"
                )
            )
        return tuple(parts)

    def __str__(self) -> str:
        return said(self.told())


@dataclass(frozen=True)
class LayerStory:
    """The story of one layer, for `print` or rich."""

    layer: str
    op: str
    chapters: tuple[Chapter, ...]
    fate: Fate
    remarks: tuple[tuple[str, str], ...]
    kernels: tuple[KernelShare, ...]
    notes: tuple[Note, ...] = ()
    place: CodePlace | None = None

    def __repr__(self) -> str:
        stages = counted(len(self.chapters), "stage")
        return f"<LayerStory of {self.title}, told in {stages}>"

    @property
    def title(self) -> str:
        """The layer's name and operator type."""
        return f"{self.layer} ({self.op})" if self.op else self.layer

    @property
    def sections(self) -> Iterator[Section]:
        """Yields the parts of the story; the terminal prints them, other displays add links."""
        if self.place is not None:
            yield Section("code", "code", None, located(self.place))
        if self.notes:
            told = tuple((Phrase(noted(note)),) for note in self.notes)
            yield Section("note", "notes", None, told)
        for chapter in self.chapters:
            why = tuple((Phrase(f"{chapter.name} says: "), said) for said in chapter.remarks)
            yield Section(
                chapter.kind, chapter.name, chapter.stage, (chapter.told, *why), chapter.places
            )
        for share in self.kernels:
            sentences = [share.told()]
            if share.layers:
                sentences.append(shared_with(share.layers))
            yield Section(
                "kernel", "kernel", KernelRef(share.call), tuple(sentences), share.loop_lines
            )
        yield Section("end", "in the end", None, ((Phrase(str(self.fate)),),))

    def __str__(self) -> str:
        lines = [self.title]
        for section in self.sections:
            first, *rest = map(said, section.sentences)
            lines.append(f"  {section.head}{_colon(section)} {first}")
            lines += [f"    {text}" for text in [*rest, *place_lines(section.places)]]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sections = (_section_html(section) for section in self.sections)
        return markup.framed([markup.head(self.layer, self.op), *sections])

    def __rich__(self) -> RenderableType:
        # Needed only for printing with rich, which the caller has then imported.
        text: Any = importlib.import_module("rich.text").Text
        group: Any = importlib.import_module("rich.console").Group
        tree: Any = importlib.import_module("rich.tree").Tree(text(self.title, style="bold"))
        for section in self.sections:
            first, *rest = map(said, section.sentences)
            branch = tree.add(text.assemble((section.head, "cyan"), _colon(section), " ", first))
            more = [text(sentence) for sentence in rest]
            more += [text(p, style="dim", no_wrap=True) for p in place_lines(section.places)]
            if more:
                branch.add(group(*more))
        shown: RenderableType = tree
        return shown


def said(sentence: Sentence) -> str:
    """Returns a sentence as text."""
    return "".join(phrase.text for phrase in sentence)


def noted(note: Note) -> str:
    """Returns a note with its error, as text."""
    if note.error is None:
        return note.text
    return f"{note.text}; its result differs from that in floats by {note.error:.1e}"


def located(place: CodePlace) -> tuple[Sentence, ...]:
    """Returns where a layer is called: line, module, and the line's text."""
    module = f"{place.module} ({place.kind})" if place.module else place.kind
    parts = [Phrase(place.where or "unknown line", code=bool(place.where))]
    if module:
        parts += [Phrase(" in "), Phrase(module, code=True)]
    if not place.code:
        return (tuple(parts),)
    return (tuple(parts), (Phrase(place.code, code=True),))


def listed(layers: Sequence[str], most: int = 8) -> Sentence:
    """Returns names of layers, each with a reference to the layer."""
    parts: list[Phrase] = []
    for name in layers[:most]:
        parts += [Phrase(", "), Phrase(name, LayerRef(name), code=True)]
    if len(layers) > most:
        parts.append(Phrase(f" and {len(layers) - most} more"))
    return tuple(parts[1:])


def shared_with(layers: Sequence[str]) -> Sentence:
    """Returns a sentence about the layers that share a kernel."""
    return (Phrase("together with "), *listed(layers))


def _colon(section: Section) -> str:
    return "" if section.kind == "kernel" else ":"


def place_lines(places: tuple[Place, ...]) -> list[str]:
    """Returns the first places as text lines, and the number of the rest."""
    shown = [f"{p.line:>5} | {p.text}" for p in places[:_MOST_LINES]]
    if len(places) > _MOST_LINES:
        shown.append(f"      ... and {len(places) - _MOST_LINES} more")
    return shown


def tell(trace: Queries, layer: str) -> LayerStory:
    """Returns the story of a layer, which must be in the trace."""
    remarks = trace.remarks_of(layer)
    by_stage: dict[int, dict[str, Phrase]] = {}
    for stage, remark in remarks:
        before = max(stage - 1, 0)
        place = NodeRef(before if remark.node_id in trace.nodes(before) else stage, remark.node_id)
        by_stage.setdefault(stage, {}).setdefault(remark.text, Phrase(remark.text, place))
    return LayerStory(
        layer=layer,
        op=_op_type(trace, layer),
        chapters=tuple(_chapters(trace, layer, by_stage)),
        fate=fate_of(trace, layer),
        remarks=tuple((r.pass_name, r.text) for _, r in remarks),
        kernels=tuple(_shares(trace, layer)),
        notes=trace.notes.get(layer, ()),
        place=trace.places.get(layer),
    )


def _op_type(trace: Queries, layer: str) -> str:
    for node in trace.layer_nodes(0).get(layer, ()):
        for source in trace.nodes(0)[node].span.sources:
            if source.layer == layer and source.op:
                return source.op
    return ""


def _chapters(
    trace: Queries, layer: str, remarks: Mapping[int, Mapping[str, Phrase]]
) -> Iterator[Chapter]:
    if layer not in trace.layer_nodes(0):
        return  # the import made no node for it
    reached = trace.forward(LayerRef(layer)).nodes
    before: list[int] = []
    told: list[str] = []
    for stage, record in enumerate(trace.stages):
        own = set(trace.layer_nodes(stage).get(layer, ()))
        places = trace.printed(stage).line_of
        own.update(ref.node for ref in reached.get(stage, ()))
        nodes = sorted(own, key=places.__getitem__)
        why = tuple(remarks.get(stage, {}).values())
        unchanged = stage and (nodes == before or not record.changed)
        shown = () if unchanged else tuple(_places(trace, stage, _telling(trace, stage, nodes)))
        texts = [_NUMBER.sub("%", place.text) for place in shown]
        # Skip stages that only changed the operands.
        if unchanged or (stage and texts == told):
            before = nodes
            if why:
                yield Chapter(stage, record.name, (Phrase("left as it is"),), (), why)
            continue
        event = (
            tuple(_event(trace, layer, stage, before, nodes))
            if stage
            else (Phrase(_titles(trace, 0, nodes), code=True),)
        )
        kind = _kind(trace, stage, before, nodes) if stage else "import"
        yield Chapter(stage, record.name, event, shown, why, kind)
        told = texts
        if not nodes:
            return
        before = nodes


def _telling(trace: Queries, stage: int, ids: list[int]) -> list[int]:
    """Returns the nodes to mention: all except functions and their parameters."""
    nodes, kind = trace.nodes(stage), trace.reader.kind
    functions = any(kind(nodes[n]) == "Function" for n in ids)
    return [n for n in ids if not functions or kind(nodes[n]) not in ("Function", "Var")]


def _titles(trace: Queries, stage: int, ids: Iterable[int]) -> str:
    """Returns a description of nodes, as text."""
    told = [t if n == 1 else f"{n} × {t}" for t, n in _counted(trace, stage, ids).items()]
    return ", ".join(told) or "nothing"


def _counted(trace: Queries, stage: int, ids: Iterable[int]) -> dict[str, int]:
    """Returns the number of nodes per title; if there are functions, of operators and constants
    only.
    """
    nodes, reader = trace.nodes(stage), trace.reader
    wanted = [nodes[n] for n in ids]
    functions = [_name_of(trace, n) for n in wanted if reader.kind(n) == "Function"]
    counts: dict[str, int] = {}
    for node in wanted:
        title = reader.title(node)
        if not functions or reader.kind(node) in ("Call", "Constant"):
            counts[title] = counts.get(title, 0) + 1
    for name in functions:
        if counts.get(name):
            counts[name] -= 1
    return {title: count for title, count in counts.items() if count}


def _name_of(trace: Queries, function: Any) -> str:
    return trace.reader.title(function).removeprefix("function").strip()


def _holds(trace: Queries, node: Any) -> bool:
    """Whether a node is a named function: a kernel, not a branch or a loop body."""
    return trace.reader.kind(node) == "Function" and bool(_name_of(trace, node))


def _event(
    trace: Queries, layer: str, stage: int, before: list[int], after: list[int]
) -> Iterator[Phrase]:
    """Yields one sentence about a pass's effect on a layer's nodes."""
    gone = [n for n in before if n not in set(after)]
    come = [n for n in after if n not in set(before)]
    nodes, links = trace.nodes(stage), trace.links(stage)
    if not gone:
        yield from (Phrase("added "), Phrase(_titles(trace, stage, come), code=True))
        return
    old = _titles(trace, stage - 1, gone)
    if not come:
        yield from (Phrase("removed "), Phrase(old, code=True))
        return
    new = _titles(trace, stage, come)
    alike = _counted(trace, stage - 1, gone) == _counted(trace, stage, come)
    functions = [nodes[n] for n in come if _holds(trace, nodes[n])]
    same = sum(any(link.kind is LinkKind.SAME for link in links.backward(n)) for n in come)
    yield Phrase(old, code=True)
    if functions and alike:
        yield Phrase(" put into ")
    elif functions:
        yield from (Phrase(" became "), Phrase(new, code=True), Phrase(", put into "))
    elif alike and same == len(come):
        yield Phrase(" rebuilt over other inputs")
    else:
        yield from (Phrase(" became "), Phrase(new, code=True))
    for n, function in enumerate(functions):
        title = trace.reader.title(function).removeprefix("function ")
        yield from (
            Phrase(", " if n else ""),
            Phrase(title, NodeRef(stage, function.id), code=True),
        )
    yield from _results(trace, layer, stage, gone, after)
    yield from _companions(trace, layer, stage, before, come)


def _kind(trace: Queries, stage: int, before: list[int], after: list[int]) -> str:
    """Returns the kind of a pass's change."""
    nodes = trace.nodes(stage)
    come = [nodes[n] for n in after if n not in set(before)]
    if any(_holds(trace, n) for n in come):
        return "fuse"
    if come and all(trace.reader.kind(n) == "Constant" for n in come):
        return "fold"
    olds = trace.nodes(stage - 1)
    if _layouts(come) - _layouts(olds[n] for n in before):
        return "layout"
    made = {trace.reader.kind(n) for n in come}
    gone = [n for n in before if n not in set(after)]
    computed = sum(trace.reader.kind(olds[n]) == "Call" for n in gone)
    kept = sum(trace.reader.kind(n) == "Call" for n in come)
    return "fold" if "Constant" in made and kept < computed else "pass"


def _layouts(nodes: Iterable[Any]) -> set[str]:
    return {getattr(node.type, "layout", "") for node in nodes} - {""}


def _results(
    trace: Queries, layer: str, stage: int, gone: list[int], after: list[int]
) -> Iterator[Phrase]:
    """Yields which node now holds the layer's result, if it changed."""
    old = [n for n in gone if _is_result(trace.nodes(stage - 1)[n], layer)]
    if not old:
        return
    nodes = trace.nodes(stage)
    new = [n for n in after if _is_result(nodes[n], layer) and not _holds(trace, nodes[n])]
    if not new:
        yield Phrase("; its own result is no longer computed")
        return
    before, node = trace.nodes(stage - 1)[old[0]], nodes[new[0]]
    was, is_ = str(before.type), str(node.type)
    title = trace.reader.title(node)
    if title != trace.reader.title(before) and len(after) > 1:
        yield from (Phrase("; its result is that of "), Phrase(title, NodeRef(stage, new[0]), True))
    if was != is_:
        yield from (Phrase("; its result is "), Phrase(is_, code=True), Phrase(" instead of "))
        yield Phrase(was, code=True)


def _companions(
    trace: Queries, layer: str, stage: int, before: list[int], come: list[int]
) -> Iterator[Phrase]:
    """Yields the layers that share operators with this one from here on."""
    olds, nodes, kind = trace.nodes(stage - 1), trace.nodes(stage), trace.reader.kind
    if any(_holds(trace, nodes[n]) for n in come):
        return  # a kernel's nodes serve all its layers; its operators are more precise
    known = {la for n in before for la in olds[n].span.layers}
    new = {la for n in come if kind(nodes[n]) == "Call" for la in nodes[n].span.layers}
    others = trace.in_order(new - known - {layer})
    if others:
        yield from (Phrase("; from here on in one operator with "), *listed(others))


def _is_result(node: Any, layer: str) -> bool:
    return any(s.layer == layer and s.output is not None for s in node.span.sources)


def _places(trace: Queries, stage: int, ids: Iterable[int]) -> Iterator[Place]:
    form, lines = trace.printed(stage), trace.lines(stage)
    for line, node in sorted((form.line_of[n], n) for n in ids):
        yield Place(line, lines[line - 1].strip(), NodeRef(stage, node))


def _shares(trace: Queries, layer: str) -> Iterator[KernelShare]:
    nodes, title = trace.nodes(trace.last), trace.reader.title
    own = set(trace.layer_nodes(trace.last).get(layer, ()))
    own.update(r.node for r in trace.forward(LayerRef(layer)).at(trace.last))
    for kernel in trace.kernels_of(own):
        positions = {p for p, op in enumerate(kernel.ops) if op in own}
        lines = set(_own_lines(kernel, positions))
        yield KernelShare(
            name=kernel.name,
            call=kernel.call,
            ops=tuple(title(nodes[kernel.ops[p]]) for p in sorted(positions)),
            all_ops=tuple(title(nodes[op]) for op in kernel.ops),
            loop_lines=tuple(
                Place(n, kernel.loops[n - 1].rstrip(), LoopRef(kernel.call, n))
                for n in sorted(lines)
            ),
            instructions=sum(i.loop_line in lines for i in kernel.asm),
            kernel_instructions=len(kernel.asm),
            layers=trace.in_order(la for la in trace.kernel_layers(kernel) if la != layer),
        )


def _own_lines(kernel: KernelTrace, positions: set[int]) -> Iterator[int]:
    """Yields the lines that serve only these operators, except loop heads."""
    for line, stage in kernel.loop_stages.items():
        if kernel.stage_ops.get(stage) in positions and 0 < line <= len(kernel.loops):
            yield line


def _section_html(section: Section) -> str:
    style = f"{markup.FIXED_WIDTH};{markup.FAINT};overflow-x:auto"
    lines = "".join(markup.paragraph(line) for line in place_lines(section.places))
    places = f'<div style="{style}">{lines}</div>' if lines else ""
    told = "".join(markup.paragraph(said(sentence)) for sentence in section.sentences)
    return markup.paragraph(section.head, "font-weight:600;margin-top:6px") + told + places
