"""The executor of a compiled model as data, with queries, and one-line summaries of operators:
`conv2d 3x3 /2 3→16 NCHW→NCHW16c f32`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from clew.ops.registry import get_op
from clew.support.errors import GraphTypeError, InputError
from clew.support.files import reason_of
from clew.support.shown import Shown, counted
from clew.support.writing import write_text

Facts = Mapping[str, Any]
KERNEL: Final = "kernel"
"""The `op` of a node that runs a kernel."""
# Attributes that the summary shows in another form.
_SAID = frozenset(("strides", "padding", "dilation", "groups", "kernel", "channels", "units"))
_LONGEST = 24


@dataclass(frozen=True, repr=False)
class ExecutorGraph(Shown):
    """The executor of a compiled model as data: `document` is the content of `graph.json`."""

    document: Mapping[str, Any]

    def _about(self) -> str:
        nodes, kernels = len(self.nodes), len(self.kernels)
        return f"of {counted(nodes, 'node')}, {counted(kernels, 'kernel')}"

    def to_json(self) -> Mapping[str, Any]:
        """Returns the document."""
        return self.document

    def write(self, path: str | Path) -> None:
        """Writes the document to a file.

        Errors: I120 if the file cannot be written.
        """
        text = json.dumps(self.document, separators=(",", ":"), allow_nan=False)
        try:
            write_text(path, text + "\n")
        except OSError as error:
            raise InputError("I120", f"cannot write to {str(path)!r}: {reason_of(error)}") from None

    @cached_property
    def nodes(self) -> dict[str, Mapping[str, Any]]:
        """Every node by name, including those of branches and loops."""
        graphs = [self.document, *self.document["graphs"]]
        return {node["name"]: node for graph in graphs for node in graph["nodes"]}

    @property
    def kernels(self) -> list[Mapping[str, Any]]:
        """The nodes that run kernels, in order."""
        return [n for n in self.nodes.values() if n["op"] == KERNEL]

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """The model's layers, each with its fate and the nodes that compute it."""
        found: list[Mapping[str, Any]] = self.document["layers"]
        return found

    def node(self, name: str) -> Mapping[str, Any]:
        """Returns a node.

        Errors: I121 if no node has the name.
        """
        found = self.nodes.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self.nodes, n=3, cutoff=0.5)
            hint = f"did you mean {', '.join(close)}?" if close else "see .nodes"
            raise InputError("I121", f"the executor has no node {name!r}", hint=hint)
        return found

    def layer(self, name: str) -> Mapping[str, Any]:
        """Returns a layer.

        Errors: I070 if the model lacks the layer; the hint gives similar names.
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
        """Returns a one-line summary of an operator: `conv2d 3x3 /2 3→16 NCHW→NCHW16c f32`."""
        return summary(operator)

    def typed(self, value: Mapping[str, Any]) -> str:
        """Returns a value's type in the text form: `f32[1, 1, 8, 8, 16]:NCHW16c`."""
        return typed(value)

    def history(self, operator: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
        """Returns the stages that changed an operator of a node, each with its form there."""
        rows, stages = self.document["operators"], self.document["stages"]
        return [
            (stages[c["stage"]], [rows[r] for r in c["operators"]])
            for c in operator.get("history", ())
        ]


def summary(facts: Facts) -> str:
    """Returns an operator's name and distinguishing facts on one line."""
    words = [str(facts["op"]).rpartition(".")[2], *_window(facts), *_product(facts)]
    if "kernel" in facts and "m" in facts and "channels_in" in facts:
        words.append(f"{facts['channels_in']}→{facts['channels_out']}")
    return " ".join([*words, *_attributes(facts), *_layouts(facts), *_dtypes(facts)])


def typed(facts: Facts) -> str:
    """Returns a value's type in the text form: `f32[1, 64]:NC`."""
    if facts.get("shape") is None:  # no tensor, or one of unknown rank
        return str(facts.get("type") or facts.get("dtype") or "tuple")
    layout = f":{facts['layout']}" if facts.get("layout") else ""
    return f"{facts['dtype']}[{', '.join(map(str, facts['shape']))}]{layout}"


def _window(facts: Facts) -> list[str]:
    if "kernel" not in facts:
        return []
    words = [_by(facts["kernel"])]
    if any(s != 1 for s in facts.get("strides", ())):
        words.append(f"/{_short(facts['strides'])}")
    if any(p != 0 for p in facts.get("padding", ())):
        words.append(f"pad {_short(facts['padding'])}")
    if any(d != 1 for d in facts.get("dilation", ())):
        words.append(f"dilated {_short(facts['dilation'])}")
    if facts.get("groups", 1) != 1:
        words.append(f"in {facts['groups']} groups")
    return words


def _product(facts: Facts) -> list[str]:
    """Returns rows, columns and depth of a product that is not a convolution."""
    if "kernel" in facts or "m" not in facts:
        return []
    batch = [f"{facts['batch']} of"] if facts["batch"] != 1 else []
    return [*batch, _by([facts["m"], facts["n"], facts["k"]])]


def _attributes(facts: Facts) -> list[str]:
    """Returns the attributes that differ from their defaults and are not shown in another form."""
    try:
        defaults: Mapping[str, Any] = get_op(facts["op"]).defaults
    except GraphTypeError:
        defaults = {}
    words = []
    for name, value in facts.get("attrs", {}).items():
        default = defaults.get(name, ...)
        plain = list(default) if isinstance(default, tuple) else default
        if name in _SAID and ("kernel" in facts or "m" in facts):
            continue
        if value == plain or name.endswith(("layout", "dtype")):
            continue
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        text = f"{name}={shown}".replace(" ", "")
        words.append(text if len(text) <= _LONGEST else f"{name}=…")
    return words


def _layouts(facts: Facts) -> list[str]:
    inputs = facts.get("inputs", ())
    before, after = (inputs[0].get("layout", "") if inputs else ""), facts.get("layout", "")
    return [after if before in ("", after) else f"{before}→{after}"] if after else []


def _dtypes(facts: Facts) -> list[str]:
    """Returns the dtype of the result, and that of the operands if it differs."""
    after = facts.get("dtype")
    inputs = [i.get("dtype") for i in facts.get("inputs", ())]
    read = list(dict.fromkeys(d for d in inputs if d))
    if not after:
        return []
    return [after if not read or read == [after] else f"{','.join(read)}→{after}"]


def _short(values: Sequence[Any]) -> str:
    """Returns one number if all are equal, else all of them."""
    return str(values[0]) if len(set(map(str, values))) == 1 else ",".join(map(str, values))


def _by(sizes: Sequence[Any]) -> str:
    return "x".join(map(str, sizes))
