"""Queries of stages, links and kernels of one compilation, in both directions.

Everything is computed on first use and then cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from clew.support.errors import InputError
from clew.support.lazy import cached_property
from clew.support.shown import Shown, counted
from clew.trace.kernels import KernelTrace
from clew.trace.links import Link, LinkKind, StageLinks, links_from
from clew.trace.notes import Note
from clew.trace.places import CodePlace
from clew.trace.refs import AsmRef, KernelRef, LayerRef, LlvmRef, LoopRef, NodeRef, Reach, Ref
from clew.trace.span import Span
from clew.trace.stages import Remark, StageRecord


class Node(Protocol):
    """A graph node, as the trace sees it."""

    @property
    def id(self) -> int:
        """Unique among all nodes."""
        ...

    @property
    def span(self) -> Span:
        """The layers the node serves."""
        ...

    @property
    def type(self) -> Any:
        """The node's type, which `str` shows."""
        ...


class PrintedStage(Protocol):
    """A module's text and its nodes' lines, counted from 1."""

    @property
    def text(self) -> str:
        """The text, one node per line."""
        ...

    @property
    def line_of(self) -> Mapping[int, int]:
        """The line of each node, by id."""
        ...

    @property
    def node_at(self) -> Mapping[int, Any]:
        """The nodes by their lines."""
        ...


class Reader(Protocol):
    """Reads the modules of stages, which are opaque to the trace."""

    def nodes(self, module: Any) -> Sequence[Node]:
        """Returns every node once, including those of inner functions."""
        ...

    def printed(self, module: Any) -> PrintedStage:
        """Returns the module's text."""
        ...

    def kind(self, node: Any) -> str:
        """Returns the node's kind: `Call`, `Constant`, `Var`, `Function` ..."""
        ...

    def eliminated(self, module: Any) -> Sequence[tuple[str, str]]:
        """Returns the layers without a node even in the first stage, each with the reason."""
        ...

    def notes(self, module: Any) -> Sequence[Note]:
        """Returns the notes about layers."""
        ...

    def places(self, module: Any) -> Sequence[CodePlace]:
        """Returns where layers are called in the user's code."""
        ...

    def title(self, node: Any) -> str:
        """Returns a short name: the operator's, or the kind in lower case."""
        ...

    def memory(self, node: Any) -> tuple[str, ...]:
        """Returns how a node outside kernels refers to memory: `view` and the viewed value,
        `joined` and the values written into it, or `region` and the backend that runs it; empty for
        all others.
        """
        ...


Stages = Sequence[StageRecord] | Callable[[], Sequence[StageRecord]]
Kernels = Sequence[KernelTrace] | Callable[[], Sequence[KernelTrace]]
ALL_OPS: Final = None


class Queries(Shown):
    """Queries of layers, nodes and lines over stages, the links between them, and kernels. Stages
    and kernels may be given by callables, which are called on first use.

    `links` are passed in if there is no lineage: in a trace read from an export.
    """

    def __init__(
        self,
        stages: Stages,
        reader: Reader,
        kernels: Kernels = (),
        links: Mapping[int, Sequence[Link]] | None = None,
    ) -> None:
        self._stages = stages
        self.reader: Final = reader
        self._kernels = kernels
        # Keyed by the identity of the module: stages that change nothing share one.
        self._nodes: dict[int, dict[int, Node]] = {}
        self._printed: dict[int, PrintedStage] = {}
        self._links: dict[int, StageLinks] = {
            stage: StageLinks(self.nodes(stage - 1), self.nodes(stage), given)
            for stage, given in (links or {}).items()
        }
        self._layers: dict[int, dict[str, list[int]]] = {}
        self._lines: dict[int, list[str]] = {}

    def _about(self) -> str:
        try:
            layers, stages = len(self.layers), len(self.stages)
        except InputError:
            return "of a model that has not been built yet"
        return f"of {counted(layers, 'layer')} through {counted(stages, 'stage')}"

    # --- contents ---

    @cached_property
    def stages(self) -> tuple[StageRecord, ...]:
        """The stages in order.

        Errors: I044 in a compiled model that has not been built for any sizes yet.
        """
        given = self._stages
        return tuple(given() if callable(given) else given)

    @cached_property
    def kernels(self) -> tuple[KernelTrace, ...]:
        """The uses of kernels, in order of execution."""
        given = self._kernels
        return tuple(given() if callable(given) else given)

    @property
    def last(self) -> int:
        """Position of the last stage."""
        return len(self.stages) - 1

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the model's layers, in the order of the import."""
        return tuple(dict.fromkeys([*self.layer_nodes(0), *self.eliminated]))

    @cached_property
    def eliminated(self) -> Mapping[str, str]:
        """Layers eliminated by the import, each with the reason: a known shape, an unused
        result.
        """
        return dict(self.reader.eliminated(self.stages[0].module))

    @cached_property
    def notes(self) -> Mapping[str, tuple[Note, ...]]:
        """Notes about layers, by layer."""
        found: dict[str, list[Note]] = {}
        for note in self.reader.notes(self.stages[0].module):
            found.setdefault(note.layer, []).append(note)
        return {layer: tuple(notes) for layer, notes in found.items()}

    @cached_property
    def places(self) -> Mapping[str, CodePlace]:
        """Where layers are called in the user's code, by layer; empty if the model is a file."""
        return {place.layer: place for place in self.reader.places(self.stages[0].module)}

    @cached_property
    def _layer_order(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.layers)}

    def in_order(self, layers: Iterable[str]) -> tuple[str, ...]:
        """Returns layers in the order of the import, each once, followed by any others."""
        order = self._layer_order
        return tuple(sorted(dict.fromkeys(layers), key=lambda la: order.get(la, len(order))))

    def nodes(self, stage: int) -> Mapping[int, Node]:
        """Returns the nodes of a stage by id. Stages with the same module share them."""
        module = self.stages[stage].module
        found = self._nodes.get(id(module))
        if found is None:
            found = {n.id: n for n in self.reader.nodes(module)}
            self._nodes[id(module)] = found
        return found

    def printed(self, stage: int) -> PrintedStage:
        """Returns the text of a stage's module and its nodes' lines."""
        module = self.stages[stage].module
        found = self._printed.get(id(module))
        if found is None:
            found = self._printed[id(module)] = self.reader.printed(module)
        return found

    def lines(self, stage: int) -> Sequence[str]:
        """Returns the lines of a stage's text."""
        key = id(self.stages[stage].module)
        found = self._lines.get(key)
        if found is None:
            found = self._lines[key] = self.printed(stage).text.splitlines()
        return found

    def links(self, stage: int) -> StageLinks:
        """Returns the links from the previous stage to this one."""
        assert stage > 0, "nothing comes before the first stage"
        found = self._links.get(stage)
        if found is None:
            lineage = self.stages[stage].lineage
            before, after = self.nodes(stage - 1), self.nodes(stage)
            links = () if lineage is None else links_from(before, after, lineage)
            found = self._links[stage] = StageLinks(before, after, links)
        return found

    def layer_nodes(self, stage: int) -> Mapping[str, Sequence[int]]:
        """Returns, for each layer, the ids of the nodes that serve it at a stage."""
        key = id(self.stages[stage].module)
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = {}
            for node in self.nodes(stage).values():
                for layer in node.span.layers:
                    found.setdefault(layer, []).append(node.id)
        return found

    @cached_property
    def _kernel_at(self) -> dict[int, KernelTrace]:
        return {k.call: k for k in self.kernels}

    @cached_property
    def _kernel_order(self) -> dict[int, int]:
        return {k.call: n for n, k in enumerate(self.kernels)}

    @cached_property
    def _kernel_ops(self) -> dict[int, list[tuple[KernelTrace, int]]]:
        """Maps ids of operator nodes to their kernels and positions there."""
        found: dict[int, list[tuple[KernelTrace, int]]] = {}
        for kernel in self.kernels:
            for position, node in enumerate(kernel.ops):
                found.setdefault(node, []).append((kernel, position))
        return found

    def kernels_of(self, nodes: Iterable[int]) -> list[KernelTrace]:
        """Returns the kernels that compute nodes of the last stage, in order of execution."""
        calls = {k.call for n in nodes for k, _ in self._kernel_ops.get(n, ())}
        return [self._kernel_at[c] for c in sorted(calls, key=self._kernel_order.__getitem__)]

    # --- names ---

    def stage_index(self, stage: int | str) -> int:
        """Returns a stage's position; if several stages have the name, the last.

        Errors: I071 for an unknown stage.
        """
        if isinstance(stage, int) and -len(self.stages) <= stage < len(self.stages):
            return stage % len(self.stages)
        names = [s.name for s in self.stages]
        if stage in names:
            return self.last - names[::-1].index(str(stage))
        raise InputError("I071", f"no stage {stage!r}", hint=f"the stages are {', '.join(names)}")

    def node(self, stage: int | str, line: int) -> NodeRef:
        """Returns the node on a line of a stage's text.

        Errors: I071 for an unknown stage, I072 for a line without a node.
        """
        index = self.stage_index(stage)
        node = self.printed(index).node_at.get(line)
        if node is None:
            raise InputError(
                "I072",
                f"line {line} of stage {self.stages[index].name} has no node",
                hint="lines count from 1; braces, returns and the head have no node",
            )
        return NodeRef(index, node.id)

    def line(self, ref: NodeRef) -> int:
        """Returns the line of a node in its stage's text."""
        return self.printed(ref.stage).line_of[ref.node]

    def text(self, ref: NodeRef) -> str:
        """Returns the line of text of a node."""
        return self.lines(ref.stage)[self.line(ref) - 1].strip()

    def kernel(self, ref: KernelRef | LoopRef | LlvmRef | AsmRef) -> KernelTrace:
        """Returns the kernel that a reference is in.

        Errors: I073 if the node calls no kernel.
        """
        found = self._kernel_at.get(ref.call)
        if found is None:
            raise InputError("I073", f"node {ref.call} calls no kernel")
        return found

    def need_layer(self, layer: str) -> str:
        """Checks that the model has a layer, and returns its name.

        Errors: I070 if it does not; the hint gives similar names.
        """
        if layer in self.layer_nodes(0) or layer in self.eliminated:
            return layer
        import difflib  # noqa: PLC0415 - only mistakes need it

        close = difflib.get_close_matches(layer, self.layers, n=3, cutoff=0.5)
        raise InputError(
            "I070",
            f"the model has no layer {layer!r}",
            hint=f"did you mean {', '.join(close)}?" if close else "see trace.layers",
        )

    # --- following links ---

    def layers_of(self, ref: NodeRef) -> tuple[str, ...]:
        """Returns the layers a node serves, or, if it names none, those of the nodes behind it."""
        own = self.nodes(ref.stage)[ref.node].span.layers
        return own or tuple(r.layer for r in self.backward(ref).layers)

    def kernel_layers(self, kernel: KernelTrace) -> tuple[str, ...]:
        """Returns the layers that a kernel computes, in the order of its operators."""
        nodes = self.nodes(self.last)
        return tuple(dict.fromkeys(la for op in kernel.ops for la in nodes[op].span.layers))

    def remarks_of(self, layer: str) -> list[tuple[int, Remark]]:
        """Returns the remarks on nodes of a layer, each with its stage."""
        return self._remarks.get(layer, [])

    @cached_property
    def _remarks(self) -> dict[str, list[tuple[int, Remark]]]:
        found: dict[str, list[tuple[int, Remark]]] = {}
        for index, stage in enumerate(self.stages):
            before, after = self.nodes(max(index - 1, 0)), self.nodes(index)
            for remark in stage.remarks:
                node = before.get(remark.node_id) or after.get(remark.node_id)
                for layer in node.span.layers if node is not None else ():
                    found.setdefault(layer, []).append((index, remark))
        return found

    def forward(self, ref: Ref) -> Reach:
        """Returns everything a layer, node, kernel or line leads to.

        Errors: I070 for an unknown layer, I073 for an unknown kernel.
        """
        match ref:
            case LayerRef(layer):
                self.need_layer(layer)
                nodes = self._down(0, self.layer_nodes(0).get(layer, ()))
                below = self._below(nodes.get(self.last, {}))
                return self._reach([ref], nodes, below)
            case NodeRef(stage, node):
                nodes = self._down(stage, [node])
                return self._reach([], nodes, self._below(nodes.get(self.last, {})))
            case KernelRef():
                return self._reach([], {}, {self.kernel(ref).call: ALL_OPS})
        kernel = self.kernel(ref)
        lines = {_loop_line(kernel, ref)}
        _, llvm, asm = _code(kernel, lines)
        match ref:
            case LoopRef():
                return Reach(loops=(ref,), llvm=llvm, asm=asm)
            case LlvmRef():
                return Reach(llvm=(ref,), asm=asm)
        return Reach(asm=(ref,))

    def backward(self, ref: Ref) -> Reach:
        """Returns everything a layer, node, kernel or line comes from.

        Errors: I073 for an unknown kernel.
        """
        match ref:
            case LayerRef(layer):
                return Reach(layers=(LayerRef(self.need_layer(layer)),))
            case NodeRef(stage, node):
                return self._behind(stage, [node], Reach())
            case KernelRef():
                return self._behind(self.last, self.kernel(ref).ops, Reach(kernels=(ref,)))
        kernel = self.kernel(ref)
        line = _loop_line(kernel, ref)
        loops, llvm, _ = _code(kernel, {line})
        own = KernelRef(kernel.call)
        match ref:
            case LoopRef():
                start = Reach(kernels=(own,), loops=(ref,))
            case LlvmRef():
                start = Reach(kernels=(own,), loops=loops, llvm=(ref,))
            case AsmRef():
                start = Reach(kernels=(own,), loops=loops, llvm=llvm, asm=(ref,))
        if not line:
            return start
        return self._behind(self.last, ops_of_line(kernel, line), start)

    def _down(self, stage: int, start: Iterable[int]) -> dict[int, dict[int, None]]:
        """Returns the nodes reached at this stage and at every later one."""
        reached = {stage: dict.fromkeys(start)}
        for following in range(stage + 1, len(self.stages)):
            if not self.stages[following].changed:
                reached[following] = reached[following - 1]
                continue
            links = self.links(following)
            reached[following] = {
                link.new: None for old in reached[following - 1] for link in links.forward(old)
            }
        return reached

    def _up(self, stage: int, start: Iterable[int]) -> dict[int, dict[int, None]]:
        """Returns the nodes reached at this stage and at every earlier one."""
        reached = {stage: dict.fromkeys(start)}
        for current in range(stage, 0, -1):
            if not self.stages[current].changed:
                reached[current - 1] = reached[current]
                continue
            links = self.links(current)
            reached[current - 1] = {
                link.old: None for new in reached[current] for link in links.backward(new)
            }
        return reached

    def _behind(self, stage: int, start: Iterable[int], below: Reach) -> Reach:
        nodes = self._up(stage, start)
        layers: dict[str, None] = {}
        for index in range(stage + 1):
            found = self.nodes(index)
            for node in nodes[index]:
                layers.update(dict.fromkeys(found[node].span.layers))
        reach = self._reach([LayerRef(la) for la in layers], nodes, {})
        return Reach(reach.layers, reach.nodes, below.kernels, below.loops, below.llvm, below.asm)

    def _below(self, nodes: Mapping[int, None]) -> dict[int, set[int] | None]:
        """Returns the kernels of nodes of the last stage, with the positions of operators.

        A call or function stands for its whole kernel only if none of its operators is given.
        """
        found: dict[int, set[int] | None] = {}
        for node in nodes:
            for kernel, position in self._kernel_ops.get(node, ()):
                positions = found.setdefault(kernel.call, set())
                assert positions is not None
                positions.add(position)
        for node in nodes:
            if node in self._kernel_at:
                found.setdefault(node, ALL_OPS)
        return found

    def _reach(
        self,
        layers: Sequence[LayerRef],
        nodes: Mapping[int, Mapping[int, None]],
        kernels: Mapping[int, set[int] | None],
    ) -> Reach:
        loops: list[LoopRef] = []
        llvm: list[LlvmRef] = []
        asm: list[AsmRef] = []
        ordered = [self._kernel_at[c] for c in sorted(kernels, key=self._kernel_order.__getitem__)]
        for kernel in ordered:
            lines = _lines_of_ops(kernel, kernels[kernel.call])
            more = _code(kernel, lines)
            loops += more[0]
            llvm += more[1]
            asm += more[2]
        refs = {s: tuple(NodeRef(s, n) for n in found) for s, found in sorted(nodes.items())}
        used = tuple(KernelRef(k.call) for k in ordered)
        return Reach(tuple(layers), refs, used, tuple(loops), tuple(llvm), tuple(asm))

    def same_links(self, stage: int) -> list[Link]:
        """Returns the *same* links from the previous stage to this one."""
        return [link for link in self.links(stage).links if link.kind is LinkKind.SAME]


def _loop_line(kernel: KernelTrace, ref: LoopRef | LlvmRef | AsmRef) -> int:
    """Returns the line of the loop nest for a line; 0 if unknown.

    Errors: I072 for a line that the kernel does not have.
    """
    match ref:
        case LoopRef():
            total, line = len(kernel.loops), ref.line
        case LlvmRef():
            total, line = len(kernel.llvm), kernel.llvm_lines.get(ref.line, 0)
        case AsmRef():
            total = len(kernel.asm)
            line = kernel.asm[ref.line - 1].loop_line if 0 < ref.line <= total else 0
    if not 0 < ref.line <= total:
        raise InputError(
            "I072", f"kernel {kernel.name} has no line {ref.line}", hint=f"it has {total}"
        )
    return line


def ops_of_line(kernel: KernelTrace, line: int) -> Sequence[int]:
    """Returns the operator nodes that a line of the loop nest serves; the head of a loop serves
    all.
    """
    stage = kernel.loop_stages.get(line)
    position = None if stage is None else kernel.stage_ops.get(stage)
    return kernel.ops if position is None else (kernel.ops[position],)


def _lines_of_ops(kernel: KernelTrace, positions: set[int] | None) -> set[int]:
    """Returns the lines of the loop nest that serve operators, given by position; `None` means
    all.
    """
    if positions is None or len(positions) == len(kernel.ops):
        return set(range(1, len(kernel.loops) + 1))
    wanted = {kernel.ops[p] for p in positions}
    lines = range(1, len(kernel.loops) + 1)
    return {line for line in lines if wanted.intersection(ops_of_line(kernel, line))}


def _code(
    kernel: KernelTrace, lines: set[int]
) -> tuple[tuple[LoopRef, ...], tuple[LlvmRef, ...], tuple[AsmRef, ...]]:
    """Returns the lines, and the LLVM lines and instructions generated from them."""
    call, known = kernel.call, lines - {0}
    loops = tuple(LoopRef(call, line) for line in sorted(known))
    llvm = tuple(LlvmRef(call, n) for n, to in sorted(kernel.llvm_lines.items()) if to in known)
    asm = tuple(AsmRef(call, n) for n, i in enumerate(kernel.asm, 1) if i.loop_line in known)
    return loops, llvm, asm
