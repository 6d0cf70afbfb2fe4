"""Edits: where things go, that types are checked, that selections follow, and what a trace says."""

from __future__ import annotations

import numpy as np
import pytest

import clew
import clew.ops  # registers the operators
from clew.editing import Editor
from clew.ir.expr import Constant, Expr, Tuple
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.patterns import is_op, wildcard
from clew.support.errors import ClewError, GraphTypeError, InputError

TEXT = """
clew 1
def @main(
  %x: f32[2, 8],  // input x
  %w: f32[8, 8]  // parameter w
) -> (f32[2, 8], f32[2, 4]) with outputs=["y", "z"] {
  %0 = nn.matmul(%x, %w)  // block.project:MatMul#0
  %1 = nn.relu(%0)  // block.act:Relu#0
  %2 = nn.matmul(%1, %w)  // head:Gemm
  %3 = add(%2, %1)  // head:Gemm#0
  %4 = split(%3, sizes=[4, 4], axis=1)  // cut:Split
  %5 = %4[0]  // cut:Split#0
  %6 = %4[1]  // cut:Split#1
  %7 = add(%5, %6)  // join:Add#0
  %8 = (%3, %7)
  return %8
}
"""
RELU, TANH = clew.get_op("nn.relu"), clew.get_op("tanh")
ADD, TRANSPOSE = clew.get_op("add"), clew.get_op("transpose")


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in (("x", (2, 8)), ("w", (8, 8)))}


def values(module: Module) -> list[np.ndarray]:
    given = inputs()
    reference = interpret(module, given)
    compiled = clew.compile(module)
    for name, found in compiled.run(given).items():
        np.testing.assert_allclose(found, reference[name], rtol=1e-4, atol=1e-5)
    assert compiled.trace.check() == []
    return list(reference.values())


def expected(project=lambda v: v, act=lambda v: np.maximum(v, 0), head=lambda v: v):
    given = inputs()
    hidden = act(project(given["x"] @ given["w"]))
    y = head(hidden @ given["w"] + hidden)
    return [y, y[:, :4] + y[:, 4:]]


def check(editor: Editor, wanted: list[np.ndarray]) -> None:
    for found, value in zip(values(editor.module), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.fixture
def edit() -> Editor:
    return clew.edit(parse_module(TEXT))


def test_insert_after_reaches_every_user_and_names_itself(edit: Editor) -> None:
    before = edit.module
    edit.insert_after("block.project", TANH)
    check(edit, expected(project=np.tanh))
    assert 'tanh(%0)  // edit "insert_after(block.project)":insert_after@clew#0' in str(edit)
    assert str(before) == str(parse_module(TEXT)), "the module that it began with is as it was"
    story = str(clew.compile(edit.module).trace.layer("insert_after(block.project)"))
    assert "tanh" in story


def test_insert_before_changes_the_one_input_that_is_meant(edit: Editor) -> None:
    edit.insert_before("head", TANH, input=0)
    given = inputs()
    hidden = np.tanh(np.maximum(given["x"] @ given["w"], 0))
    check(edit, [y := hidden @ given["w"] + hidden, y[:, :4] + y[:, 4:]])
    assert str(edit).count("tanh(") == 1, "two uses in one layer share what was inserted"


def test_insert_before_reads_parameters_too(edit: Editor) -> None:
    edit.insert_before("block.project", TANH, input=1)
    given = inputs()
    hidden = np.maximum(given["x"] @ np.tanh(given["w"]), 0)
    check(edit, [y := hidden @ given["w"] + hidden, y[:, :4] + y[:, 4:]])


def test_wrap_goes_there_and_back(edit: Editor) -> None:
    def turned(x: Expr) -> Expr:
        return TRANSPOSE(x, axes=(1, 0))

    edit.wrap("block.act", turned, turned, name="turned")
    check(edit, expected())
    assert "edit turned:before@clew" in str(edit)
    assert 'edit "turned#2":after@clew' in str(edit)


def test_replace_gets_the_inputs_and_serves_the_layer(edit: Editor) -> None:
    edit.replace("block.act", TANH)
    check(edit, expected(act=np.tanh))
    line = next(x for x in str(edit).splitlines() if "tanh" in x)
    assert "block.act:Relu#0" in line, "the layer has its result still"
    assert "replace(block.act)" in line


def test_replace_of_a_layer_of_several_nodes(edit: Editor) -> None:
    edit.replace("head", lambda hidden, w: ADD(hidden, clew.get_op("nn.matmul")(hidden, w)))
    check(edit, expected())


def test_replace_of_several_results_takes_a_tuple(edit: Editor) -> None:
    def halves(x: Expr) -> Expr:
        cut = clew.get_op("slice")
        left = cut(x, begin=(0,), end=(4,), axes=(1,))
        return Tuple([left, cut(x, begin=(4,), end=(8,), axes=(1,))])

    edit.replace("cut", halves)
    check(edit, expected())


def test_remove_reads_past_it(edit: Editor) -> None:
    edit.remove("block.act")
    check(edit, expected(act=lambda v: v))
    with pytest.raises(InputError, match="I050"):
        edit.select("block.act")


def test_set_dtype_casts_there_and_back(edit: Editor) -> None:
    edit.set_dtype("head", "f64")
    check(edit, expected())
    assert "f64[2, 8] = nn.matmul" in str(edit)
    assert edit.module.main.body.type == parse_module(TEXT).main.body.type


def test_selecting(edit: Editor) -> None:
    assert edit.select("block.*").names == ("block.project", "block.act")
    assert edit.select(op="nn.matmul").names == ("block.project", "head")
    assert edit.select("head", op="nn.matmul").names == ("head",)
    assert edit.select(
        where=lambda c: str(c.type) == str(c.args[0].type) and "4]" in str(c.type)
    ).names == ("join",)
    relu_of_product = is_op("nn.relu")(is_op("nn.matmul")(wildcard(), wildcard()))
    (part,) = edit.select(pattern=relu_of_product)
    assert len(part.nodes) == 2
    (kernel, *_) = clew.compile(edit.module).kernels
    assert set(edit.select(kernel).names) == set(kernel.layers)


def test_a_selection_follows_the_graph(edit: Editor) -> None:
    products = edit.select(op="nn.matmul")
    last = products[-1:]
    edit.insert_after(products, RELU)
    edit.insert_after(last, TANH)
    edit.insert_before("block.project", TANH)
    given = inputs()
    hidden = np.maximum(np.maximum(np.tanh(given["x"]) @ given["w"], 0), 0)
    y = np.maximum(np.tanh(hidden @ given["w"]), 0) + hidden
    check(edit, [y, y[:, :4] + y[:, 4:]])
    assert all(
        c in set(map(id, edit.select(op="nn.matmul").calls)) for c in map(id, products.calls)
    )


def test_inside_branches() -> None:
    module = parse_module("""
clew 1
def @main(%c: bool[], %x: f32[4]) -> (f32[4],) with outputs=["y"] {
  %0 = fn(%a: f32[4]) -> f32[4] {
    %0 = nn.relu(%a)  // branch/act:Relu#0
    return %0
  }
  %1 = fn(%a: f32[4]) -> f32[4] {
    return %a
  }
  %2 = if %c then %0 else %1 (%x)  // choose:If#0
  %3 = (%2,)
  return %3
}
""")
    edit = clew.edit(module).insert_after("branch/act", TANH)
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for flag in (True, False):
        y = clew.compile(edit.module).run({"c": np.array(flag), "x": x})["y"]
        np.testing.assert_allclose(y, np.tanh(np.maximum(x, 0)) if flag else x, rtol=1e-6)


def _two_results(x: Expr) -> Expr:
    return Tuple([x])


@pytest.mark.parametrize(
    ("attempt", "code"),
    [
        (lambda e: e.select("blokc.act"), "I050"),
        (lambda e: e.select(op="nn.conv2d"), "I051"),
        (lambda e: e.select(), "I051"),
        (lambda e: e.select(op="nn.nothing"), "T016"),
        (lambda e: e.insert_after("head", lambda x: 1.0), "I052"),
        (lambda e: e.replace("cut", lambda x: x), "I055"),
        (lambda e: e.replace("cut", _two_results), "I055"),
        (lambda e: e.insert_after("head", RELU, output=1), "I054"),
        (lambda e: e.insert_before("head", RELU, input=-1), "I054"),
        (lambda e: e.remove("head", input=7), "I054"),
        (lambda e: e.replace("block.act", lambda x: TRANSPOSE(x, axes=(1, 0))), "I055"),
        (lambda e: e.set_dtype("head", "i8"), "I056"),
        (lambda e: e.insert_after(clew.edit(e.module).select("head"), RELU), "I057"),
    ],
)  # fmt: skip
def test_mistakes_are_said_and_change_nothing(edit: Editor, attempt, code: str) -> None:
    before = edit.module
    with pytest.raises(ClewError) as caught:
        attempt(edit)
    assert caught.value.code == code
    assert caught.value.hint or code == "I054"
    assert edit.module is before


def test_types_are_checked_at_once_and_name_the_layer(edit: Editor) -> None:
    before = edit.module
    with pytest.raises(GraphTypeError) as caught:
        edit.insert_after("block.project", lambda x: TRANSPOSE(x, axes=(1, 0)))
    assert caught.value.layer == "head"
    assert edit.module is before


def test_a_constant_can_be_inserted(edit: Editor) -> None:
    half = Constant(np.float32(0.5))
    edit.insert_after("head", lambda y: clew.get_op("multiply")(y, half))
    check(edit, expected(head=lambda v: v * 0.5))
