"""`clew correlate`: the executor's nodes, with their operators at each stage and their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from clew.cli import options as opt
from clew.cli.options import Compiling, compile_model, compiling, model_inputs, refuse_saved
from clew.cli.output import emit_json, note, stdout
from clew.support.shown import counted
from clew.support.tables import table

if TYPE_CHECKING:
    from clew.correlate import ExecutorGraph

Facts = Mapping[str, Any]
_MOST_LAYERS = 3


@compiling
def correlate(
    model: opt.Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write graph.json to."),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="Show a node: its operators at each stage that changed them.",
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", metavar="NAME", help="Show a layer's operators, node by node."),
    ] = None,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """List kernels, views and host steps of the executor, with their operators and layers."""
    refuse_saved(model, "a saved model has no graph")
    if kernel is not None and layer is not None:
        raise typer.BadParameter("--kernel and --layer are mutually exclusive")
    compiled = compile_model(model, how)
    if compiled.model.is_symbolic:
        compiled.model.run(model_inputs(compiled.model, inputs, random, seed))
    graph = compiled.model.graph()
    if output is not None:
        graph.write(output)
        note(f"written to {output}")
    if kernel is not None:
        _emit(_node_document(graph, graph.node(kernel)), _node(graph, graph.node(kernel)), json)
    elif layer is not None:
        _emit(*_layer(graph, graph.layer(layer)), json)
    elif output is None:
        _emit(graph.document, _nodes(graph), json)


def _emit(document: Any, shown: RenderableType, json: bool) -> None:
    if json:
        emit_json(document)
    else:
        stdout().print(shown)


# --- all nodes ---


def _nodes(graph: ExecutorGraph) -> RenderableType:
    made = table("#", "node", "operators", "result", "where", "layers", right=("#",))
    for number, part in enumerate([graph.document, *graph.document["graphs"]]):
        if number:
            made.add_row("", Text(f"in {part['parent']} ({part['role']}):", style="cyan"))
        rows, attrs = part["node_row_ptr"], part["attrs"]
        for position, node in enumerate(part["nodes"]):
            if node["op"] == "param":
                continue
            entries = range(rows[position], rows[position + 1])
            types = [{k: attrs[k][e] for k in ("shape", "dtype", "layout")} for e in entries]
            made.add_row(
                str(position),
                Text(node["name"]),
                Text("\n".join(_done(graph, node))),
                Text("\n".join(map(graph.typed, types))),
                Text("\n".join(_where(attrs["storage"][e]) for e in entries)),
                Text(_some(node.get("layers", ()))),
            )
    document = graph.document
    arena = sum(s["arena_bytes"] for s in document["segments"])
    constants = sum(s["constant_bytes"] for s in document["segments"])
    kernels = len(graph.kernels)
    foot = (
        f"{counted(kernels, 'kernel')} ({len(document['kernels'])} distinct), "
        f"arena {arena / 1e3:.0f} kB, constants {constants / 1e3:.0f} kB"
    )
    return Group(made, Text(foot, style="dim"))


def _done(graph: ExecutorGraph, node: Facts) -> list[str]:
    operators = graph.operators(node)
    return [graph.summary(o) for o in operators] if operators else [node["op"]]


def _where(storage: Facts) -> str:
    place = str(storage["kind"])
    if "segment" in storage and place != "arena":
        place += f" {storage['index']}"
    if "offset_bytes" in storage:
        place += f" +{storage['offset_bytes']}"
    return place


def _some(layers: Sequence[str]) -> str:
    more = len(layers) - _MOST_LAYERS
    return ", ".join(layers[:_MOST_LAYERS]) + (f" and {more} more" if more > 0 else "")


# --- one node ---


def _node_document(graph: ExecutorGraph, node: Facts, layer: str | None = None) -> Any:
    """Returns the `--json` output for a node: its document, with table rows inlined."""
    operators = [o for o in node.get("ops", ()) if layer is None or layer in o["layers"]]
    document: dict[str, Any] = {
        **node,
        "ops": [
            {
                "layers": operator["layers"],
                "operator": graph.document["operators"][operator["operator"]],
                "history": [
                    {"stage": stage, "operators": list(forms)}
                    for stage, forms in graph.history(operator)
                ],
            }
            for operator in operators
        ],
    }
    if "kernel" in node["attrs"]:
        document["kernel"] = graph.kernel(node)
    return document


def _node(graph: ExecutorGraph, node: Facts, layer: str | None = None) -> RenderableType:
    parts: list[RenderableType] = [
        Text.assemble((node["name"], "bold"), f": {', '.join(node.get('layers', ()))}")
    ]
    if "kernel" in node["attrs"]:
        parts.append(Text(_kernel_line(graph.kernel(node)), style="dim"))
    made = table("operator", "since", "form")
    for number, operator in enumerate(node.get("ops", ()), 1):
        if layer is not None and layer not in operator["layers"]:
            continue
        name = graph.document["operators"][operator["operator"]]["op"]
        head = f"{number} {name}"
        for stage, forms in graph.history(operator):
            made.add_row(Text(head), Text(stage), Text("\n".join(map(graph.summary, forms))))
            head = ""
    return Group(*parts, made)


def _kernel_line(kernel: Facts) -> str:
    phases = ", ".join(f"{p['grid']}x{p['lines']}" for p in kernel["phases"])
    return (
        f"rule {', '.join(kernel['rules'])}; {kernel['flops'] / 1e6:.3g} MFLOP, "
        f"{kernel['bytes'] / 1e3:.3g} kB; grid {phases}; "
        f"{kernel['code_bytes'] / 1e3:.1f} kB of code"
    )


def _layer(graph: ExecutorGraph, layer: Facts) -> tuple[Any, RenderableType]:
    name = layer["name"]
    nodes = [graph.nodes[n] for n in layer["nodes"]]
    parts: list[RenderableType] = [
        Text.assemble((name, "bold"), f" ({layer['op']}) " if layer["op"] else " ", layer["text"])
    ]
    for node in nodes:
        parts += [Text(), _node(graph, node, name)]
    document = {**layer, "nodes": [_node_document(graph, n, name) for n in nodes]}
    return document, Group(*parts)
