"""A layer's story: what it was at every stage, what became of it, and the code it runs as."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clew.trace.fates import Fate, fate_of
from clew.trace.links import LinkKind
from clew.trace.refs import LayerRef

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clew.trace.kernels import KernelTrace
    from clew.trace.trace import Trace

_MOST_LINES: Final = 12
_NUMBER: Final = re.compile(r"%\d+")


@dataclass(frozen=True)
class Place:
    """A node's line in a stage's text."""

    line: int
    text: str


@dataclass(frozen=True)
class Chapter:
    """What a stage did to the layer (`event`), and the layer's nodes after it.

    Stages that only computed the layer from other nodes than before have no chapter.
    """

    stage: int
    name: str
    event: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class KernelShare:
    """A layer's part in one kernel: operators, lines of the loop nest, instructions, bytes."""

    name: str
    call: int
    ops: tuple[str, ...]
    all_ops: tuple[str, ...]
    loop_lines: tuple[Place, ...]
    instructions: int
    kernel_instructions: int

    def __str__(self) -> str:
        share = ""
        if self.kernel_instructions:
            percent = 100 * self.instructions / self.kernel_instructions
            share = (
                f"; {self.instructions} of {self.kernel_instructions} instructions"
                f" ({percent:.0f} %)"
            )
        return f"{self.name}: {', '.join(self.ops)} of {', '.join(self.all_ops)}{share}"


@dataclass(frozen=True)
class LayerStory:
    """The story of one layer; `print` it, or hand it to rich."""

    layer: str
    op: str
    chapters: tuple[Chapter, ...]
    fate: Fate
    remarks: tuple[tuple[str, str], ...]
    kernels: tuple[KernelShare, ...]

    @property
    def title(self) -> str:
        """The layer's name and operator type."""
        return f"{self.layer} ({self.op})" if self.op else self.layer

    def _sections(self) -> Iterator[tuple[str, list[str]]]:
        for chapter in self.chapters:
            yield f"{chapter.name}: {chapter.event}", _lines(chapter.places)
        for pass_name, text in self.remarks:
            yield f"remark of {pass_name}: {text}", []
        for share in self.kernels:
            yield f"kernel {share}", _lines(share.loop_lines)
        yield f"in the end: {self.fate}", []

    def __str__(self) -> str:
        lines = [self.title]
        for head, places in self._sections():
            lines.append(f"  {head}")
            lines += [f"    {place}" for place in places]
        return "\n".join(lines)

    def __rich__(self) -> RenderableType:
        # Only who prints with rich needs it, and has imported it.
        text: Any = importlib.import_module("rich.text").Text
        group: Any = importlib.import_module("rich.console").Group
        tree: Any = importlib.import_module("rich.tree").Tree(text(self.title, style="bold"))
        for head, places in self._sections():
            name, mark, rest = head.partition(":")
            branch = tree.add(text.assemble((name, "cyan"), mark, rest))
            if places:
                branch.add(group(*(text(p, style="dim", no_wrap=True) for p in places)))
        shown: RenderableType = tree
        return shown


def _lines(places: tuple[Place, ...]) -> list[str]:
    shown = [f"{p.line:>5} | {p.text}" for p in places[:_MOST_LINES]]
    if len(places) > _MOST_LINES:
        shown.append(f"      ... and {len(places) - _MOST_LINES} more")
    return shown


def tell(trace: Trace, layer: str) -> LayerStory:
    """Returns a layer's story, which must be one of the trace's."""
    return LayerStory(
        layer=layer,
        op=_op_type(trace, layer),
        chapters=tuple(_chapters(trace, layer)),
        fate=fate_of(trace, layer),
        remarks=tuple((r.pass_name, r.text) for _, r in trace.remarks_of(layer)),
        kernels=tuple(_shares(trace, layer)),
    )


def _op_type(trace: Trace, layer: str) -> str:
    for node in trace.layer_nodes(0).get(layer, ()):
        for source in trace.nodes(0)[node].span.sources:
            if source.layer == layer and source.op:
                return source.op
    return ""


def _chapters(trace: Trace, layer: str) -> Iterator[Chapter]:
    if layer not in trace.layer_nodes(0):
        return  # the import needed no node for it
    reached = trace.forward(LayerRef(layer)).nodes
    before: list[int] = []
    told: list[str] = []
    for stage, record in enumerate(trace.stages):
        own = set(trace.layer_nodes(stage).get(layer, ()))
        places = trace.printed(stage).line_of
        own.update(ref.node for ref in reached.get(stage, ()))
        nodes = sorted(own, key=places.__getitem__)
        if stage and (nodes == before or not record.changed):
            continue
        shown = tuple(_places(trace, stage, nodes))
        texts = [_NUMBER.sub("%", place.text) for place in shown]
        if stage and texts == told:
            before = nodes  # only what it is computed from has changed
            continue
        event = _event(trace, stage, before, nodes) if stage else _titles(trace, 0, nodes)
        yield Chapter(stage, record.name, event, shown)
        told = texts
        if not nodes:
            return
        before = nodes


def _titles(trace: Trace, stage: int, ids: Iterable[int]) -> str:
    nodes, reader = trace.nodes(stage), trace.reader
    counts: dict[str, int] = {}
    for node in ids:
        title = reader.title(nodes[node])
        counts[title] = counts.get(title, 0) + 1
    return ", ".join(t if n == 1 else f"{n} × {t}" for t, n in counts.items()) or "nothing"


def _event(trace: Trace, stage: int, before: list[int], after: list[int]) -> str:
    """Returns one sentence on what a pass did to a layer's nodes."""
    gone = [n for n in before if n not in set(after)]
    come = [n for n in after if n not in set(before)]
    links = trace.links(stage)
    same = sum(any(link.kind is LinkKind.SAME for link in links.backward(new)) for new in come)
    if not gone:
        return f"added {_titles(trace, stage, come)}"
    old = _titles(trace, stage - 1, gone)
    if not come:
        return f"removed {old}"
    new = _titles(trace, stage, come)
    if old == new and same == len(come):
        return f"{old} rebuilt over other inputs"
    values = "no value kept" if not same else f"{same} computing the same value"
    return f"{old} became {new} ({values})"


def _places(trace: Trace, stage: int, ids: Iterable[int]) -> Iterator[Place]:
    form = trace.printed(stage)
    lines = form.text.splitlines()
    for line in sorted(form.line_of[n] for n in ids):
        yield Place(line, lines[line - 1].strip())


def _shares(trace: Trace, layer: str) -> Iterator[KernelShare]:
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
            loop_lines=tuple(Place(n, kernel.loops[n - 1].rstrip()) for n in sorted(lines)),
            instructions=sum(i.loop_line in lines for i in kernel.asm),
            kernel_instructions=len(kernel.asm),
        )


def _own_lines(kernel: KernelTrace, positions: set[int]) -> Iterator[int]:
    """Yields the lines that these operators alone answer for, loop heads apart."""
    for line, stage in kernel.loop_stages.items():
        if kernel.stage_ops.get(stage) in positions and 0 < line <= len(kernel.loops):
            yield line
