"""Loops whose sizes follow from the number of an iteration, and those that stay loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.ir.expr import Expr, While
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from clew.passes.manager import PassManager
from clew.passes.simplify.fold_structure import FoldStructure
from clew.passes.simplify.unroll_loops import UnrollLoops
from clew.passes.specialize import Specialize

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
BAGS = """agraph (float[6,3] x) => (float[3,3] y, float[3] last) {{
    n = Constant <value = int64 {{3}}> ()
    yes = Constant <value = bool {{1}}> ()
    offsets = Constant <value = int64[4] {{0, 1, {at}, 6}}> ()
    zero = Constant <value = float[3] {{0, 0, 0}}> ()
    last, y = Loop (n, yes, zero) <body = inner
        (int64 i, bool c, float[3] before) => (bool c2, float[3] sum, float[3] row) {{
        c2 = Identity (c)
        one = Constant <value = int64[1] {{1}}> ()
        shape = Constant <value = int64[1] {{-1}}> ()
        at = Reshape (i, shape)
        next = Add (at, one)
        first = Gather (offsets, at)
        end = Gather (offsets, next)
        part = Slice (x, first, end)
        axes = Constant <value = int64[1] {{0}}> ()
        row = ReduceSum <keepdims = 0> (part, axes)
        sum = Add (before, row)
    }}>
}}"""
# What an exporter writes for a loop of Python: a counter, a condition, a list of tensors.
LIST = """agraph (float[4,2] x) => (float[m,2] y) {
    zero = Constant <value = int64 {0}> ()
    four = Constant <value = int64 {4}> ()
    going = Less (zero, four)
    none = SequenceEmpty ()
    count, rows = Loop (, going, zero, none) <body = inner
        (int64 i, bool c, int64 k, seq(float) some) => (bool c2, int64 k2, seq(float) more) {
        shape = Constant <value = int64[1] {-1}> ()
        one = Constant <value = int64 {1}> ()
        at = Reshape (k, shape)
        row = Gather (x, at)
        more = SequenceInsert (some, row)
        k2 = Add (k, one)
        c2 = Less (k2, four)
    }>
    y = ConcatFromSequence <axis = 0> (rows)
}"""
LATE = """agraph (float[6,3] x, int64[4] offsets) => (float[3,3] y) {
    n = Constant <value = int64 {3}> ()
    yes = Constant <value = bool {1}> ()
    y = Loop (n, yes) <body = inner
        (int64 i, bool c) => (bool c2, float[3] row) {
        c2 = Identity (c)
        one = Constant <value = int64[1] {1}> ()
        shape = Constant <value = int64[1] {-1}> ()
        at = Reshape (i, shape)
        next = Add (at, one)
        first = Gather (offsets, at)
        end = Gather (offsets, next)
        part = Slice (x, first, end)
        axes = Constant <value = int64[1] {0}> ()
        row = ReduceSum <keepdims = 0> (part, axes)
    }>
}"""
# A state that grows, and whose size is an attribute of the body.
GROWS = """agraph (float[n] x) => (float[m] y) {
    zero = Constant <value = int64 {0}> ()
    shape = Shape (x)
    n = Gather (shape, zero)
    y = Loop (n, , x) <body = inner
        (int64 i, bool c, float[q] p) => (bool c2, float[r] more) {
        c2 = Identity (c)
        a = Neg (p)
        size = Shape (a)
        ones = ConstantOfShape <value = float[1] {1}> (size)
        sums = Sub (a, ones)
        row = Constant <value = float[1] {5}> ()
        more = Concat <axis = 0> (sums, row)
    }>
}"""
# A state whose size data decide after an iteration of known sizes.
SHRINKS = """agraph (float[n] x) => (float[m] y) {
    zero = Constant <value = int64 {0}> ()
    shape = Shape (x)
    n = Gather (shape, zero)
    y = Loop (n, , x) <body = inner
        (int64 i, bool c, float[q] p) => (bool c2, float[r] less) {
        c2 = Identity (c)
        one = Constant <value = float {1}> ()
        m = Less (p, one)
        less = Compress <axis = 0> (p, m)
    }>
}"""
NUMBERS = np.random.default_rng(0).standard_normal


def compiled(text: str, **options: Any) -> tuple[onnx.ModelProto, clew.CompiledModel]:
    model = onnx.parser.parse_model(HEAD + text)
    return model, clew.compile(model, threads=1, **options)


def agrees(text: str, *inputs: Array) -> clew.CompiledModel:
    model, made = compiled(text)
    names = [i.name for i in model.graph.input]
    expected = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    found = made(*inputs)
    for a, b in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    return made


def loops(made: clew.CompiledModel) -> list[Expr]:
    after = PassManager([UnrollLoops(), FoldStructure()]).run(made.module)
    return [n for n in post_order(after.main, into_functions=True) if isinstance(n, While)]


@pytest.mark.parametrize("at", [3, 6, 1], ids=["rows", "no rows at last", "no rows between"])
def test_slices_from_offset_to_offset(at: int) -> None:
    made = agrees(BAGS.format(at=at), NUMBERS((6, 3)).astype("f4"))
    assert not loops(made)


def test_a_list_that_grows() -> None:
    made = agrees(LIST, NUMBERS((4, 2)).astype("f4"))
    assert not loops(made)
    assert not any(name.startswith("host:") for name in (k.name for k in made.kernels))


@pytest.mark.parametrize(("text", "left"), [(GROWS, 0), (SHRINKS, 1)], ids=["grows", "shrinks"])
def test_sizes_of_an_iteration_are_not_those_of_the_next(text: str, left: int) -> None:
    module = load(onnx.parser.parse_model(HEAD + text))
    made = PassManager([Specialize((("n", 3),)), UnrollLoops()]).run(module)
    found = [n for n in post_order(made.main, into_functions=True) if isinstance(n, While)]
    assert len(found) == left
    assert not any(loop.body.params[2].tensor.is_static for loop in found)
    x = {"x": np.float32([3, 0, -1])}
    np.testing.assert_array_equal(interpret(made, x)["y"], interpret(module, x)["y"])


def test_offsets_of_a_run_stay_a_loop() -> None:
    made = agrees(LATE, NUMBERS((6, 3)).astype("f4"), np.array([0, 2, 2, 6]))
    assert loops(made)


def test_a_budget_of_operators() -> None:
    _, made = compiled(BAGS.format(at=3))
    assert UnrollLoops(most=20).run(made.module, Any) is made.module  # type: ignore[arg-type]


def test_without_the_pass() -> None:
    _, made = compiled(BAGS.format(at=3), passes=clew.Passes(disabled=["UnrollLoops"]))
    x = NUMBERS((6, 3)).astype("f4")
    np.testing.assert_allclose(made(x)[0], np.add.reduceat(x, [0, 1, 3]), rtol=1e-5)
