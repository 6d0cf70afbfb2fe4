"""`graph.json`: the executor's nodes, kernels, operators and layers as one JSON document.

`docs/correlate.md` describes it; `graph.schema.json` beside this file is its schema.
"""

from __future__ import annotations

import json
from typing import Any, Final

from clew.build.kernel import Kernel
from clew.build.result import Build
from clew.correlate.executor import (
    INPUT,
    PARAM,
    VIEW,
    Graph,
    Node,
    Storage,
    executor_graphs,
)
from clew.correlate.facts import Facts, describe_kernel, describe_type, plain, single_number
from clew.correlate.graph_json import ExecutorGraph
from clew.correlate.history import History, OperatorTable
from clew.ir.expr import Call, While
from clew.ir.visit import post_order
from clew.passes.fusion.views import view_offsets
from clew.serving.built_model import BuiltModel
from clew.support.system import package_text
from clew.trace.trace import Trace

FORMAT: Final = "clew-graph"
VERSION: Final = 1
# Facts about one use of a kernel; the other facts are common to all its uses.
_OF_USE: Final = ("name", "layers", "ops")

_LAYERS: Final = ("layer", "edit")


def graph_schema() -> dict[str, Any]:
    """Returns the JSON Schema of the document."""
    text = package_text("clew.correlate", "graph.schema.json")
    schema: dict[str, Any] = json.loads(text)
    return schema


def executor_graph(compiled: BuiltModel) -> ExecutorGraph:
    """Returns the executor of a compiled model with, for each node, its operators at each stage and
    the layers it serves. For a model with symbolic sizes, describes the last build.

    Without a trace (`Diagnostics(trace=False)`) operators have no history.

    Errors: I044 for a model with symbolic sizes that has not run yet.
    """
    build = compiled.build
    trace = compiled.trace if compiled.options.trace else None
    return ExecutorGraph(_Writer(compiled, build, trace).document())


class _Writer:
    def __init__(self, compiled: BuiltModel, build: Build, trace: Trace | None) -> None:
        self.compiled = compiled
        self.build = build
        self.trace = trace
        self.operators = OperatorTable(build)
        self.history = History(trace, self.operators) if trace is not None else None
        self.kernels: dict[str, int] = {}
        self.kernel_facts: list[Facts] = []
        self.storage_ids: dict[tuple[str, int, int], int] = {}
        self.nodes_of: dict[str, list[str]] = {}
        self.by_use = {k.name: k for k in compiled.kernels}

    def document(self) -> Facts:
        graphs = executor_graphs(self.build)
        self.numbers = {id(graph): n for n, graph in enumerate(graphs)}
        written = [self._graph(graph) for graph in graphs]
        options = self.compiled.options
        return {
            "format": FORMAT,
            "version": VERSION,
            "target": options.target.name,
            "threads": options.threads,
            "opt_level": options.opt_level,
            "inputs": list(self.compiled.input_names),
            "outputs": list(self.compiled.output_names),
            **written[0],
            "graphs": written[1:],
            "segments": [
                {
                    "steps": len(segment.plan.steps),
                    "arena_bytes": segment.plan.arena_bytes,
                    "constant_bytes": sum(c.nbytes for c in segment.plan.constants),
                }
                for segment in self.build.segments
            ],
            "stages": [stage.name for stage in self.build.stages],
            "kernels": self.kernel_facts,
            "operators": self.operators.rows,
            "layers": self._layers(),
        }

    def _graph(self, graph: Graph) -> Facts:
        rows, shapes, dtypes, layouts, sizes, places = [0], [], [], [], [], []
        ids: list[int] = []
        for node in graph.nodes:
            rows.append(rows[-1] + len(node.types))
            for type_, place in zip(node.types, node.storage, strict=True):
                facts = describe_type(type_)
                shapes.append(facts.get("shape"))
                dtypes.append(facts.get("dtype", facts.get("type")))
                layouts.append(facts.get("layout", ""))
                sizes.append(facts.get("bytes"))
                places.append(_place(place))
                ids.append(self._storage_id(place))
        facts = {
            "nodes": [self._node(node) for node in graph.nodes],
            "arg_nodes": [n for n, node in enumerate(graph.nodes) if node.op in (INPUT, PARAM)],
            "heads": [[e.node, e.output, 0] for e in graph.heads],
            "node_row_ptr": rows,
            "attrs": {
                "shape": shapes,
                "dtype": dtypes,
                "layout": layouts,
                "bytes": sizes,
                "storage_id": ids,
                "storage": places,
            },
        }
        return {"parent": graph.parent, "role": graph.role, **facts} if graph.parent else facts

    def _node(self, node: Node) -> Facts:
        facts: Facts = {
            "op": node.op,
            "name": node.name,
            "inputs": [[e.node, e.output, 0] for e in node.inputs],
            "attrs": self._attrs(node),
        }
        layers = self._layers_of(node)
        if layers:
            facts["layers"] = layers
            for layer in layers if node.op not in (INPUT, PARAM) else ():
                self.nodes_of.setdefault(layer, []).append(node.name)
        parameters = [s.layer for s in node.expr.span.sources if s.kind == "parameter"]
        if node.op == PARAM and parameters:
            facts["parameters"] = parameters
        if node.operators:
            facts["ops"] = [self._operator(call) for call in node.operators]
        if node.graphs:
            facts["graphs"] = {n: self.numbers[id(g)] - 1 for n, g in node.graphs.items()}
        return facts

    def _layers_of(self, node: Node) -> list[str]:
        if node.use is not None:
            return list(self.by_use[node.use.name].layers)
        return list(node.expr.layers)

    def _attrs(self, node: Node) -> Facts:
        """Returns the facts that depend on the node's kind."""
        attrs: Facts = {"num_inputs": len(node.inputs), "num_outputs": len(node.types)}
        expr = node.expr
        if node.use is not None:
            kernel = self.by_use[node.use.name]
            attrs["func_name"] = node.use.source.symbol
            attrs["kernel"] = self._kernel(kernel)
            attrs["segment"], attrs["step"] = node.use.segment, node.use.step
        elif node.op == VIEW:
            offsets = view_offsets(node.operators[0])
            attrs["offsets_elems"] = [self.build.settled(offset) for offset in offsets or ()]
        elif (number := single_number(expr)) is not None:
            attrs["value"] = plain(number)
        elif isinstance(expr, While):
            attrs["scans"] = expr.scans
            if expr.trips is not None:
                attrs["trips"] = plain(self.build.settled(expr.trips))
        return attrs

    def _kernel(self, kernel: Kernel) -> int:
        """Returns the row with the facts of a use's kernel; uses with the same code share it."""
        row = self.kernels.get(kernel.key)
        if row is None:
            row = self.kernels[kernel.key] = len(self.kernel_facts)
            facts = describe_kernel(kernel)
            self.kernel_facts.append({k: v for k, v in facts.items() if k not in _OF_USE})
        return row

    def _operator(self, call: Call) -> Facts:
        facts: Facts = {"operator": self.operators.row(call), "layers": list(call.layers)}
        if self.history is not None:
            facts["history"] = self.history.of(call)
        return facts

    def _storage_id(self, place: Storage) -> int:
        return self.storage_ids.setdefault(place.buffer, len(self.storage_ids))

    def _layers(self) -> list[Facts]:
        """Returns the layers in the order of the import, each with its fate."""
        first = self.build.stages[0].module
        nodes = post_order([f for _, f in first], into_functions=True)
        types = {s.layer: s.op for n in nodes for s in n.span.sources if s.kind in _LAYERS}
        if self.trace is None:
            return [{"name": n, "op": t, "nodes": self._nodes(n)} for n, t in types.items()]
        return [
            {
                "name": name,
                "op": types.get(name, ""),
                "fate": fate.kind.value,
                "text": str(fate),
                "nodes": self._nodes(name),
            }
            for name, fate in self.trace.accounted().items()
        ]

    def _nodes(self, layer: str) -> list[str]:
        return self.nodes_of.get(layer, [])


def _place(place: Storage) -> Facts:
    facts: Facts = {"kind": place.kind}
    if place.segment >= 0:
        facts["segment"] = place.segment
    if place.segment >= 0 or place.kind == INPUT:
        facts["index"] = place.number
    if place.offset or place.kind == "arena":
        facts["offset_bytes"] = place.offset
    return facts
