"""The call graph of a file's subgraphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clew.frontends.tflite.file.model import File, GraphInfo, OperatorInfo

CALLS: Final = {
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
    "CALL": ("subgraph",),
    "STABLEHLO_CASE": ("branch_subgraph_indices",),
    "STABLEHLO_COMPOSITE": ("decomposition_subgraph_index",),
}
"""The options with the graphs that an operator runs in each call."""


def called(file: File, number: int) -> Iterator[GraphInfo]:
    """Yields a subgraph and all subgraphs that it runs in each call."""
    seen, pending = {number}, [number]
    while pending:
        graph = file.graphs[pending.pop()]
        yield graph
        for operator in graph.operators:
            for _, inner in run_by(operator):
                if 0 <= inner < len(file.graphs) and inner not in seen:
                    seen.add(inner)
                    pending.append(inner)


def run_by(operator: OperatorInfo) -> Iterator[tuple[str, int]]:
    """Yields the subgraphs that an operator runs in each call: what each is, and its number."""
    for option in CALLS.get(operator.op, ()):
        numbers = np.atleast_1d(operator.options.get(option, 0)).tolist()
        what = option.partition("_subgraph")[0]
        for n, number in enumerate(numbers):
            yield what if len(numbers) == 1 else f"{what} {n}", int(number)
