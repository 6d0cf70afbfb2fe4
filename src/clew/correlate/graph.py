"""The executor of a compiled model as data, and what can be asked of it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clew.correlate.executor import KERNEL
from clew.correlate.text import summary, typed
from clew.support.errors import InputError
from clew.support.files import reason_of
from clew.support.shown import Shown, counted
from clew.support.writing import write_text


@dataclass(frozen=True, repr=False)
class ExecutorGraph(Shown):
    """The executor of a compiled model as data: `document` is what `graph.json` holds."""

    document: Mapping[str, Any]

    def _about(self) -> str:
        nodes, kernels = len(self.nodes), len(self.kernels)
        return f"of {counted(nodes, 'node')}, {counted(kernels, 'kernel')}"

    def to_json(self) -> Mapping[str, Any]:
        """Returns the document."""
        return self.document

    def write(self, path: str | Path) -> None:
        """Writes the document to a file.

        Errors: I120 when the file cannot be written.
        """
        text = json.dumps(self.document, separators=(",", ":"), allow_nan=False)
        try:
            write_text(path, text + "\n")
        except OSError as error:
            raise InputError("I120", f"cannot write to {str(path)!r}: {reason_of(error)}") from None

    @cached_property
    def nodes(self) -> dict[str, Mapping[str, Any]]:
        """Every node by name, those of branches and loops included."""
        graphs = [self.document, *self.document["graphs"]]
        return {node["name"]: node for graph in graphs for node in graph["nodes"]}

    @property
    def kernels(self) -> list[Mapping[str, Any]]:
        """The nodes that are kernels, in order."""
        return [n for n in self.nodes.values() if n["op"] == KERNEL]

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """The model's layers, each with what became of it and the nodes that work for it."""
        found: list[Mapping[str, Any]] = self.document["layers"]
        return found

    def node(self, name: str) -> Mapping[str, Any]:
        """Returns a node.

        Errors: I121 for a name that no node has.
        """
        found = self.nodes.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self.nodes, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(close)}?" if close else "see .nodes"
            raise InputError("I121", f"the executor has no node {name!r}", hint=hint)
        return found

    def layer(self, name: str) -> Mapping[str, Any]:
        """Returns a layer.

        Errors: I070 for a layer the model lacks, with similar names.
        """
        found = {layer["name"]: layer for layer in self.layers}
        if name in found:
            return found[name]
        close = difflib.get_close_matches(name, found, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else "see .layers"
        raise InputError("I070", f"the model has no layer {name!r}", hint=hint)

    def kernel(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the facts of the kernel that a node runs. Asserts that it runs one."""
        facts: Mapping[str, Any] = self.document["kernels"][node["attrs"]["kernel"]]
        return facts

    def operators(self, node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Returns the facts of a node's operators in order."""
        rows = self.document["operators"]
        return [rows[o["operator"]] for o in node.get("ops", ())]

    def summary(self, operator: Mapping[str, Any]) -> str:
        """Returns an operator's facts in a few words: `conv2d 3x3 /2 3→16 NCHW→NCHW16c f32`."""
        return summary(operator)

    def typed(self, value: Mapping[str, Any]) -> str:
        """Returns a value's type as the text form has it: `f32[1, 1, 8, 8, 16]:NCHW16c`."""
        return typed(value)

    def history(self, operator: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Returns for one of a node's `ops` the stages that changed it, and what it was then."""
        rows, stages = self.document["operators"], self.document["stages"]
        return [
            (stages[c["stage"]], [rows[r] for r in c["operators"]])
            for c in operator.get("history", ())
        ]
