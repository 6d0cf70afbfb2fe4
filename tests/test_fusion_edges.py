"""Fusions whose operators passes fold, merge or change: the region lasts, and the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
import clew.ops  # registers the operators
from clew import te
from clew.ir.expr import Function, If, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import TensorType
from clew.loop.schedule import Schedule
from clew.patterns import Pattern, is_op, is_tuple_get_item, wildcard

RNG = np.random.default_rng(1)
PARALLEL = """
clew 1
def @main(
  %x: f32[8, 32]  // input x
) -> (f32[8, 16], f32[8, 16]) with outputs=["y", "z"] {
  %w: f32[32, 16] = const @w  // parameter w
  %v: f32[32, 16] = const @v  // parameter v
  %0 = nn.matmul(%x, %w)  // q:MatMul#0
  %1 = nn.relu(%0)  // qa:Relu#0
  %2 = nn.matmul(%x, %v)  // k:MatMul#0
  %3 = tanh(%2)  // ka:Tanh#0
  %4 = (%1, %3)  // ka:Tanh
  return %4
}
"""
BLOCK = """
clew 1
def @main(
  %x: f32[1, 32, 14, 14]  // input x
) -> (f32[1, 32, 14, 14],) with outputs=["y"] {
  %w: f32[32, 32, 3, 3] = const @w  // parameter w
  %g: f32[32] = const @g  // parameter g
  %v: f32[32] = const @v  // parameter v
  %w2: f32[64, 32, 1, 1] = const @w2  // parameter w2
  %w3: f32[32, 64, 1, 1] = const @w3  // parameter w3
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1])  // c1:Conv#0
  %1 = nn.batch_norm(%0, %g, %g, %g, %v)  // bn:BatchNorm#0
  %2 = nn.relu(%1)  // r1:Relu#0
  %3 = nn.conv2d(%2, %w2)  // c2:Conv#0
  %4 = nn.relu(%3)  // r2:Relu#0
  %5 = nn.conv2d(%4, %w3)  // c3:Conv#0
  %6 = add(%5, %x)  // res:Add#0
  %7 = nn.relu(%6)  // r3:Relu#0
  %8 = (%7,)  // r3:Relu
  return %8
}
"""
SYMBOLIC = """
clew 1
def @main(
  %x: f32[n, 32],  // input x
  %b: f32[32, 16]  // input b
) -> (f32[n],) with outputs=["y"] {
  %0 = exp(%x)  // e:Exp#0
  %1 = mean(%0, axes=[1], keepdims=true)  // m:Mean#0
  %2 = subtract(%0, %1)  // s:Sub#0
  %3 = nn.matmul(%2, %b)  // p:MatMul#0
  %4 = max(%3, axes=[1], keepdims=false)  // t:Max#0
  %5 = (%4,)  // t:Max
  return %5
}
"""
FACTORS = {
    "w": RNG.standard_normal((32, 16)).astype("f4"),
    "v": RNG.standard_normal((32, 16)).astype("f4"),
}
WEIGHTS = {
    "w": RNG.standard_normal((32, 32, 3, 3)).astype("f4") * 0.1,
    "g": RNG.standard_normal(32).astype("f4"),
    "v": RNG.uniform(0.5, 1, 32).astype("f4"),
    "w2": RNG.standard_normal((64, 32, 1, 1)).astype("f4") * 0.1,
    "w3": RNG.standard_normal((32, 64, 1, 1)).astype("f4") * 0.1,
}
w = wildcard


def conv(x: Pattern) -> Pattern:
    return is_op("nn.conv2d")(x, w())


def relu(x: Pattern) -> Pattern:
    return is_op("nn.relu")(x)


NORMED = is_op("nn.batch_norm")(conv(w()), w(), w(), w(), w())
NORMED = NORMED | is_tuple_get_item(NORMED, 0)
PATTERNS = {
    "norm": NORMED,
    "first": relu(NORMED),
    "two": relu(conv(relu(NORMED))),
    "block": relu(is_op("add")(conv(relu(conv(relu(NORMED)))), w())),
    "tail": relu(is_op("add")(w(), w())),
}


def mine(pattern: Pattern, mode: Any) -> Any:
    @clew.fusion(pattern, mode)
    def mine(found: Any) -> None: ...

    return mine


def holds(module: Module, compiled: clew.CompiledModel, given: Any, precision: str) -> None:
    expected = interpret(module, given)
    close = 2e-4 if precision == "f32" else 3e-2
    for name, found in compiled.run(given).items():
        largest = np.abs(expected[name]).max()
        np.testing.assert_allclose(found, expected[name], rtol=0, atol=close * largest)
    assert [k.name for k in compiled.kernels].count("mine") == 1


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mode", ["stack", "melt"])
def test_products_that_would_be_merged(mode: str, precision: str) -> None:
    module = parse_module(PARALLEL, FACTORS)
    pattern = relu(is_op("nn.matmul")(w(), w()))
    compiled = clew.compile(
        module,
        extend=[mine(pattern, mode)],
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
        precision=precision,
    )
    holds(module, compiled, {"x": RNG.standard_normal((8, 32)).astype("f4")}, precision)
    assert compiled.trace.check() == []


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("mode", ["stack", "melt"])
@pytest.mark.parametrize("what", PATTERNS)
def test_convolutions_and_what_folds_into_them(
    what: str, mode: str, precision: str, opt_level: int
) -> None:
    """Norms are folded, convolutions get other layouts and algorithms (Winograd, matrix units)."""
    module = parse_module(BLOCK, WEIGHTS)
    compiled = clew.compile(
        module,
        extend=[mine(PATTERNS[what], mode)],
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
        precision=precision,
        opt_level=opt_level,
    )
    given = {"x": RNG.standard_normal((1, 32, 14, 14)).astype("f4") * np.float32(0.5)}
    holds(module, compiled, given, precision)
    assert compiled.trace.check() == []


@pytest.mark.parametrize("mode", ["stack", "melt"])
def test_a_region_in_a_branch(mode: str) -> None:
    type_, op = TensorType((8, 32), "f32"), clew.get_op
    p, q, x = (Var(name, type_) for name in "pqx")
    cond = Var("c", TensorType((), "bool"))
    then = Function([p], op("sum")(op("tanh")(op("exp")(p)), axes=(1,), keepdims=False))
    other = Function([q], op("max")(q, axes=(1,), keepdims=False))
    main = Function([cond, x], Tuple([If(cond, then, other, [x])]), {"outputs": ("y",)})
    module = Module({"main": main})
    pattern = is_op("sum")(is_op("tanh")(is_op("exp")(w())))
    compiled = clew.compile(
        module, extend=[mine(pattern, mode)], threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    for value in (True, False):
        given = {"c": np.array(value), "x": RNG.standard_normal((8, 32)).astype("f4")}
        holds(module, compiled, given, "f32")


@pytest.mark.parametrize("mode", ["stack", "melt"])
def test_symbolic_sizes(mode: str) -> None:
    module = parse_module(SYMBOLIC)
    e = is_op("exp")(w())
    centered = is_op("subtract")(e, is_op("mean")(e))
    pattern = is_op("max")(is_op("nn.matmul")(centered, w()))
    compiled = clew.compile(
        module, extend=[mine(pattern, mode)], threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    for n in (1, 5, 33):
        given = {
            "x": RNG.standard_normal((n, 32)).astype("f4") * np.float32(0.5),
            "b": RNG.standard_normal((32, 16)).astype("f4"),
        }
        holds(module, compiled, given, "f32")


CHAIN = """
clew 1
def @main(%x: f32[8, 32]) -> (f32[8, 32], f32[8, 32], f32[8, 32]) with outputs=["y", "z", "u"] {
  %0 = tanh(%x)  // a:Tanh#0
  %1 = tanh(%0)  // b:Tanh#0
  %2 = tanh(%1)  // c:Tanh#0
  %3 = (%0, %1, %2)
  return %3
}
"""


def test_a_schedule_for_one_of_equal_kernels() -> None:
    """Equal kernels share code, until one of them has a schedule of its own."""

    @clew.schedule_for("tanh_2")
    def third(schedule: Schedule) -> None:
        schedule.split("tanh.i1", 8)
        schedule.vectorize("tanh.i1.i")

    compiled = clew.compile(
        parse_module(CHAIN),
        extend=[third],
        passes=clew.Passes(fuse=False),
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
    )
    rules = {k.name: k.rules for k in compiled.kernels}
    assert rules["tanh_2"] == ("third",)
    assert rules["tanh"] == rules["tanh_1"] != ("third",)
    x = RNG.standard_normal((8, 32)).astype("f4")
    np.testing.assert_allclose(compiled.run({"x": x})["u"], np.tanh(np.tanh(np.tanh(x))), rtol=1e-5)


def test_models_keep_the_operator_that_they_were_built_with() -> None:
    text = """
clew 1
def @main(%x: f32[n, 4]) -> (f32[n, 4],) with outputs=["y"] {
  %0 = edges.scaled(%x)  // scaled:Scaled#0
  %1 = (%0,)
  return %1
}
"""

    def declare(factor: float) -> Module:
        @clew.register_op("edges.scaled", overwrite=True)
        def scaled(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *i: x[i] * factor, "scaled")

        return parse_module(text)

    first = declare(2.0)
    old = clew.compile(first)
    one = {"x": np.ones((2, 4), np.float32)}
    assert old.run(one)["y"][0, 0] == 2.0
    new = clew.compile(declare(3.0))
    assert new.run(one)["y"][0, 0] == 3.0
    # Another size is another build, with the operator of its own module.
    assert old.run({"x": np.ones((3, 4), np.float32)})["y"][0, 0] == 2.0
    assert clew.compile(first).run(one)["y"][0, 0] == 2.0


def blocks_text() -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """Two blocks in a row, each of three branches that are joined."""
    lines, weights, count = [], {}, 0

    def conv(source: str, channels: int, filters: int, size: int) -> str:
        nonlocal count
        name, pad = f"w{count}", size // 2
        shape = (filters, channels, size, size)
        weights[name] = RNG.normal(0, 0.1, shape).astype("f4")
        lines.append(f"%{name}: f32{list(shape)} = const @{name}  // parameter {name}")
        layer = f"c{count}"
        padding = f"padding=[{pad}, {pad}, {pad}, {pad}]"
        lines.append(f"%{layer} = nn.conv2d({source}, %{name}, {padding})  // {layer}:Conv#0")
        lines.append(f"%r{count} = nn.relu(%{layer})  // r{count}:Relu#0")
        count += 1
        return f"%r{count - 1}"

    source = "%x"
    for block in range(2):
        ends = [
            conv(source, 96, 48, 1),
            conv(conv(source, 96, 32, 1), 32, 32, 3),
            conv(conv(source, 96, 16, 1), 16, 16, 5),
        ]
        joined = ", ".join(ends)
        lines.append(f"%j{block} = concatenate({joined}, axis=1)  // j{block}:Concat#0")
        source = f"%j{block}"
    lines += [f"%t = ({source},)  // j1:Concat", "return %t"]
    body = "\n  ".join(lines)
    types = "(f32[1, 96, 14, 14],)"
    head = (
        f'clew 1\ndef @main(\n  %x: f32[1, 96, 14, 14]  // input x\n) -> {types} with outputs=["y"]'
    )
    return f"{head} {{\n  {body}\n}}\n", weights


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_blocks_in_a_row(precision: str, opt_level: int) -> None:
    """What is built for the end of one and the beginning of the next is in one of them."""
    module = parse_module(*blocks_text())
    x = w()
    block = is_op("concatenate")(
        relu(conv(x)), relu(conv(relu(conv(x)))), relu(conv(relu(conv(x))))
    )
    compiled = clew.compile(
        module,
        extend=[mine(block, "stack")],
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
        precision=precision,
        opt_level=opt_level,
    )
    given = {"x": RNG.standard_normal((1, 96, 14, 14)).astype("f4")}
    expected = interpret(module, given)["y"]
    found = compiled.run(given)["y"]
    close = 2e-4 if precision == "f32" else 3e-2
    np.testing.assert_allclose(found, expected, rtol=0, atol=close * np.abs(expected).max())
    names = [k.name for k in compiled.kernels]
    assert [n for n in names if n.startswith("mine")] == ["mine", "mine_1"]
    assert compiled.trace.check() == []
