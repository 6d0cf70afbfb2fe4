"""The signatures of a file: each names a subgraph, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clew.frontends.names import display
from clew.frontends.tflite.file.model import File
from clew.support.errors import InputError
from clew.support.near import listed


@dataclass(frozen=True)
class Interface:
    """A subgraph, with the names of its inputs and outputs in order."""

    graph: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def interface_of(file: File, signature: str | None) -> Interface:
    """Returns a signature, or without one the first subgraph with the names of its tensors.

    Errors: I007 for a signature that the file does not have.
    """
    if signature is None:
        return _named(file, 0, {}, {})
    for each in file.signatures:
        if each.name == signature:
            return _named(file, each.graph, each.inputs, each.outputs)
    known = listed(display(each.name) for each in file.signatures)
    raise InputError(
        "I007",
        f"the model has no signature {display(signature)!r}",
        hint=f"the model's signatures are {known}" if known else "the model has no signatures",
    )


def _named(
    file: File, number: int, inputs: Mapping[int, str], outputs: Mapping[int, str]
) -> Interface:
    graph = file.graphs[number]
    return Interface(
        number,
        tuple(inputs.get(index, graph.tensors[index].name) for index in graph.inputs),
        tuple(outputs.get(index, graph.tensors[index].name) for index in graph.outputs),
    )
