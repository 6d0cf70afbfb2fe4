"""The layout of ONNX Runtime's optimized convolutions: channels in blocks, innermost.

Models that were saved at the optimization level "all" hold weights in it. The size of a block
depends on the CPU of the machine that saved the model; the file does not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from clew.frontends.onnx.contrib.schemas import NCHWC
from clew.frontends.onnx.file.survey import subgraphs
from clew.machine.target import host

_NARROW: Final = 8
_WIDE: Final = 16


def channel_block(graph: GraphProto) -> int:
    """Returns the number of channels in a block: 8 or 16.

    The sizes of the weights often determine it. If they fit both, it is ONNX Runtime's choice on
    this machine; ONNX Runtime, too, runs such a model only on the kind of machine that saved it.
    """
    weights = {tensor.name: tuple(tensor.dims) for g in _graphs(graph) for tensor in g.initializer}
    made: dict[str, int] = {}
    for node in _nodes(graph):
        if node.op_type == "Conv" and len(node.input) > 1:
            sizes = weights.get(node.input[1], ())
            if len(sizes) != 4:
                continue
            outer, inner = sizes[:2]
            if outer % _WIDE or (inner > _WIDE and inner % _WIDE):
                return _NARROW
            if _NARROW < inner < _WIDE:
                return _WIDE
            made.update(dict.fromkeys(node.output, outer))
        elif node.op_type == "ReorderOutput" and node.input and node.input[0] in made:
            channels = next((a.i for a in node.attribute if a.name == "channels"), 0)
            if 0 < channels <= made[node.input[0]] - _NARROW:
                return _WIDE
    machine = host()
    wide = machine.vector_lanes("f32") >= _WIDE or "aarch64" in machine.triple
    return _WIDE if wide else _NARROW


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    stack = [graph]
    while stack:
        found = stack.pop()
        yield found
        stack += [inner for node in found.node for _, inner in subgraphs(node)]


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for found in _graphs(graph):
        yield from (node for node in found.node if node.domain == NCHWC)


def plain_filter(data: NDArray[Any], block: int, *, both: bool) -> NDArray[Any]:
    """Returns a weight [O, I, H, W] whose elements are in the order [O / block, I, H, W, block] or,
    with `both`, [O / block, I / block, H, W, block, block], the outputs last.

    Raises ValueError if the sizes are not multiples of the block.
    """
    outer, inner, height, width = data.shape
    if not both:
        parts = data.reshape(outer // block, inner, height, width, block)
        return np.ascontiguousarray(parts.transpose(0, 4, 1, 2, 3)).reshape(data.shape)
    parts = data.reshape(outer // block, inner // block, height, width, block, block)
    return np.ascontiguousarray(parts.transpose(0, 5, 1, 4, 2, 3)).reshape(data.shape)
