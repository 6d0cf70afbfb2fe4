"""Small files that ask for much: sizes, nesting, expansion, folding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from clew import Budgets
from hostile.catalog import X, case, each, field, ints, load, message, model, node, run, value

HUGE = 1 << 40


def functions(count: int, calls: int) -> ModelProto:
    """Returns a model with functions that each call the one before so many times."""
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = [helper.make_function("own", "f0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], sets[:1])]
    for n in range(1, count):
        names = ["a", *(f"t{k}" for k in range(calls - 1)), "b"]
        body = [node(f"f{n - 1}", [p], [q], domain="own") for p, q in pairwise(names)]
        made.append(helper.make_function("own", f"f{n}", ["a"], ["b"], body, sets))
    return model([node(f"f{count - 1}", ["x"], ["y"], domain="own")], functions=made)


@case("M009")
def functions_that_double(folder: Path) -> None:
    load(functions(30, 2))


@case("M009")
def functions_that_multiply_by_a_thousand(folder: Path) -> None:
    load(functions(4, 1000))


@case("M007")
def functions_in_a_long_chain(folder: Path) -> None:
    load(functions(2000, 1))


@case("M003")
def functions_in_a_circle(folder: Path) -> None:
    made = functions(3, 1)
    made.functions[0].node[0].op_type, made.functions[0].node[0].domain = "f2", "own"
    made.functions[0].opset_import.append(helper.make_opsetid("own", 1))
    load(made)


@case("M003", "M007", "M009", "U001")
def function_named_as_an_operator_it_uses(folder: Path) -> None:
    sets = [helper.make_opsetid("", 21)]
    body = [node("Relu", ["a"], ["t"]), node("Relu", ["t"], ["b"])]
    made = model(
        [node("Relu", ["x"], ["y"])],
        functions=[helper.make_function("", "Relu", ["a"], ["b"], body, sets)],
    )
    load(made)


def doubling(op: str, count: int, **attributes: Any) -> ModelProto:
    """Returns a chain in which each node takes the last value twice."""
    names = ["x", *(f"v{n}" for n in range(count - 1)), "y"]
    return model([node(op, [a, a], [b], **attributes) for a, b in pairwise(names)])


@case("M006", "M030")
def concatenations_that_double(folder: Path) -> None:
    run(doubling("Concat", 45, axis=0), X)


@case("ok")
def sums_that_double_paths(folder: Path) -> None:
    """2^200 paths through 200 nodes: nothing may walk them all."""
    result = run(doubling("Mul", 200), np.ones((2, 3), np.float32))
    assert (result == 1).all()


@case("M006", "M030")
def concatenated_constants_that_double(folder: Path) -> None:
    names = ["c", *(f"v{n}" for n in range(33)), "y"]
    nodes = [node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
    run(model(nodes, [ints("c", [1, 2, 3])], inputs=[]))


@case("M006", "M030")
def many_large_constants(folder: Path) -> None:
    """Each is within bounds, all of them together are not."""
    nodes = [node("ConstantOfShape", ["s"], [f"c{n}"]) for n in range(5000)]
    nodes += [node("Sum", [f"c{n}" for n in range(5000)], ["y"])]
    load(model(nodes, [ints("s", [1 << 28])], inputs=[]))


def constant(op: str, *inputs: Any, **attributes: Any) -> ModelProto:
    """Returns a model of one node whose inputs are all constants."""
    tensors = [numpy_helper.from_array(np.asarray(v), f"i{n}") for n, v in enumerate(inputs)]
    names = [t.name for t in tensors]
    return model([node(op, names, ["y"], **attributes)], tensors, inputs=[])


GROWING = {
    "ConstantOfShape": constant("ConstantOfShape", np.array([1 << 20, 1 << 20], np.int64)),
    "ConstantOfShape_overflow": constant("ConstantOfShape", np.array([1 << 33, 1 << 33], np.int64)),
    "ConstantOfShape_negative": constant("ConstantOfShape", np.array([-1], np.int64)),
    "Range": constant("Range", np.int64(0), np.int64(1 << 60), np.int64(1)),
    "Range_float": constant("Range", np.float32(0), np.float32(1e30), np.float32(1e-30)),
    "Range_nan": constant("Range", np.float32(0), np.float32("nan"), np.float32(1)),
    "Range_zero": constant("Range", np.int64(0), np.int64(5), np.int64(0)),
    "Expand": constant("Expand", np.float32(1), np.array([HUGE], np.int64)),
    "Expand_overflow": constant("Expand", np.float32(1), np.array([1 << 62, 1 << 62], np.int64)),
    "Tile": constant("Tile", np.ones(3, np.float32), np.array([HUGE], np.int64)),
    "OneHot": constant("OneHot", np.arange(9), np.int64(HUGE), np.array([0, 1], np.float32)),
    "Pad": constant("Pad", np.ones(3, np.float32), np.array([0, HUGE], np.int64)),
    "Pad_overflow": constant("Pad", np.ones(3, np.float32), np.array([1 << 62, 1 << 62], np.int64)),
    "Resize": constant(
        "Resize", np.ones((1, 1, 2, 2), np.float32), np.zeros(0, np.float32),
        np.zeros(0, np.float32), np.array([1, 1, 1 << 30, 1 << 30], np.int64),
    ),
    "Resize_scales": constant(
        "Resize", np.ones((1, 1, 2, 2), np.float32), np.zeros(0, np.float32),
        np.array([1, 1, 1e30, 1e30], np.float32),
    ),
    "Resize_nan": constant(
        "Resize", np.ones((1, 1, 2, 2), np.float32), np.zeros(0, np.float32),
        np.array([1, 1, np.nan, np.inf], np.float32),
    ),
    "Reshape": constant("Reshape", np.ones(4, np.float32), np.array([1 << 32, 1 << 32], np.int64)),
    "HannWindow": constant("HannWindow", np.int64(HUGE)),
    "Gather": constant("Gather", np.ones(3, np.float32), np.array([1 << 62], np.int64)),
}  # fmt: skip


@each("constant", GROWING)
def growing_constant(folder: Path, given: ModelProto) -> None:
    run(given)


@case()
def eye_like_of_much(folder: Path) -> None:
    nodes = [node("ConstantOfShape", ["s"], ["c"]), node("EyeLike", ["c"], ["y"])]
    run(model(nodes, [ints("s", [1 << 20, 1 << 20])], inputs=[]))


def asked_at_run_time(op: str, *before: Any, count: int = 1, **attributes: Any) -> ModelProto:
    """Returns a model whose last operand, a shape or count, comes with the run."""
    tensors = [numpy_helper.from_array(np.asarray(v), f"i{n}") for n, v in enumerate(before)]
    names = [*(t.name for t in tensors), "n"]
    taken = [value("n", [count] if count else [], TensorProto.INT64)]
    return model([node(op, names, ["y"], **attributes)], tensors, inputs=taken)


@case()
def run_time_constant_of_shape(folder: Path) -> None:
    run(asked_at_run_time("ConstantOfShape", count=2), np.array([1 << 20, 1 << 20]))


@case()
def run_time_expand(folder: Path) -> None:
    run(asked_at_run_time("Expand", np.ones((1, 1), np.float32), count=2), np.array([1 << 20] * 2))


@case()
def run_time_tile(folder: Path) -> None:
    run(asked_at_run_time("Tile", np.ones((1, 1), np.float32), count=2), np.array([1 << 20] * 2))


@case()
def run_time_pad(folder: Path) -> None:
    run(asked_at_run_time("Pad", np.ones(3, np.float32), count=2), np.array([1 << 40, 0]))


@case()
def run_time_range(folder: Path) -> None:
    names = [value(n, [], TensorProto.INT64) for n in "abc"]
    run(
        model([node("Range", ["a", "b", "c"], ["y"])], inputs=names),
        np.int64(0),
        np.int64(1 << 60),
        np.int64(1),
    )


def computed_size(op: str, *before: Any, **attributes: Any) -> ModelProto:
    """Returns a model whose amount of data is a computed value that no pass knows."""
    tensors = [numpy_helper.from_array(np.asarray(v), f"i{n}") for n, v in enumerate(before)]
    names = [*(t.name for t in tensors), "n"]
    nodes = [
        node("ReduceSum", ["x"], ["t"], keepdims=0),
        node("Cast", ["t"], ["m"], to=TensorProto.INT64),
        node("Reshape", ["m", "one"], ["n"]),
        node(op, names, ["y"], **attributes),
    ]
    return model(nodes, [*tensors, ints("one", [1])])


def after_size(kept: int, nodes: Sequence[Any], initializers: Sequence[Any]) -> ModelProto:
    """Returns a model of the nodes that compute a size (`m`, of two nodes, and `n`, of three) and
    these after them.
    """
    made = computed_size("Identity")
    del made.graph.node[kept:]
    made.graph.node.extend(nodes)
    made.graph.initializer.extend(initializers)
    return made


LARGE = np.full((2, 3), 2.0**40 / 6, np.float32)


@case()
def computed_constant_of_shape(folder: Path) -> None:
    run(computed_size("ConstantOfShape"), LARGE)


@case()
def computed_expand(folder: Path) -> None:
    run(computed_size("Expand", np.ones(1, np.float32)), LARGE)


@case()
def computed_tile(folder: Path) -> None:
    run(computed_size("Tile", np.ones(1, np.float32)), LARGE)


@case()
def computed_tile_used_by_a_kernel(folder: Path) -> None:
    made = computed_size("Tile", np.ones(1, np.float32))
    made.graph.node[-1].output[0] = "w"
    made.graph.node.append(node("Exp", ["w"], ["v"]))
    made.graph.node.append(node("Add", ["v", "w"], ["y"]))
    run(made, LARGE)


@case()
def computed_range(folder: Path) -> None:
    nodes = [node("Range", ["zero", "m", "step"], ["y"])]
    run(after_size(2, nodes, [ints("zero", 0), ints("step", 1)]), LARGE)


@case()
def computed_one_hot(folder: Path) -> None:
    nodes = [node("OneHot", ["i", "n", "v"], ["y"])]
    run(after_size(3, nodes, [ints("i", [1, 2]), ints("v", [0, 1])]), LARGE)


@case()
def computed_pad(folder: Path) -> None:
    nodes = [node("Concat", ["n", "n"], ["p"], axis=0), node("Pad", ["i", "p"], ["y"])]
    run(after_size(3, nodes, [numpy_helper.from_array(np.ones(3, np.float32), "i")]), LARGE)


@case("ok")
def split_into_a_list_of_billions(folder: Path) -> None:
    """Its type is enough for the import."""
    x = value("x", [1 << 31], TensorProto.INT8)
    load(model([node("SplitToSequence", ["x", "n"], ["y"])], [ints("n", 1)], [x]))


@case("I265")
def split_into_many_pieces(folder: Path) -> None:
    made = model([node("SplitToSequence", ["x"], ["y"])], inputs=[value("x", ["n"])])
    run(made, np.zeros(1 << 22, np.float32), limits=Budgets.strict())


@case("ok")
def a_window_of_millions(folder: Path) -> None:
    run(constant("HannWindow", np.int64(1 << 25)), limits=Budgets.strict())


@case("I265")
def a_transform_of_a_large_prime_length(folder: Path) -> None:
    sizes = [ints("n", 8388593), ints("axis", 1)]
    made = model(
        [node("DFT", ["x", "n", "axis"], ["y"], onesided=1)], sizes, [value("x", [1, 4, 1])]
    )
    run(made, np.ones((1, 4, 1), np.float32), limits=Budgets.strict())


@case("C140")
def many_places_that_are_not_zero(folder: Path) -> None:
    made = model([node("NonZero", ["x"], ["y"])], inputs=[value("x", ["n", 1, 1, 1], 2)])
    run(made, np.ones((1 << 24, 1, 1, 1), np.uint8), limits=Budgets.strict())


def trees(targets: int, leaves: int, votes: int) -> ModelProto:
    """Returns trees of one leaf each, and so many votes of the first leaf."""
    numbers = list(range(leaves))
    nodes: dict[str, list[Any]] = {
        "treeids": numbers,
        "nodeids": [0] * leaves,
        "featureids": [0] * leaves,
    }
    nodes |= {"modes": ["LEAF"] * leaves, "values": [0.0] * leaves}
    nodes |= {"truenodeids": [0] * leaves, "falsenodeids": [0] * leaves}
    given: dict[str, list[Any]] = {"treeids": [0] * votes, "nodeids": [0] * votes}
    given |= {"ids": [n % 9 for n in range(votes)]}
    given |= {"weights": [1.0] * votes}
    made = node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets,
        **{f"nodes_{k}": v for k, v in nodes.items()},
        **{f"target_{k}": v for k, v in given.items()},
    )  # fmt: skip
    whole = model([made])
    whole.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return whole


@case("M006")
def votes_for_billions(folder: Path) -> None:
    load(trees((1 << 31) - 1, 1, 9), budgets=Budgets.strict())


@case("M006")
def leaves_times_votes(folder: Path) -> None:
    load(trees(5000, 20_000, 20_000), budgets=Budgets.strict())


@case("I265")
def categories_times_elements(folder: Path) -> None:
    categories = list(range(100_000))
    encoder = node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_int64s=categories)
    encoder.attribute.append(helper.make_attribute("zeros", 0))
    made = model([encoder], inputs=[value("x", ["n"], TensorProto.INT64)])
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    run(made, np.ones(20_000, np.int64), limits=Budgets.strict())


@case("C141")
def boxes_that_do_not_overlap(folder: Path) -> None:
    """Half a million of them: each is compared with all that are better."""
    nodes = [node("NonMaxSuppression", ["x", "s", "most"], ["y"])]
    inputs = [value("x", [1, "n", 4]), value("s", [1, 1, "n"])]
    count = 1 << 19
    place = np.arange(count, dtype=np.float32)
    boxes = np.stack([place, place, place + 0.5, place + 0.5], -1)[None]
    scores = np.ones((1, 1, count), np.float32)
    run(
        model(nodes, [ints("most", 1 << 40)], inputs),
        boxes,
        scores,
        limits=Budgets.strict(),
    )


@case("I265")
def texts_that_double(folder: Path) -> None:
    names = ["x", *(f"v{n}" for n in range(44)), "y"]
    nodes = [node("StringConcat", [a, a], [b]) for a, b in pairwise(names)]
    x = value("x", [1], TensorProto.STRING)
    run(
        model(nodes, inputs=[x]),
        np.array(["text"], object),
        limits=Budgets.strict(),
    )


def loop(trips: int | None, body_nodes: Any, *, scan: bool = False, state: int = 0) -> ModelProto:
    """Returns a Loop over `x`."""
    outs = [value("go2", [], TensorProto.BOOL), value("s2", None)]
    outs += [value("scanned", None)] if scan else []
    body = helper.make_graph(
        [node("Identity", ["go"], ["go2"]), *body_nodes], "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("s", None)],
        outs,
    )  # fmt: skip
    names = ["y", "z"] if scan else ["y"]
    made = node("Loop", ["trips" if trips is not None else "", "", "x"], names, body=body)
    return model([made], [ints("trips", trips)] if trips is not None else [],
                 outputs=[value(n, None) for n in names])  # fmt: skip


@case()
def loop_that_never_ends(folder: Path) -> None:
    run(loop(None, [node("Neg", ["s"], ["s2"])]), X, limits=Budgets.strict())


@case()
def loop_of_two_to_the_sixty_two(folder: Path) -> None:
    run(loop(1 << 62, [node("Neg", ["s"], ["s2"])]), X, limits=Budgets.strict())


@case()
def loop_that_scans_for_ever(folder: Path) -> None:
    body = [node("Neg", ["s"], ["s2"]), node("Identity", ["s"], ["scanned"])]
    run(loop(1 << 40, body, scan=True), X)


@case(slow=True)
def loop_whose_state_doubles(folder: Path) -> None:
    doubled = [node("Concat", ["s", "s"], ["s2"], axis=0)]
    run(loop(60, doubled), X, limits=Budgets.strict())


@case()
def loop_over_constants_for_ever(folder: Path) -> None:
    """Nothing is an input: folding must not run it."""
    made = loop(1 << 62, [node("Neg", ["s"], ["s2"])])
    del made.graph.input[:]
    made.graph.initializer.append(numpy_helper.from_array(X, "x"))
    run(made, limits=Budgets.strict())


@case()
def scan_over_much(folder: Path) -> None:
    body = helper.make_graph(
        [node("Add", ["s", "e"], ["s2"])], "b", [value("s", []), value("e", [])], [value("s2", [])]
    )
    nodes = [
        node("ConstantOfShape", ["n"], ["c"]),
        node("Scan", ["zero", "c"], ["y"], body=body, num_scan_inputs=1),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    run(model(nodes, [ints("n", [1 << 34]), zero], inputs=[]))


def nested_if(depth: int) -> bytes:
    """Returns a model of `If` in `If`, written without the protobuf library, which refuses it."""
    graph = field(11, field(1, b"x"))
    for _ in range(depth):
        branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"If") + field(1, b"x") + field(2, b"y") + field(5, branch))
    return message(graph)


@each("nested_if", {n: n for n in (24, 32, 60, 5000)})
def deep_if(folder: Path, given: int) -> None:
    load(nested_if(given))


def nested_loops(depth: int) -> ModelProto:
    """Returns loops in loops whose state grows, so that each is read more than once."""
    graph_nodes = [node("Concat", ["s", "s"], ["s2"], axis=0)]
    for level in range(depth):
        body = helper.make_graph(
            [node("Identity", [f"go{level}"], [f"gone{level}"]), *graph_nodes], "b",
            [value(f"i{level}", [], TensorProto.INT64), value(f"go{level}", [], TensorProto.BOOL),
             value("s", None)],
            [value(f"gone{level}", [], TensorProto.BOOL), value("s2", None)],
        )  # fmt: skip
        outside = "x" if level == depth - 1 else "s"
        inner = "y" if level == depth - 1 else "s2"
        graph_nodes = [node("Loop", ["trips", "", outside], [inner], body=body)]
    return model(graph_nodes, [ints("trips", 2)])


@each("nested_loops", {n: n for n in (3, 12, 22)})
def deep_loops(folder: Path, given: int) -> None:
    load(nested_loops(given))


@case("ok", slow=True)
def a_chain_of_20000(folder: Path) -> None:
    names = ["x", *(f"v{n}" for n in range(19_999)), "y"]
    ops = ("Neg", "Abs")
    nodes = [node(ops[n % 2], [a], [b]) for n, (a, b) in enumerate(pairwise(names))]
    assert (run(model(nodes), X, opt_level=1) == X).all()


@case("ok", slow=True)
def a_node_of_20000_inputs(folder: Path) -> None:
    result = run(model([node("Sum", ["x"] * 20_000, ["y"])]), X, opt_level=1)
    assert result.shape == (2, 3)


@case()
def a_concat_of_5000_inputs(folder: Path) -> None:
    run(model([node("Concat", ["x"] * 5_000, ["y"], axis=0)]), X, opt_level=1)


@case(slow=True)
def a_split_into_5000(folder: Path) -> None:
    names = [f"p{n}" for n in range(5_000)]
    made = model([node("Split", ["x"], names, axis=0, num_outputs=5_000),
                  node("Concat", names, ["y"], axis=0)], inputs=[value("x", [5_000])])  # fmt: skip
    run(made, np.zeros(5_000, np.float32), opt_level=1)


@case()
def convolution_of_constants(folder: Path) -> None:
    """Folding it would take minutes."""
    nodes = [
        node("ConstantOfShape", ["a"], ["image"]),
        node("RandomUniform", [], ["w"], shape=[256, 256, 5, 5]),
        node("Conv", ["image", "w"], ["y"]),
    ]
    load(model(nodes, [ints("a", [1, 256, 512, 512])], inputs=[]))


@case(slow=True)
def product_of_constants(folder: Path) -> None:
    """Both fit a file of some bytes; folding their product takes long."""
    shape = [ints("s", [2000, 2000]), ints("n", [4_000_000])]
    bounds = [ints("zero", 0), ints("one", 1), ints("many", 4_000_000)]
    nodes = [
        node("Range", ["zero", "many", "one"], ["r"]),
        node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
        node("Reshape", ["f", "s"], ["m0"]),
        *(node("MatMul", [f"m{n}", f"m{n}"], [f"m{n + 1}"]) for n in range(3)),
        node("ReduceSum", ["m3"], ["y"]),
    ]
    run(model(nodes, [*shape, *bounds], inputs=[]))


@case()
def pooling_with_a_huge_window(folder: Path) -> None:
    """2^60 comparisons for 2^30 results."""
    made = node("MaxPool", ["x"], ["y"], kernel_shape=[1 << 16], pads=[(1 << 16) - 1] * 2)
    image = np.ones((1, 1, 8), np.float32)
    run(
        model([made], inputs=[value("x", [1, 1, 8])]),
        image,
        limits=Budgets(run_operations=1 << 30),
    )


@case()
def convolution_with_huge_pads(folder: Path) -> None:
    w = numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")
    made = node("Conv", ["x", "w"], ["y"], pads=[1 << 40, 1 << 40])
    run(model([made], [w], inputs=[value("x", [1, 1, 8])]), np.ones((1, 1, 8), np.float32))


@case()
def convolution_with_overflowing_dilation(folder: Path) -> None:
    w = numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")
    made = node("Conv", ["x", "w"], ["y"], dilations=[(1 << 63) - 1], pads=[1 << 62, 1 << 62])
    run(model([made], [w], inputs=[value("x", [1, 1, 8])]), np.ones((1, 1, 8), np.float32))


@case()
def einsum_with_much_inside(folder: Path) -> None:
    made = node("Einsum", ["x", "x"], ["y"], equation="ab,cd->abcd")
    run(model([made], inputs=[value("x", [1 << 12, 1 << 12])]), np.ones((1 << 12,) * 2, np.float32))


@case(slow=True)
def attributes_of_a_million_numbers(folder: Path) -> None:
    made = node("Transpose", ["x"], ["y"], perm=list(range(1_000_000)))
    run(model([made]), X)


@case()
def transpose_of_rank_40(folder: Path) -> None:
    shape = [1] * 40
    run(model([node("Neg", ["x"], ["y"])], inputs=[value("x", shape)]), np.ones(shape[:32]))


@case()
def unsqueeze_to_rank_1000(folder: Path) -> None:
    made = model([node("Unsqueeze", ["x", "a"], ["y"])], [ints("a", list(range(1000)))])
    run(made, X)
