"""Records the front page's example: each layer of a small network in every form that it takes.

The network is compiled and timed on the machine that builds the site. The page needs no server:
all rows, and the layers that each row belongs to, are in one JSON file.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.machine.target import host
from clew.trace.export import write_json


def network(folder: Path) -> Path:
    """Returns the file of a residual block: two convolutions with batch norm, and a sum."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes = []

    def normal(name: str, *shape: int, scale: float = 1.0, about: float = 0.0) -> str:
        weights[name] = rng.normal(about, scale, shape).astype("f4")
        return name

    def layer(op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def convolution(x: str, n: int) -> str:
        weight = normal(f"conv{n}.weight", 32, 32, 3, 3, scale=0.08)
        y = layer("Conv", [x, weight], f"conv{n}", pads=[1, 1, 1, 1])
        norms = [normal(f"bn{n}.{part}", 32, scale=0.2, about=1.0) for part in ("scale", "bias")]
        weights[f"bn{n}.mean"] = rng.normal(0, 0.2, 32).astype("f4")
        weights[f"bn{n}.var"] = rng.uniform(0.5, 1.5, 32).astype("f4")
        return layer("BatchNormalization", [y, *norms, f"bn{n}.mean", f"bn{n}.var"], f"bn{n}")

    y = layer("Relu", [convolution("x", 1)], "relu1")
    y = layer("Add", [convolution(y, 2), "x"], "add")
    y = layer("Relu", [y], "relu2")
    (last,) = (node for node in nodes if node.name == "relu2")
    last.output[0] = "y"
    shape = [1, 32, 56, 56]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "block.onnx")
    return folder / "block.onnx"


def record() -> dict[str, Any]:
    """Returns the rows of each pane: text, and the positions of the layers a row belongs to."""
    x = np.random.default_rng(1).normal(0, 1, (1, 32, 56, 56)).astype("f4")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled = clew.compile(network(folder), threads=1)
        compiled(x)
        profile = compiled.profile(x)
        write_json(compiled.trace, folder / "trace.json")
        trace = json.loads((folder / "trace.json").read_text())
    rows = {row.layer: row for row in profile.layers}
    named = [rows[layer["name"]] for layer in trace["layers"]]
    layers = [{"name": row.layer, "type": row.op, "us": round(row.ns / 1e3, 2)} for row in named]
    times = {kernel.name: kernel.ns / 1e3 for kernel in profile.kernels}
    shown = panes(trace, times)
    return {"machine": f"{host().cpu}, one thread", "layers": layers, "panes": shown}


Row = dict[str, Any]


def panes(trace: Mapping[str, Any], times_us: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns the panes from the imported graph to the instructions, each with its rows.

    A row of a kernel has the kernel's time, so that the page shows the kernels that matter first.
    """
    changed = [stage for stage in trace["stages"] if stage["changed"]]
    position = {layer["name"]: n for n, layer in enumerate(trace["layers"])}
    origins = [[position[layer]] if layer in position else [] for _, layer, *_ in trace["sources"]]

    def layers_of(nodes: Iterable[Mapping[str, Any]]) -> list[int]:
        return sorted({n for node in nodes for source in node["sources"] for n in origins[source]})

    def graph(stage: Mapping[str, Any]) -> list[Row]:
        at = defaultdict(list)
        for node in stage["nodes"]:
            at[node["line"]].append(node)
        lines = enumerate(stage["text"].splitlines(), 1)
        return [
            {"text": text, "layers": layers_of(at[n]), "us": max(map(us, at[n]), default=0.0)}
            for n, text in lines
        ]

    nodes = {node["id"]: node for node in changed[-1]["nodes"]}
    us_of = {op: times_us.get(k["name"], 0.0) for k in trace["kernels"] for op in k["ops"]}

    def us(node: Mapping[str, Any]) -> float:
        return us_of.get(node["id"], 0.0)

    loops: list[Row] = []
    code: list[Row] = []
    for kernel in trace["kernels"]:
        whole = layers_of(nodes[op] for op in kernel["ops"])
        time = times_us.get(kernel["name"], 0.0)
        of_line: dict[int, set[str]] = defaultdict(set)
        for line, stage in kernel["loop_stages"]:
            of_line[line].add(stage)
        first = len(loops)
        for n, text in enumerate(kernel["loops"], 1):
            ops = {kernel["ops"][kernel["stage_ops"][stage]] for stage in of_line[n]}
            layers = layers_of(nodes[op] for op in ops) or whole
            loops.append({"text": text, "layers": layers, "us": time})
        code.append({"text": f"{kernel['name']}:", "layers": whole, "us": time})
        for address, text, line in kernel["asm"]:
            row: Row = {"text": f"{address:5x}  {text}", "layers": whole, "us": time}
            if line:
                row |= {"loop": first + line - 1, "layers": loops[first + line - 1]["layers"]}
            code.append(row)
    return [
        {"title": "Model", "rows": graph(changed[0])},
        {"title": "Kernels", "rows": graph(changed[-1])},
        {"title": "Loops", "rows": loops},
        {"title": "Instructions", "rows": code},
    ]
