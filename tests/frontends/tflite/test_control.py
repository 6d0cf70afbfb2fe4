"""Control flow, further graphs, variables and signatures of TFLite files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.tflite.loader import load
from clew.ir.expr import While
from clew.ir.interpret import interpret
from clew.ir.state import states_of
from clew.ir.visit import post_order
from clew.support.call_form import FORM
from clew.support.errors import InputError, ModelError, UnsupportedError
from tflite_files import Graph
from tflite_suite.flexbuffers import flexible

from .litert import draw, litert
from .stepping import agree

SHAPE = (3,)
Value = tuple[int, Sequence[int], str]


def binary(
    graph: Graph, op: str, a: int, b: int, dtype: str = "f32", shape: Sequence[int] = SHAPE
) -> int:
    """Returns the result of an operator on two tensors."""
    return graph.operator(op, [a, b], [(f"{op.lower()}_{a}_{b}", shape, dtype)])[0]


def handle(graph: Graph, name: str) -> int:
    """Returns a variable."""
    options = ("VarHandleOptions", {"container": "", "shared_name": name})
    return graph.operator("VAR_HANDLE", [], [(f"{name}_handle", (), "resource")], options)[0]


def read(graph: Graph, name: str, shape: Sequence[int] = SHAPE) -> int:
    """Returns the value of a variable."""
    inputs = [handle(graph, name)]
    return graph.operator("READ_VARIABLE", inputs, [(f"{name}_value", shape, "f32")])[0]


def assign(graph: Graph, name: str, value: int) -> None:
    """Assigns a variable."""
    graph.operator("ASSIGN_VARIABLE", [handle(graph, name), value], [])


def initialize(graph: Graph, name: str, value: np.ndarray) -> None:
    """Gives a variable its first value, as a sum."""
    once = graph.graph()
    assign(once, name, binary(once, "ADD", *[once.constant(value / 2)] * 2, shape=value.shape))
    options = ("CallOnceOptions", {"init_subgraph_index": once.number})
    graph.operator("CALL_ONCE", [], [], options)


def branches(graph: Graph, condition: int, inputs: Sequence[int], *bodies: Any) -> list[int]:
    """Returns the results of an IF, whose bodies return one tensor from a graph and its input."""
    numbers = []
    for body in bodies:
        inner = graph.graph()
        given = [inner.input(f"given_{n}", SHAPE, "f32") for n in range(len(inputs))]
        inner.outputs = [body(inner, *given)]
        numbers.append(inner.number)
    options = dict(zip(("then_subgraph_index", "else_subgraph_index"), numbers, strict=True))
    given = [condition, *inputs]
    return graph.operator("IF", given, [("chosen", SHAPE, "f32")], ("IfOptions", options))


def loop(
    graph: Graph,
    init: Sequence[Value],
    body: Callable[..., Sequence[int]],
    limit: int | None,
    name: str = "loop",
) -> list[int]:
    """Returns the states after a WHILE with a counter; without a limit, the first state has it.
    `body` returns the next states from a graph and the states.
    """
    test, inner = graph.graph(), graph.graph()
    count, _ = (each.input("count", (), "i32") for each in (test, inner))
    given = [[each.input(f"s{n}", *t[1:]) for n, t in enumerate(init)] for each in (test, inner)]
    most = given[0][0] if limit is None else test.constant(np.int32(limit))
    test.outputs = [binary(test, "LESS", count, most, "bool", ())]
    one = inner.constant(np.int32(1))
    inner.outputs = [binary(inner, "ADD", count, one, "i32", ()), *body(inner, *given[1])]
    options = {"cond_subgraph_index": test.number, "body_subgraph_index": inner.number}
    inputs = [graph.constant(np.int32(0)), *(value for value, _, _ in init)]
    results: list[Any] = [(f"{name}_count", (), "i32")]
    results += [(f"{name}_{n}", *each[1:]) for n, each in enumerate(init)]
    return graph.operator("WHILE", inputs, results, ("WhileOptions", options))[1:]


def test_branches() -> None:
    graph = Graph()
    condition, x = graph.input("c", (), "bool"), graph.input("x", SHAPE, "f32")
    twice, square = (
        lambda g, a: binary(g, "ADD", a, a),
        lambda g, a: binary(g, "MUL", a, a),
    )
    (y,) = branches(graph, condition, [x], twice, square)
    known = graph.constant(np.bool_(False))
    (z,) = branches(graph, known, [y], twice, square)
    feeds = [{"c": np.bool_(n), "x": draw(n, 3)} for n in (0, 1)]
    module = agree(graph.file([y, z]), feeds)
    assert [name for name, *_ in module.main.attrs["eliminated"]] == []


def test_loops_and_what_they_pass_on() -> None:
    """A weight that two loops pass on is a constant in both; a counter has a known limit."""
    graph = Graph()
    x, weight = graph.input("x", SHAPE, "f32"), graph.constant(draw(5, 3), "w")
    types = [(SHAPE, "f32"), (SHAPE, "f32")]

    def inner(body: Graph, a: int, w: int) -> list[int]:
        return [binary(body, "MUL", a, w), w]

    def outer(body: Graph, a: int, w: int) -> list[int]:
        return loop(body, [(a, *types[0]), (w, *types[1])], inner, 2)

    y = loop(graph, [(x, *types[0]), (weight, *types[1])], outer, 3)[0]
    module = agree(graph.file([y]), [{"x": draw(1, 3)}])
    loops = [n for n in post_order(module.main.body, into_functions=True) if isinstance(n, While)]
    assert sorted((n.trips, len(n.init)) for n in loops) == [(2, 2), (3, 2)]


def test_sizes_that_change_in_a_loop() -> None:
    graph = Graph()
    count, x = graph.input("n", (), "i32"), graph.input("x", (1, 2), "f32")

    def body(inner: Graph, n: int, a: int) -> list[int]:
        options = ("ConcatenationOptions", {"axis": 0})
        return [n, *inner.operator("CONCATENATION", [a, a], [("two", (-1, 2), "f32")], options)]

    y = loop(graph, [(count, (), "i32"), (x, (-1, 2), "f32")], body, None)[1]
    agree(graph.file([y]), [{"n": np.int32(n), "x": draw(n, 1, 2)} for n in (3, 0, 2)])


def test_free_sizes_in_branches_and_loops() -> None:
    """A loop over the rows of a matrix, as many as a call has, with a branch in it."""
    graph, shape = Graph(), (-1, 3)
    x, condition = graph.input("x", shape, "f32"), graph.input("c", (), "bool")
    options = ("ShapeOptions", {"out_type": 2})
    (sizes,) = graph.operator("SHAPE", [x], [("sizes", (2,), "i32")], options)
    bounds = [graph.constant(np.int32(each)) for each in ([0], [1], [1])]
    options = ("StridedSliceOptions", {"shrink_axis_mask": 1})
    (rows,) = graph.operator("STRIDED_SLICE", [sizes, *bounds], [("rows", (), "i32")], options)

    def body(inner: Graph, n: int, a: int, c: int) -> list[int]:
        numbers = []
        for op in ("ADD", "MUL"):
            branch = inner.graph()
            given = branch.input("given", shape, "f32")
            branch.outputs = [binary(branch, op, given, given, shape=shape)]
            numbers.append(branch.number)
        keys = ("then_subgraph_index", "else_subgraph_index")
        options = ("IfOptions", dict(zip(keys, numbers, strict=True)))
        return [n, *inner.operator("IF", [c, a], [("chosen", shape, "f32")], options), c]

    y = loop(graph, [(rows, (), "i32"), (x, shape, "f32"), (condition, (), "bool")], body, None)[1]
    data = graph.file([y])
    module = load(data)
    (found,) = (n for n in post_order(module.main.body) if isinstance(n, While))
    assert str(found.trips) == "x_0"
    for n in (1, 4):
        feed = {"x": draw(n, n, 3, low=-1, high=1), "c": np.bool_(n == 1)}
        np.testing.assert_allclose(interpret(module, feed)["loop_1"], litert(data, feed)[0], 1e-5)


def test_variables_are_states() -> None:
    graph = Graph()
    x, condition = graph.input("x", SHAPE, "f32"), graph.input("c", (), "bool")
    initialize(graph, "v", draw(1, 3))
    initialize(graph, "w", draw(2, 3))
    first = binary(graph, "ADD", read(graph, "v"), x)

    def assigns(body: Graph, a: int) -> int:
        sum_ = binary(body, "ADD", read(body, "v"), a)
        assign(body, "v", sum_)
        return sum_

    (y,) = branches(graph, condition, [x], assigns, lambda g, a: binary(g, "MUL", a, read(g, "w")))

    def counts(body: Graph, a: int) -> list[int]:
        assign(body, "v", binary(body, "MUL", read(body, "v"), read(body, "w")))
        return [binary(body, "SUB", a, read(body, "v"))]

    (z,) = loop(graph, [(y, SHAPE, "f32")], counts, 2)
    feeds = [{"x": draw(n, 3, low=-1, high=1), "c": np.bool_(n % 3)} for n in range(5)]
    module = agree(graph.file([first, z]), feeds)
    (state,) = states_of(module).values()  # the other one is a constant
    assert (state.input, state.output) == ("v", "v_new")
    np.testing.assert_array_equal(state.initial, draw(1, 3))
    assert module.main.attrs[FORM] == (("x", "c"), (0, 1), ("tuple", (0, 1)))


def test_initial_values_may_depend_on_others() -> None:
    """Two graphs initialize variables, the second one from the first; one runs in a loop."""
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    initialize(graph, "v", draw(1, 3))
    once = graph.graph()
    assign(once, "w", binary(once, "MUL", read(once, "v"), once.constant(draw(2, 3))))

    def body(inner: Graph, a: int) -> list[int]:
        options = ("CallOnceOptions", {"init_subgraph_index": once.number})
        inner.operator("CALL_ONCE", [], [], options)
        assign(inner, "w", binary(inner, "ADD", read(inner, "w"), a))
        return [binary(inner, "ADD", a, read(inner, "v"))]

    loop(graph, [(x, SHAPE, "f32")], body, 2)
    taken = graph.operator("ADD", [x, read(graph, "w")], [("w_new", SHAPE, "f32")])
    module = agree(graph.file(taken), [{"x": draw(n, 3)} for n in range(3)])
    assert module.output_names == ("w_new", "w_new_1")


def test_a_variable_that_grows() -> None:
    graph = Graph()
    x = graph.input("x", (1, 3), "f32")
    initialize(graph, "v", np.zeros((0, 3), np.float32))
    options = ("ConcatenationOptions", {"axis": 0})
    parts = [read(graph, "v", (-1, 3)), x]
    (both,) = graph.operator("CONCATENATION", parts, [("both", (-1, 3), "f32")], options)
    assign(graph, "v", both)
    module = load(graph.file([both]))
    assert str(module.main.params[1].type) == "f32[v_0, 3]"
    assert states_of(module)["v"].initial.shape == (0, 3)


def test_graphs_that_are_called() -> None:
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    inner = graph.graph()
    inner.outputs = [binary(inner, "ADD", *[inner.input("a", SHAPE, "f32")] * 2)]
    options = ("CallOptions", {"subgraph": inner.number})
    (y,) = graph.operator("CALL", [x], [("y", SHAPE, "f32")], options)
    (z,) = graph.operator("CALL", [y], [("z", SHAPE, "f32")], options)
    module = load(graph.file([z]))
    sources = {s.layer for node in post_order(module.main.body) for s in node.span.sources}
    assert {"y/add_0_0", "z/add_0_0"} <= sources
    inner.outputs = inner.operator("CALL", [inner.outputs[0]], [("b", SHAPE, "f32")], options)
    with pytest.raises(ModelError, match=r"M012.*'graph_1' that it is part of"):
        load(graph.file([z]))


def test_composites_are_what_their_graphs_compute() -> None:
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    inner = graph.graph()
    a = inner.input("a", SHAPE, "f32")
    inner.outputs = [binary(inner, "MUL", binary(inner, "ADD", a, a), a)]
    options = (
        "StableHLOCompositeOptions",
        {
            "name": "mine.twice_square",
            "decomposition_subgraph_index": inner.number,
            "composite_attributes": np.frombuffer(flexible({}), np.uint8),
            "version": 1,
        },
    )
    (y,) = graph.operator("STABLEHLO_COMPOSITE", [x], [("y", SHAPE, "f32")], options)
    agree(graph.file([y]), [{"x": draw(1, *SHAPE)}])


def test_what_is_wrong_or_not_supported() -> None:
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    (y,) = graph.operator("CALL", [x], [("y", SHAPE, "f32")], ("CallOptions", {"subgraph": 7}))
    with pytest.raises(ModelError, match=r"M012.*graph 7 of 1"):
        load(graph.file([y]))
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    assign(graph, "v", x)
    initialize(graph, "v", draw(1, 3))
    with pytest.raises(UnsupportedError, match=r"U005.*after the first use of a variable"):
        load(graph.file([read(graph, "v")]))
    graph = Graph()
    x = graph.input("x", SHAPE, "f32")
    (y,) = graph.operator("READ_VARIABLE", [x], [("y", SHAPE, "f32")])
    with pytest.raises(ModelError, match=r"M012.*a variable as input 0"):
        load(graph.file([y]))


def test_signatures(tmp_path: Path) -> None:
    graph = Graph()
    x = graph.input("x:0", SHAPE, "f32")
    y, other = binary(graph, "ADD", x, x), graph.graph()
    a, b = (other.input(f"{name}:0", SHAPE, "f32") for name in "ab")
    other.outputs = [binary(other, "MUL", a, b)]
    signatures = [
        {
            "signature_key": key,
            "inputs": [{"name": n, "tensor_index": t} for n, t in inputs.items()],
            "outputs": [{"name": f"{key}_result", "tensor_index": result}],
            "subgraph_index": number,
        }
        for number, (key, inputs, result) in enumerate(
            [("serving_default", {"x": x}, y), ("multiply", {"a": a, "b": b}, other.outputs[0])]
        )
    ]
    path = tmp_path / "model.tflite"
    path.write_bytes(graph.file([y], signature_defs=signatures))
    plain, default = load(path), load(path, signature="serving_default")
    assert (plain.input_names, default.input_names) == (("x:0",), ("x",))
    module = clew.compile(path, threads=1, signature="multiply")
    assert (module.input_names, module.output_names) == (("a", "b"), ("multiply_result",))
    np.testing.assert_allclose(module(draw(1, 3), draw(2, 3)), draw(1, 3) * draw(2, 3))
    with pytest.raises(InputError, match=r"I007.*'multiple'") as caught:
        clew.compile(path, signature="multiple")
    assert "serving_default, multiply" in str(caught.value)
    with pytest.raises(InputError, match="I310"):
        clew.compile(plain, signature="multiply")
    text = tmp_path / "model.txt"
    text.write_text("clew 1")
    with pytest.raises(InputError, match=r"I007.*has no signatures"):
        clew.load(text, signature="multiply")
