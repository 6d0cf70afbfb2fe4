"""The trace as JSON for other tools, in the format of `docs/trace-format.md`.

Node ids are renumbered stage by stage, so equal compilations give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from clew.support.errors import InputError
from clew.support.files import read_json_file, reason_of
from clew.support.writing import write_text
from clew.trace.fates import FateKind
from clew.trace.kernels import InstructionRecord, KernelRecord, KernelTrace
from clew.trace.lineage import Lineage
from clew.trace.links import Link, LinkKind
from clew.trace.notes import Note
from clew.trace.places import CodePlace
from clew.trace.span import Source, Span
from clew.trace.stages import Remark, StageRecord
from clew.trace.trace import Trace

FORMAT: Final = "clew-trace"
VERSION: Final = 1


class _Exporter:
    def __init__(self, trace: Trace, *, timings: bool) -> None:
        self.trace = trace
        self.timings = timings
        self.numbers: dict[int, int] = {}
        self.sources: dict[Source, int] = {}

    def document(self) -> dict[str, Any]:
        trace = self.trace
        for stage in range(len(trace.stages)):
            self._number(stage)
        stages = [self._stage(n) for n in range(len(trace.stages))]
        fates = trace.accounted()
        notes = [list(note) for notes in trace.notes.values() for note in notes]
        places = [list(place) for place in trace.places.values()]
        return {
            "format": FORMAT,
            "version": VERSION,
            "layers": [
                {
                    "name": layer,
                    "fate": fate.kind.value,
                    "pass": fate.pass_name,
                    "into": list(fate.into),
                }
                for layer, fate in fates.items()
            ],
            **({"notes": notes} if notes else {}),
            **({"places": places} if places else {}),
            "stages": stages,
            "kernels": [self._kernel(k) for k in trace.kernels],
            "sources": [[s.kind, s.layer, s.op, s.frontend, s.output] for s in self.sources],
        }

    def _number(self, stage: int) -> None:
        for node in self.trace.nodes(stage):
            self.numbers.setdefault(node, len(self.numbers))

    def _stage(self, index: int) -> dict[str, Any]:
        record = self.trace.stages[index]
        stage: dict[str, Any] = {
            "name": record.name,
            "changed": record.changed,
            "traced": index == 0 or record.lineage is not None,
            "remarks": [
                [self.numbers.get(r.node_id, -1), r.pass_name, r.text] for r in record.remarks
            ],
        }
        if self.timings:
            stage["seconds"] = record.seconds
        if record.changed:
            nodes = self.trace.nodes(index)
            form = self.trace.printed(index)
            stage["text"] = form.text
            stage["nodes"] = [
                self._node(node, form.line_of.get(node.id, 0)) for node in nodes.values()
            ]
            stage["links"] = self._links(index) if index else []
        return stage

    def _node(self, node: Any, line: int) -> dict[str, Any]:
        reader = self.trace.reader
        return {
            "id": self.numbers[node.id],
            "line": line,
            "kind": reader.kind(node),
            "title": reader.title(node),
            "memory": list(reader.memory(node)),
            "type": str(node.type),
            "sources": [self.sources.setdefault(s, len(self.sources)) for s in node.span.sources],
        }

    def _links(self, index: int) -> list[list[Any]]:
        links = self.trace.links(index).links
        found = [[self.numbers[x.old], self.numbers[x.new], x.kind.value] for x in links]
        return sorted(found)

    def _kernel(self, kernel: KernelTrace) -> dict[str, Any]:
        return {
            "name": kernel.name,
            "call": self.numbers[kernel.call],
            "ops": [self.numbers[op] for op in kernel.ops],
            "layers": list(self.trace.kernel_layers(kernel)),
            "loops": list(kernel.loops),
            "loop_stages": _pairs(kernel.loop_stages),
            "stage_ops": dict(sorted(kernel.stage_ops.items())),
            "llvm": list(kernel.llvm),
            "llvm_lines": _pairs(kernel.llvm_lines),
            "asm": [[i.address, i.text, i.loop_line] for i in kernel.asm],
        }


def _pairs(mapping: Mapping[int, Any]) -> list[list[Any]]:
    return [[line, mapping[line]] for line in sorted(mapping)]


def to_document(trace: Trace, *, timings: bool = False) -> dict[str, Any]:
    """Returns the trace as plain lists and dictionaries; with `timings`, including times, which
    vary.
    """
    return _Exporter(trace, timings=timings).document()


def write_json(trace: Trace, path: str | Path, *, timings: bool = False) -> None:
    """Writes the trace to a file, atomically.

    Errors: I063 if the file cannot be written.
    """
    text = json.dumps(to_document(trace, timings=timings), separators=(",", ":"))
    try:
        write_text(path, text + "\n")
    except OSError as error:
        raise InputError("I063", f"cannot write to {str(path)!r}: {reason_of(error)}") from None


# --- reading ---


@dataclass(frozen=True)
class ReadNode:
    """A node read from an export; `type` is text."""

    id: int
    span: Span
    type: str
    kind: str
    title: str
    memory: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ReadModule:
    """A stage's module read from an export."""

    text: str
    nodes: Sequence[ReadNode]
    line_of: Mapping[int, int] = field(default_factory=dict)
    node_at: Mapping[int, ReadNode] = field(default_factory=dict)


class ExportReader:
    """Reads the modules of an export for a `Trace`."""

    def __init__(
        self,
        eliminated: Sequence[tuple[str, str]] = (),
        notes: Sequence[Note] = (),
        places: Sequence[CodePlace] = (),
    ) -> None:
        self._eliminated = eliminated
        self._notes = notes
        self._places = places

    def eliminated(self, module: ReadModule) -> Sequence[tuple[str, str]]:
        """Returns the layers eliminated by the import."""
        return self._eliminated

    def notes(self, module: ReadModule) -> Sequence[Note]:
        """Returns the notes about layers."""
        return self._notes

    def places(self, module: ReadModule) -> Sequence[CodePlace]:
        """Returns where layers are called."""
        return self._places

    def nodes(self, module: ReadModule) -> Sequence[ReadNode]:
        """Returns every node."""
        return module.nodes

    def printed(self, module: ReadModule) -> ReadModule:
        """Returns the text and the nodes' lines."""
        return module

    def kind(self, node: Any) -> str:
        """Returns the node's kind."""
        return str(node.kind)

    def title(self, node: Any) -> str:
        """Returns the node's short name."""
        return str(node.title)

    def memory(self, node: Any) -> tuple[str, ...]:
        """Returns how the node refers to the memory of others."""
        return tuple(node.memory)


def from_document(document: Mapping[str, Any]) -> Trace:
    """Returns the trace in an export. It answers every query except `verify`.

    Errors: I074 for another format or version, or an incomplete document.
    """
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise InputError(
            "I074",
            f"expected a {FORMAT} of version {VERSION}, found "
            f"{document.get('format')!r} {document.get('version')!r}",
        )
    try:
        sources = [Source(la, op, fe, kind, out) for kind, la, op, fe, out in document["sources"]]
        stages: list[StageRecord] = []
        for stage in document["stages"]:
            stages.append(_read_stage(stage, stages, sources))
        kernels = [_read_kernel(k) for k in document["kernels"]]
        gone = [
            (str(layer["name"]), str(layer["into"][0]))
            for layer in document["layers"]
            if layer["fate"] == FateKind.IMPORTED.value
        ]
        notes = [
            Note(str(layer), str(text), None if error is None else float(error))
            for layer, text, error in document.get("notes", ())
        ]
        places = [
            CodePlace(str(layer), str(path), str(kind), str(file), int(line), str(code))
            for layer, path, kind, file, line, code in document.get("places", ())
        ]
        links = {
            n: [Link(old, new, LinkKind(kind)) for old, new, kind in stage["links"]]
            for n, stage in enumerate(document["stages"])
            if n and stage["changed"]
        }
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError("I074", f"the trace document is damaged: {error!r}") from error
    return Trace(stages, ExportReader(gone, notes, places), kernels, links=links)


def read_json(path: str | Path) -> Trace:
    """Returns the trace in a file written by `write_json`.

    Errors: I074 if the file does not contain a trace.
    """
    try:
        document = read_json_file(path)
    except (OSError, ValueError) as error:
        raise InputError("I074", f"cannot read the trace {path}: {reason_of(error)}") from error
    if not isinstance(document, dict):
        raise InputError("I074", f"{path} does not contain a trace")
    return from_document(document)


def _read_stage(
    stage: Mapping[str, Any], before: Sequence[StageRecord], sources: Sequence[Source]
) -> StageRecord:
    module = _read_module(stage, sources) if stage["changed"] else before[-1].module
    return StageRecord(
        name=stage["name"],
        module=module,
        lineage=Lineage() if before and stage["traced"] else None,
        seconds=stage.get("seconds", 0.0),
        remarks=tuple(Remark(*remark) for remark in stage["remarks"]),
        before=before[-1] if before else None,
        node_ids=_read_ids,
    )


def _read_ids(module: ReadModule) -> frozenset[int]:
    return frozenset(n.id for n in module.nodes)


def _read_module(stage: Mapping[str, Any], sources: Sequence[Source]) -> ReadModule:
    nodes, lines = [], {}
    for entry in stage["nodes"]:
        span = Span(sources[n] for n in entry["sources"])
        memory = tuple(entry.get("memory", ()))
        node = ReadNode(entry["id"], span, entry["type"], entry["kind"], entry["title"], memory)
        nodes.append(node)
        if entry["line"]:
            lines[entry["line"]] = node
    return ReadModule(stage["text"], nodes, {n.id: line for line, n in lines.items()}, lines)


def _read_kernel(kernel: Mapping[str, Any]) -> KernelRecord:
    return KernelRecord(
        name=kernel["name"],
        call=kernel["call"],
        ops=tuple(kernel["ops"]),
        loops=tuple(kernel["loops"]),
        loop_stages=dict(kernel["loop_stages"]),
        stage_ops=dict(kernel["stage_ops"]),
        llvm=tuple(kernel["llvm"]),
        llvm_lines=dict(kernel["llvm_lines"]),
        asm=tuple(InstructionRecord(*i) for i in kernel["asm"]),
    )
