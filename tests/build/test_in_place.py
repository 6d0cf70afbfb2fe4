"""Values that share memory: parts of concatenations, views, results in the place of arguments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.api.compiled_model import CompiledModel
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.in_place import in_place_pairs
from clew.loop.lower import lower
from clew.loop.schedule import Schedule
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide
from clew.runtime.plan import BufferKind

pytestmark = pytest.mark.usefixtures("shared_kernels")

relu, exp, add = get_op("nn.relu"), get_op("exp"), get_op("add")
nonzero = get_op("nonzero")


def var(*shape: int, name: str = "x", dtype: str = "f32") -> Var:
    return Var(name, TensorType(shape, dtype))


def concat(*parts: Expr, axis: int = 1) -> Call:
    return get_op("concatenate")(*parts, axis=axis)


def cut(x: Expr, begin: int, end: int, axis: int = 1) -> Call:
    return get_op("slice")(x, begin=(begin,), end=(end,), axes=(axis,))


def conv(x: Expr, channels: int, seed: int = 0, size: int = 3) -> Call:
    shape = (channels, x.tensor.shape[1], size, size)
    weight = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.2
    half = size // 2
    return get_op("nn.conv2d")(x, Constant(weight), padding=(half,) * 4)


def module_of(inputs: Sequence[Var], *outputs: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(outputs)))
    return Module({"main": Function(inputs, Tuple(outputs), {"outputs": names})})


def feed_of(module: Module) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    return {
        p.name: rng.standard_normal(p.tensor.concrete).astype(np.float32)
        if p.tensor.dtype == "f32"
        else np.ones(p.tensor.concrete, np.bool_)
        for p in module.main.params
    }


def agree(module: Module, **feed: Any) -> CompiledModel:
    """Compiles a module in several ways, all of which must give what the graph means."""
    inputs = feed_of(module) | feed
    expected = interpret(module, inputs)
    seen: list[dict[str, np.ndarray[Any, Any]]] = []
    for options in (
        {"threads": 1},
        {"threads": 2},
        {"threads": 2, "diagnostics": clew.Diagnostics(guard=GuardSide.END)},
        {"threads": 1, "diagnostics": clew.Diagnostics(guard=GuardSide.START)},
        {"threads": 1, "opt_level": 1},
        {"threads": 1, "passes": clew.Passes(disabled=["PlaceParts"])},
    ):
        compiled = clew.compile(module, cache=False, **options)  # type: ignore[arg-type]
        for _ in range(2):
            found = compiled.run(inputs)
            for name, wanted in expected.items():
                assert found[name].shape == wanted.shape
                np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)
        seen.append(found)
    for name, one in seen[0].items():
        assert one.tobytes() == seen[1][name].tobytes(), "threads change the result"
    gaps = clew.compile(module, cache=False).trace.check()
    assert not [g for g in gaps if "has no source" not in g.text]  # graphs by hand have none
    return clew.compile(module, cache=False, threads=1)


def direct(module: Module) -> CompiledModel:
    """As `agree`, and returns the model with convolutions that are sums of products: what a machine
    finds cheaper for images as small as these differs.
    """
    agree(module)
    return clew.compile(
        module, cache=False, threads=1, passes=clew.Passes(disabled=("SelectConvAlgorithm",))
    )


def labels(compiled: CompiledModel) -> list[str]:
    return [s.label for segment in compiled.build.segments for s in segment.plan.steps]


def remarks(compiled: CompiledModel) -> list[str]:
    return [r.text for stage in compiled.build.stages for r in stage.remarks]


def test_convolutions_write_into_the_concatenation() -> None:
    x = var(1, 16, 9, 7)
    y = concat(relu(conv(x, 32)), relu(conv(x, 16, 1, 1)))
    compiled = direct(module_of([x], relu(conv(y, 16, 2))))
    assert not any("concatenate" in name or name == "copy" for name in labels(compiled))
    (segment,) = compiled.build.segments
    outputs = [s.args[-1] for s in segment.plan.steps if s.label == "conv2d_relu"][:2]
    assert outputs[0].index == outputs[1].index
    assert sorted(o.offset_bytes for o in outputs) == [0, 32 * 9 * 7 * 4]


def test_one_buffer_holds_growing_concatenations() -> None:
    """As DenseNet's, each of the one before and new channels."""
    y: Expr = var(1, 16, 5, 6)
    inputs = [y]
    y = relu(conv(y, 32))
    for seed in range(4):
        y = concat(y, conv(relu(conv(y, 16, seed, 1)), 16, seed))
    compiled = agree(module_of(inputs, relu(conv(y, 16, 9))))  # type: ignore[arg-type]
    assert not any("concatenate" in name or name == "copy" for name in labels(compiled))


def test_lists_of_parts_that_begin_alike_share_their_buffer() -> None:
    """DenseNet again, each concatenation of all parts so far."""
    x = var(1, 16, 5, 6)
    parts: list[Expr] = [relu(conv(x, 32))]
    for seed in range(4):
        joined = concat(*parts) if len(parts) > 1 else parts[0]
        parts.append(relu(conv(joined, 16, seed)))
    compiled = agree(module_of([x], exp(concat(*parts))))
    assert not any("concatenate" in name or name == "copy" for name in labels(compiled))


def test_parts_have_other_readers_and_are_results_too() -> None:
    x = var(1, 8, 6)
    a, b = exp(x), relu(x)
    joined = concat(a, b)
    compiled = agree(module_of([x], joined, a, add(b, a), get_op("sum")(joined, axes=(1,))))
    assert "concatenate" not in labels(compiled)
    first, second, *_ = compiled(feed_of(compiled.module)["x"])
    assert not np.shares_memory(first, second)  # inside they do; results own their memory


def test_what_cannot_lie_there_is_copied() -> None:
    x, z = var(1, 8, 6), var(1, 2, 6, name="z")
    a, b = exp(x), relu(x)
    weight = Constant(np.arange(6, dtype=np.float32).reshape(1, 1, 6))
    compiled = agree(module_of([x, z], concat(a, b, a, z, weight), concat(b, exp(z), exp(a))))
    assert labels(compiled).count("copy") >= 4
    for reason in ("occurs twice", "it is an input", "constant", "in another concatenation"):
        assert any(reason in text for text in remarks(compiled)), reason


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_inputs_alone_are_joined_by_a_kernel(order: tuple[int, ...]) -> None:
    x, z, w = var(1, 3, 6), var(1, 2, 6, name="z"), exp(var(1, 1, 6, name="w"))
    parts: list[Expr] = [x, z, w]
    compiled = agree(module_of([x, z, w.args[0]], concat(*(parts[n] for n in order))))  # type: ignore[list-item]
    assert len(labels(compiled)) == 1
    assert any("less than half" in text for text in remarks(compiled))


def test_parts_that_are_apart_are_copied() -> None:
    x = var(2, 8, 6)
    compiled = agree(module_of([x], concat(exp(x), relu(x))))
    assert any("not contiguous in it" in text for text in remarks(compiled))


def test_slices_and_splits_of_whole_rows_are_views() -> None:
    x = var(1, 9, 6)
    y = exp(x)
    pieces = get_op("split")(y, sizes=(2, 3, 4), axis=1)
    a, b, c = (TupleGetItem(pieces, n) for n in range(3))
    inner = cut(cut(y, 2, 8), 1, 4)
    compiled = agree(module_of([x], get_op("sum")(a, axes=(1,)), b, relu(c), inner, exp(inner)))
    assert sorted(labels(compiled)) == ["exp", "exp", "relu", "sum"]


def test_slices_of_inputs_and_constants_are_views() -> None:
    x = var(6, 4)
    table = get_op("reshape")(var(4, 6, name="t"), shape=(6, 4))
    y = add(cut(x, 1, 5, 0), cut(table, 2, 6, 0))
    compiled = agree(module_of([x, table.args[0]], exp(y), cut(x, 2, 3, 0)))  # type: ignore[list-item]
    assert labels(compiled) == ["add_exp"]
    (step,) = compiled.build.segments[0].plan.steps
    assert sorted(a.offset_bytes for a in step.args[:2]) == [16, 32]


def test_strided_and_inner_slices_are_computed() -> None:
    x = var(5, 6)
    strided = get_op("slice")(x, begin=(0,), end=(5,), strides=(2,), axes=(0,))
    agree(module_of([x], strided, cut(x, 1, 3), exp(cut(x, 1, 3))))


def test_a_piece_of_a_concatenation_is_a_view() -> None:
    x = var(1, 8, 6)
    joined = concat(exp(x), relu(x))
    other = concat(cut(joined, 3, 11), exp(relu(joined)))
    compiled = agree(module_of([x], other, relu(cut(other, 2, 20))))
    assert labels(compiled).count("copy") == 1


def test_reshapes_of_parts_are_written_through() -> None:
    x = var(1, 8, 6)
    flat = [get_op("reshape")(v, shape=(1, 48)) for v in (exp(x), relu(x))]
    compiled = agree(module_of([x], concat(*flat)))
    assert sorted(labels(compiled)) == ["exp", "relu"]


def test_a_dying_argument_gives_its_memory() -> None:
    x = var(64, 48)
    z = get_op("sigmoid")(concat(exp(x), relu(x), axis=0))
    sums = [get_op("sum")(get_op("nn.softmax")(z, axis=n), axes=(1,)) for n in (0, 1)]
    compiled = agree(module_of([x], *sums))
    steps = compiled.build.segments[0].plan.steps
    (inside,) = [s for s in steps if s.label == "sigmoid"]
    assert inside.args[0] == inside.args[1]
    assert inside.args[0].kind is BufferKind.ARENA


def test_what_is_read_again_keeps_its_memory() -> None:
    x = var(64, 48)
    y = get_op("nn.softmax")(x, axis=-1)
    total = get_op("sum")(y, axes=(1,), keepdims=True)
    agree(module_of([x], get_op("subtract")(exp(y), total), get_op("transpose")(y, axes=(1, 0))))
    shuffled = add(y, get_op("reshape")(get_op("reshape")(y, shape=(48, 64)), shape=(64, 48)))
    agree(module_of([x], shuffled, get_op("nn.softmax")(shuffled, axis=0)))


def test_residual_sums_are_added_in_place() -> None:
    x = var(1, 16, 6, 6)
    y = relu(conv(x, 16))
    compiled = direct(module_of([x], relu(conv(relu(add(conv(y, 16, 1), y)), 16, 2))))
    steps = compiled.build.segments[0].plan.steps
    (inside,) = [s for s in steps if "add" in s.label]
    assert inside.args[-1] in inside.args[:-1]


def test_host_operators_and_branches_come_between() -> None:
    x, c = var(1, 8, 6), var(name="c", dtype="bool")
    a = exp(x)
    places = nonzero(get_op("reshape")(relu(a), shape=(48,)))
    counted = get_op("cast")(get_op("sum")(places, axes=(1,)), dtype="f32")
    row = get_op("reshape")(counted, shape=(1, 1, 1))
    b = get_op("multiply")(relu(x), row)
    p, q = var(1, 8, 6, name="p"), var(1, 8, 6, name="q")
    then = Function([p], concat(exp(p), relu(p)))
    orelse = Function([q], concat(q, exp(q)))
    branch = If(c, then, orelse, [x])
    agree(module_of([x, c], concat(a, b), exp(concat(branch, b)), cut(branch, 3, 9)))
    agree(module_of([x, c], cut(branch, 3, 9)), c=np.zeros((), np.bool_))


def test_saved_models_have_their_views(tmp_path: Any) -> None:
    x = var(1, 8, 6)
    joined = concat(exp(x), relu(x))
    module = module_of([x], cut(joined, 3, 9), get_op("sum")(joined, axes=(1,)))
    compiled = agree(module)
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew")
    for a, b in zip(
        loaded(*feed_of(module).values()), compiled(*feed_of(module).values()), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_the_trace_says_whose_memory_a_layer_is() -> None:
    x = var(1, 8, 6)
    joined = concat(exp(x), relu(x))
    compiled = clew.compile(module_of([x], cut(joined, 3, 9)), cache=False)
    reader, nodes = compiled.trace.reader, compiled.trace.nodes(compiled.trace.last)
    kinds = [reader.memory(node)[:1] for node in nodes.values()]
    assert ("view",) in kinds
    assert ("joined",) in kinds


class _Images:
    """Random images, joined, cut and computed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.x = var(1, self.random.choice([4, 8, 16]), 4, 5)
        self.values: list[Expr] = [self.x, relu(conv(self.x, 16, seed, 1))]
        for step in range(12):
            self.values.append(self.grown(step))

    def grown(self, step: int) -> Expr:
        pick = self.random.choice
        x = pick(self.values[-4:])
        channels = x.tensor.concrete[1]
        match pick(["conv", "conv", "point", "join", "join", "join", "cut", "split", "sum"]):
            case "conv":
                return relu(conv(x, pick([8, 16, 24]), step, pick([1, 3])))
            case "point":
                return pick([relu, get_op("sigmoid")])(x)
            case "join":
                return concat(*(pick(self.values) for _ in range(self.random.randint(1, 4))))
            case "cut":
                return cut(x, channels // 4, channels - channels // 4)
            case "split":
                pieces = get_op("split")(x, sizes=(channels // 2, channels - channels // 2), axis=1)
                return TupleGetItem(pieces, self.random.randrange(2))
        return add(x, get_op("sigmoid")(x))


@pytest.mark.parametrize("seed", range(40))
def test_random_images_that_share_memory(seed: int) -> None:
    images = _Images(seed)
    outputs = [images.values[-1], *images.random.sample(images.values[1:], seed % 3)]
    module = module_of([images.x], *outputs)
    feed = feed_of(module)
    expected = interpret(module, feed)
    for level, guard in ((3, False), (3, list(GuardSide)[seed % 2]), (1, False), (0, False)):
        compiled = clew.compile(
            module,
            cache=False,
            opt_level=level,
            diagnostics=clew.Diagnostics(guard=guard),
            threads=1 + (seed + level) % 2,
        )
        for name, found in compiled.run(feed).items():
            scale = max(1.0, float(np.abs(expected[name]).max()))
            np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("factor", [8, 64])
@pytest.mark.parametrize(("tail", "pairs"), [("shrink", ((0, 0),)), ("clamp", ())])
def test_tiles_that_compute_rows_twice_read_no_result(
    tail: str, pairs: tuple[tuple[int, int], ...], factor: int
) -> None:
    x = var(36)
    build = clew.compile(Module({"main": Function((x,), exp(relu(x)))}), threads=1).build
    plain = Schedule(build.uses[0].source.nest).inline("relu")
    assert in_place_pairs(plain.finished()) == ((0, 0),)
    plain.split("exp.i0", factor, tail=tail)
    assert in_place_pairs(plain.finished()) == pairs


def normalized(reads_all: bool = False) -> Any:
    """Rows minus their mean; or minus the mean of all rows, of which other iterations read."""
    m, n = SymDim.symbol("m"), SymDim.symbol("n")
    x = te.placeholder((m, n), "f32", "x")
    k = te.reduce_axis(n, "k")
    over = te.reduce_axis(m, "r")
    if reads_all:
        total = te.compute((m,), lambda i: te.sum(te.sum(x[over, k], k), over), "total")
    else:
        total = te.compute((m,), lambda i: te.sum(x[i, k], k), "total")
    schedule = Schedule(
        lower("rows", [x], [te.compute((m, n), lambda i, j: x[i, j] - total[i], "out")])
    )
    return schedule


def test_a_row_is_read_before_it_is_overwritten() -> None:
    schedule = normalized()
    assert in_place_pairs(schedule.finished()) == ()  # all sums are read, then all rows
    schedule.compute_at("total", "out.i")
    assert in_place_pairs(schedule.finished()) == ((0, 0),)
    schedule.parallel("out.i")
    assert in_place_pairs(schedule.finished()) == ((0, 0),)
    threads = normalized()
    threads.compute_at("total", "out.i", "scratch")
    threads.parallel("out.i")
    threads.parallel("out.j", repeat=True)
    assert in_place_pairs(threads.finished()) == ()


def test_rows_that_later_iterations_read_are_not_overwritten() -> None:
    schedule = normalized()
    schedule.compute_at("total", "out.j")
    assert in_place_pairs(schedule.finished()) == ()


def test_normalizations_run_in_place_at_free_sizes() -> None:
    rows, width = SymDim.symbol("m"), SymDim.symbol("n")
    x = Var("x", TensorType((rows, width), "f32"))
    y = exp(get_op("nn.softmax")(relu(x), axis=1))
    compiled = clew.compile(
        module_of([x], y), cache=False, threads=2, diagnostics=clew.Diagnostics(guard=GuardSide.END)
    )
    for m, n in ((1, 1), (3, 17), (40, 129)):
        feed = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
        found = compiled.run({"x": feed})["y0"]
        e = np.exp(np.maximum(feed, 0) - np.maximum(feed, 0).max(1, keepdims=True))
        np.testing.assert_allclose(found, np.exp(e / e.sum(1, keepdims=True)), rtol=1e-5)
