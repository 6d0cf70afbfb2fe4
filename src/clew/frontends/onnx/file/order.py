"""Sorts a graph's nodes so that values are defined before they are used."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from onnx import GraphProto, NodeProto

from clew.frontends.names import display, listing
from clew.frontends.onnx.file.survey import subgraphs
from clew.support.errors import ModelError


def uses_of(node: NodeProto) -> set[str]:
    """Returns the names that a node uses, including outside values of its subgraphs."""
    names = {name for name in node.input if name}
    for _, graph in subgraphs(node):
        names |= _free_names(graph)
    return names


def _free_names(graph: GraphProto) -> set[str]:
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(sparse.values.name for sparse in graph.sparse_initializer)
    used = {value.name for value in graph.output}
    for node in graph.node:
        used |= uses_of(node)
        defined.update(node.output)
    return used - defined


def in_order(
    nodes: Sequence[NodeProto], defined: Collection[str] = ()
) -> list[tuple[int, NodeProto]]:
    """Returns the nodes with their positions, definitions before uses, otherwise in the file's
    order.

    `defined` are the values that exist before the graph.

    Errors: M003 if they form a cycle, M010 if a value is defined twice.
    """
    nodes = list(nodes)
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (producer.setdefault(name, index) != index or name in defined):
                raise ModelError(
                    "M010",
                    f"value {display(name)!r} is defined twice",
                    layer=display(node.name or f"{node.op_type}_{index}"),
                )
        if len(set(filter(None, node.output))) != sum(map(bool, node.output)):
            raise ModelError("M010", f"{display(node.op_type)} defines one value twice")
    waits = [{producer[n] for n in uses_of(node) if n in producer} for node in nodes]
    if all(all(before < index for before in w) for index, w in enumerate(waits)):
        return list(enumerate(nodes))
    return [(index, nodes[index]) for index in _sorted(waits, nodes)]


def _sorted(waits: list[set[int]], nodes: Sequence[NodeProto]) -> list[int]:
    users: list[list[int]] = [[] for _ in waits]
    missing = [len(w) for w in waits]
    for index, before in enumerate(waits):
        for other in before:
            users[other].append(index)
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    if len(order) < len(waits):
        stuck = [nodes[i].name or f"{nodes[i].op_type}_{i}" for i, m in enumerate(missing) if m]
        raise ModelError(
            "M003",
            f"the graph has a cycle that contains or feeds {listing(stuck)}",
            layer=display(stuck[0]),
        )
    return order
