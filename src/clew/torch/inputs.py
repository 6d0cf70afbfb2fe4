"""Inputs of a Dynamo graph: their names in the user's code, and which of them are weights."""

from __future__ import annotations

import re
from typing import Final

from torch import fx

_STEP: Final = re.compile(r"""\[['"]?([^'"\]]+)['"]?\]|\.(\w+)|^(\w+)""")
_HIDDEN: Final = ("L", "G", "self", "_modules", "_parameters", "_buffers")


def inputs_of(module: fx.GraphModule) -> tuple[list[str], set[int]]:
    """Returns the names of a graph's inputs, each once, and the positions of parameters and
    buffers.
    """
    names: list[str] = []
    weights: set[int] = set()
    used: dict[str, int] = {}
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        facts = node.meta.get("tensor_dict") or {}
        if facts.get("_dynamo_static_input_type") is not None:
            weights.add(position)
        name = _path(node)
        number = used[name] = used.get(name, -1) + 1
        names.append(f"{name}_{number}" if number else name)
    return names, weights


def _path(node: fx.Node) -> str:
    """Returns a path such as `encoder.layer.0.weight` for `L['self']._modules['encoder']...`."""
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return str(node.name)
    text = source.name if isinstance(source.name, str) else source.name()
    parts = ["".join(match.groups("")) for match in _STEP.finditer(text)]
    shown = [p for p in parts if p not in _HIDDEN]
    return ".".join(shown) or str(node.name)
