import time

import numpy as np
import pytest
from graphs import OPS, lookup, modules
from hypothesis import given, settings

from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, GlobalVar, If, Tuple, Var, While
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.printer import body_order, element_texts, parse_elements, print_function, printed
from clew.ir.structural import structural_equal
from clew.ir.types import FunctionType, TensorType, from_numpy
from clew.trace.span import Source, Span

BATCH = SymDim.symbol("batch")
CONV = Source("conv1", "Conv", "onnx")


def f32(*shape: int | SymDim) -> TensorType:
    return TensorType(shape, "f32")


def small_module() -> Module:
    x = Var("x", f32(BATCH, 4), span=Span([Source("x", frontend="onnx", kind="input")]))
    weight = Constant(
        np.arange(40, dtype=np.float32).reshape(10, 4),
        name="conv1.weight",
        span=Span([Source("conv1.weight", frontend="onnx", kind="parameter")]),
    )
    y = Call(OPS["add"], [x, weight], span=Span([CONV]))
    p = Var("p", f32(BATCH, 4))
    relu = Function([p], Call(OPS["nn.relu"], [p]), {"primitive": True, "name": "relu"})
    marked = Source("relu1", "Relu", "onnx", output=0)
    z = Call(OPS["clip"], [Call(relu, [y])], {"max": 6.0}, span=Span([CONV, marked]))
    return Module({"main": Function([x], Tuple([z]), {"outputs": ("y",)})})


def test_the_text_form() -> None:
    assert (
        printed(small_module()).text
        == """\
clew 1, frontend onnx
def @main(
  %x: f32[batch, 4]  // input x
) -> (f32[batch, 4],) with outputs=["y"] {
  %0 = fn(
    %p: f32[batch, 4]
  ) -> f32[batch, 4] with primitive=true, name="relu" {
    %0: f32[batch, 4] = nn.relu(%p)
    return %0
  }
  %1: f32[10, 4] = const @c0 "conv1.weight"  // parameter conv1.weight
  %2: f32[batch, 4] = add(%x, %1)  // conv1:Conv
  %3: f32[batch, 4] = %0(%2)
  %4: f32[batch, 4] = clip(%3, max=6.0)  // conv1:Conv, relu1:Relu#0
  %5: (f32[batch, 4],) = (%4,)
  return %5
}
"""
    )


def test_constants_that_are_small_or_splat_are_inline() -> None:
    values: list[np.ndarray] = [
        np.float32([0.1, -0.0, np.nan, np.inf]),
        np.array([True, False]),
        np.full((2, 2), 7, dtype=np.int8),
        np.broadcast_to(np.float32(0.5), (64, 64)),
        np.zeros((0, 3), dtype=np.float32),
    ]
    module = Module({"main": Function([], Tuple([Constant(v) for v in values]))})
    form = printed(module)
    right = [line.partition(" = ")[2] for line in form.text.splitlines()[2:7]]
    assert right == [
        "const [0.1, -0.0, nan, inf]",
        "const [true, false]",
        "const [7, 7, 7, 7]",
        "const splat 0.5",
        "const []",
    ]
    assert not form.constants


def test_one_array_has_one_name() -> None:
    data = np.arange(20.0)
    data.flags.writeable = False
    form = printed(Module({"main": Function([], Tuple([Constant(data), Constant(data)]))}))
    assert list(form.constants) == ["c0"]
    again = printed(parse_module(form.text, form.constants))
    assert again.text == form.text


def test_lazy_constants_are_computed_for_those_who_look() -> None:
    computed = []

    def compute() -> np.ndarray:
        computed.append(1)
        return np.arange(20, dtype=np.float32)

    lazy = [Constant.lazy(f32(20), compute) for _ in range(2)]
    form = printed(Module({"main": Function([], Tuple(lazy))}))
    assert list(form.constants) == ["c0", "c1"]
    assert not computed
    again = parse_module(form.text, form.constants)
    assert printed(again).text == form.text
    assert structural_equal(again, Module({"main": Function([], Tuple(lazy))}))
    count = len(computed)
    assert structural_equal(again, Module({"main": Function([], Tuple(lazy))}))
    assert len(computed) == count


@settings(max_examples=40, deadline=None)
@given(modules())
def test_every_node_has_a_place(module: Module) -> None:
    form = printed(module)
    lines = form.text.splitlines()
    pending: list[Expr] = [f for _, f in module]
    seen = set()
    while pending:
        function = pending.pop()
        assert isinstance(function, Function)
        nodes = {function, *function.params, *body_order(function.body)}
        pending += [n for n in nodes if isinstance(n, Function) and n is not function]
        seen |= nodes
    assert {n.id for n in seen} == set(form.line_of)
    assert {n.id for n in form.node_at.values()} == set(form.line_of)
    assert all(form.node_at[line].id == node for node, line in form.line_of.items())
    assert all(1 <= line <= len(lines) for line in form.node_at)


@settings(max_examples=40, deadline=None)
@given(modules())
def test_print_parse_print_is_the_identity(module: Module) -> None:
    form = printed(module)
    again = printed(parse_module(form.text, form.constants, operators=lookup))
    assert again.text == form.text
    assert {k: v.tobytes() for k, v in again.constants.items()} == {
        k: v.tobytes() for k, v in form.constants.items()
    }
    assert [n.span for n in again.node_at.values()] == [n.span for n in form.node_at.values()]
    assert [n.type for n in again.node_at.values()] == [n.type for n in form.node_at.values()]


def test_printing_is_deterministic() -> None:
    assert printed(small_module()).text == printed(small_module()).text


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_elements_survive_bit_by_bit(dtype: type) -> None:
    width = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = np.random.default_rng(0).integers(0, 2**63, 2000, dtype=np.uint64)
    values = bits.view(dtype)[:2000].copy()
    again = parse_elements(element_texts(values), from_numpy(values.dtype))
    assert np.array_equal(values.view(width), again.view(width))


def test_deep_chains_and_deep_nests_do_not_recurse() -> None:
    x = Var("x", f32(4))
    chain: Expr = x
    for _ in range(20_000):
        chain = Call(OPS["nn.relu"], [chain])
    function = Function([x], chain)
    for _ in range(2_000):
        y = Var("y", f32(4))
        function = Function([y], Call(function, [y]))
    start = time.process_time()
    form = printed(Module({"main": function}))
    seconds = time.process_time() - start
    assert form.text.count("nn.relu(") == 20_000
    assert printed(parse_module(form.text, operators=lookup)).text == form.text
    assert seconds < 20, "time is not linear"


def test_control_flow_and_globals() -> None:
    x = Var("x", f32(3))
    helper = GlobalVar("helper", FunctionType((f32(3),), f32(3)))
    a, b = Var("a", f32(3)), Var("b", f32(3))
    cond = Constant(np.array(True))
    branch = If(cond, Function([a], a), Function([b], Call(OPS["nn.relu"], [b])), [x])
    i, s = Var("i", TensorType((), "i64")), Var("s", f32(3))
    j, t = Var("i", TensorType((), "i64")), Var("s", f32(3))
    loop = While(
        Function([i, s], cond), Function([j, t], Tuple([t, t])), [branch], scans=1, trips=8
    )
    p = Var("p", f32(3))
    main = Function([x], Tuple([loop, Call(helper, [x])]))
    module = Module({"main": main, "helper": Function([p], p)})
    text = printed(module).text
    assert "= if %2 then %3 else %4 (%x)" in text
    assert "= while %0 do %1 (%5) scans=1 trips=dim[8]" in text
    assert "%7: fn(f32[3]) -> f32[3] = @helper" in text
    assert printed(parse_module(text, operators=lookup)).text == text


def test_a_lone_function_names_its_frontend() -> None:
    x = Var("x", f32(2), span=Span([CONV]))
    assert print_function(Function([x], x), "f") == (
        "def @f(\n  %x: f32[2]  // conv1:Conv@onnx\n) -> f32[2] {\n  return %x\n}\n"
    )
