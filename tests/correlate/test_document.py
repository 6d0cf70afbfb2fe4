"""`graph.json`: its schema, and that it says what a run does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import json_schema
import numpy as np
import pytest

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.build.observe import Ran, observe
from clew.correlate import ExecutorGraph, graph_schema
from clew.correlate.executor import executor_graphs
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.support.errors import InputError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

Case = tuple[CompiledModel, list[Any]]


def layer(name: str, op: str, *args: Expr, **attrs: Any) -> Call:
    with building(Span([Source(name, op, "test", output=0)])):
        return get_op(op)(*args, **attrs)


def _module(*results: Expr, x: Var) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    return Module({"main": Function([x], Tuple(results), {"outputs": names})})


def integers() -> Case:
    """A convolution of 8 bits, requantized."""
    rng = np.random.default_rng(0)
    x = Var("x", TensorType((1, 16, 9, 9), "u8"))
    weight = Constant(rng.integers(-9, 9, (32, 16, 3, 3)).astype(np.int8), name="w")
    conv = layer("conv", "nn.conv2d", x, weight, padding=(1, 1, 1, 1))
    wide = layer("wide", "cast", conv, dtype="f32")
    module = _module(layer("scale", "multiply", wide, Constant(np.float32(0.01))), x=x)
    value = rng.integers(0, 9, (1, 16, 9, 9)).astype(np.uint8)
    return clew.compile(module, threads=1), [value]


def host_steps() -> Case:
    """Rows that are positive somewhere: how many, a run tells."""
    x = Var("x", TensorType((6, 4), "f32"))
    most = layer("most", "max", layer("twice", "add", x, x), axes=(1,), keepdims=False)
    rows = layer("rows", "nonzero", layer("where", "greater", most, Constant(np.float32(1.0))))
    picked = layer("picked", "nonzero", layer("square", "multiply", x, x))
    module = _module(rows, picked, layer("flat", "reshape", most, shape=(2, 3)), x=x)
    value = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    return clew.compile(module, threads=1), [value]


def _of_zoo(name: str, **options: Any) -> Callable[[], Case]:
    sizes = options.pop("sizes", {})

    def make() -> Case:
        compiled = clew.compile(zoo.path(name), threads=1, **options)
        return compiled, list(zoo.inputs(name, **sizes).values())

    return make


CASES: dict[str, Callable[[], Case]] = {
    "residual": _of_zoo("resnet_tiny"),
    "bf16": _of_zoo("resnet_tiny", precision="bf16"),
    "unfused": _of_zoo("resnet_tiny", passes=clew.Passes(fuse=False)),
    "attention": _of_zoo("llama_tiny"),
    "symbolic": _of_zoo("bert_tiny_dynamic", sizes={"batch": 1, "sequence": 7}),
    "joined": _of_zoo("light_squeezenet"),
    "branches": _of_zoo("if_branches"),
    "loop": _of_zoo("loop_recurrence"),
    "integers": integers,
    "host": host_steps,
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    compiled, inputs = CASES[request.param]()
    compiled(*inputs)
    return compiled, inputs


@pytest.fixture(scope="module")
def graph(case: Case) -> ExecutorGraph:
    made: ExecutorGraph = case[0].graph()
    return made


def test_it_fits_its_schema(graph: ExecutorGraph) -> None:
    schema = graph_schema()
    document = json.loads(json.dumps(graph.document, allow_nan=False))
    assert document == graph.document
    assert list(itertools.islice(json_schema.errors(document, schema, schema, "$"), 5)) == []


def test_references_hold(graph: ExecutorGraph) -> None:
    document = graph.document
    for part in [document, *document["graphs"]]:
        nodes, rows, attrs = part["nodes"], part["node_row_ptr"], part["attrs"]
        assert rows[0] == 0
        counts = [n["attrs"]["num_outputs"] for n in nodes]
        assert [b - a for a, b in itertools.pairwise(rows)] == counts
        assert {len(v) for v in attrs.values()} == {rows[-1]}
        named = [n for n, node in enumerate(nodes) if node["op"] in ("input", "param")]
        assert part["arg_nodes"] == named
        for position, node in enumerate(nodes):
            assert len(node["inputs"]) == node["attrs"]["num_inputs"]
            assert all(n < position and out < counts[n] for n, out, _ in node["inputs"])
            assert all(0 <= g < len(document["graphs"]) for g in node.get("graphs", {}).values())
        assert all(n < len(nodes) and out < counts[n] for n, out, _ in part["heads"])
        for size, place in zip(attrs["bytes"], attrs["storage"], strict=True):
            if place["kind"] == "arena":
                end = place["offset_bytes"] + size
                assert 0 <= end <= document["segments"][place["segment"]]["arena_bytes"]
    names = [n["name"] for p in [document, *document["graphs"]] for n in p["nodes"]]
    assert len(names) == len(set(names)) == len(graph.nodes)


def test_every_kernel_is_there_once(case: Case, graph: ExecutorGraph) -> None:
    compiled, _ = case
    kernels = {k.name: k for k in compiled.kernels}
    assert {n["name"] for n in graph.kernels} == set(kernels)
    for node in graph.kernels:
        kernel = kernels[node["name"]]
        assert node["layers"] == list(kernel.layers)
        assert [o["op"] for o in graph.operators(node)] == list(kernel.ops)
        assert graph.kernel(node)["key"] == kernel.key
        assert graph.kernel(node)["rules"] == list(kernel.rules)


def test_every_layer_is_there(case: Case, graph: ExecutorGraph) -> None:
    trace = case[0].trace
    assert [la["name"] for la in graph.layers] == list(trace.layers)
    for found in graph.layers:
        fate = trace.layer(found["name"]).fate
        assert found["text"] == str(fate)
        kernels = [n for n in found["nodes"] if graph.node(n)["op"] == "kernel"]
        assert bool(kernels) == (fate.kind.value == "kernel")
        assert set(fate.into) <= set(kernels) or fate.kind.value != "kernel"


def test_history_ends_with_the_operator(graph: ExecutorGraph) -> None:
    stages = len(graph.document["stages"])
    for node in graph.nodes.values():
        for operator in node.get("ops", ()):
            history = operator["history"]
            assert history[-1]["operators"] == [operator["operator"]]
            since = [chapter["stage"] for chapter in history]
            assert since == sorted(set(since))
            assert since[-1] < stages
            forms = [chapter["operators"] for chapter in history]
            assert all(a != b for a, b in itertools.pairwise(forms))


def test_edges_are_what_a_run_passes_on(case: Case) -> None:
    compiled, inputs = case
    build = compiled.build
    made: dict[str, tuple[Any, ...]] = {}
    ran: list[Ran] = []
    observe(build, inputs, ran.append)
    made = {r.use.name: r.results for r in ran}
    operands = {r.use.name: r.operands for r in ran}
    checked = 0
    for graph in executor_graphs(build):
        for node in graph.nodes:
            if node.name not in operands:
                continue
            for entry, operand in zip(node.inputs, operands[node.name], strict=True):
                source = graph.nodes[entry.node]
                if source.name in made:
                    np.testing.assert_array_equal(made[source.name][entry.output], operand)
                    checked += 1
                elif isinstance(source.expr, Constant):
                    np.testing.assert_array_equal(source.expr.data, operand)
                    checked += 1
                elif source.op == "view":
                    below = graph.nodes[source.inputs[0].node]
                    place = source.storage[entry.output]
                    assert place.buffer == below.storage[source.inputs[0].output].buffer
    assert checked


def test_equal_compilations_give_equal_documents() -> None:
    first, second = (CASES["branches"]()[0].graph().document for _ in range(2))
    assert first == second


def test_a_convolution_through_the_stages() -> None:
    graph = CASES["residual"]()[0].graph()
    found = graph.layer("node_Conv_171")
    assert found["op"] == "Conv"
    node = graph.node(found["nodes"][0])
    use = next(o for o in node["ops"] if o["layers"] == ["node_Conv_171"])
    forms = [(stage, [f["op"] for f in forms]) for stage, forms in graph.history(use)]
    assert forms[0] == ("import", ["nn.conv2d"])
    assert forms[-1][0] != "import"
    layouts = [forms[0]["layout"] for _, forms in graph.history(use)]
    assert layouts[0] == "NCHW"
    assert layouts[-1].startswith("NCHW")
    assert layouts[-1].endswith("c")


def test_joined_memory() -> None:
    graph = CASES["joined"]()[0].graph()
    joins = [n for n in graph.nodes.values() if n["op"] == "join"]
    assert joins
    attrs, rows = graph.document["attrs"], graph.document["node_row_ptr"]
    nodes = graph.document["nodes"]
    for node in joins:
        own = attrs["storage"][rows[nodes.index(node)]]
        parts = [attrs["storage"][rows[n] + out] for n, out, _ in node["inputs"]]
        sizes = [attrs["bytes"][rows[n] + out] for n, out, _ in node["inputs"]]
        ends = itertools.accumulate(sizes, initial=own.get("offset_bytes", 0))
        assert [p.get("offset_bytes", 0) for p in parts] == list(ends)[:-1]


def test_branches_are_graphs() -> None:
    graph = CASES["branches"]()[0].graph()
    (node,) = (n for n in graph.nodes.values() if n["op"] == "if")
    parts: Mapping[str, Any] = {r: graph.document["graphs"][n] for r, n in node["graphs"].items()}
    assert {r: p["role"] for r, p in parts.items()} == {"then": "then", "else": "else"}
    assert all(p["parent"] == node["name"] for p in parts.values())
    assert [n["name"] for n in parts["then"]["nodes"] if n["op"] == "kernel"] == ["add_relu"]


def test_without_a_trace() -> None:
    graph = clew.compile(
        zoo.path("if_branches"), threads=1, diagnostics=clew.Diagnostics(trace=False)
    ).graph()
    assert graph.layer("then/add")["nodes"] == ["add_relu"]
    assert not any("history" in o for n in graph.nodes.values() for o in n.get("ops", ()))


def test_errors(tmp_path: Path) -> None:
    compiled = clew.compile(zoo.path("bert_tiny_dynamic"), threads=1)
    with pytest.raises(InputError, match="I044"):
        compiled.graph()
    graph = CASES["branches"]()[0].graph()
    with pytest.raises(InputError, match="I120"):
        graph.write(tmp_path / "no" / "graph.json")
    with pytest.raises(InputError, match=r"(?s)I121.*add_relu"):
        graph.node("add_rel")
    with pytest.raises(InputError, match=r"(?s)I070.*then/add"):
        graph.layer("then/ad")
    graph.write(tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text()) == graph.document
