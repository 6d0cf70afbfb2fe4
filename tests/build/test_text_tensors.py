"""Tensors of text and complex numbers: moved between kernels, in and out, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
from clew.ir.expr import Constant
from clew.ir.parser import parse_module
from clew.ir.textfile import load_arrays, save_arrays
from clew.support.errors import GraphTypeError, InputError, ModelError
from clew.support.text_arrays import TEXT, holds_text, packed, unpacked

pytestmark = pytest.mark.usefixtures("shared_kernels")

WORDS = np.array([["a", "b"], ["c", "é\0"]], object)


def model(dtype: int, raw: bool = False) -> onnx.ModelProto:
    """Joins the input with a constant, transposes, flattens, picks, cuts."""
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
        helper.make_node("Transpose", ["c"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["e"]),
        helper.make_node("Gather", ["e", "places"], ["picked"]),
        helper.make_node("Slice", ["e", "from", "to"], ["cut"]),
        helper.make_node("Identity", ["a"], ["same"]),
    ]
    values = [b"x", b"yy"] if dtype == TensorProto.STRING else [1 + 2j, 3 - 1j]
    constants = [
        helper.make_tensor("b", dtype, [1, 2], values),
        helper.make_tensor("shape", TensorProto.INT64, [1], [6]),
        helper.make_tensor("places", TensorProto.INT64, [2], [5, 0]),
        helper.make_tensor("from", TensorProto.INT64, [1], [1]),
        helper.make_tensor("to", TensorProto.INT64, [1], [3]),
    ]
    if raw:
        constants[0].raw_data = b"bytes"
    outputs = [helper.make_tensor_value_info(n, dtype, None) for n in ("picked", "cut", "same")]
    inputs = [helper.make_tensor_value_info("a", dtype, [2, 2])]
    graph = helper.make_graph(nodes, "moves", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_text_moves_and_comes_back_as_strings(tmp_path: Path) -> None:
    compiled = clew.compile(model(TensorProto.STRING), cache=False)
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew")
    for which in (compiled, loaded):
        for given in (WORDS, WORDS.astype(np.dtypes.StringDType())):
            picked, cut, same = which(given)
            assert picked.tolist() == ["yy", "a"]
            assert cut.tolist() == ["c", "x"]
            assert same.tolist() == WORDS.tolist()
            assert {a.dtype for a in (picked, cut, same)} == {np.dtype(object)}
    assert compiled(np.array([[b"a", b"b"], [b"c", b"d"]]))[1].tolist() == ["c", "x"]


def test_complex_numbers_move() -> None:
    compiled = clew.compile(model(TensorProto.COMPLEX64), cache=False)
    given = np.array([[1j, 2], [3, 4]], np.complex64)
    picked, cut, _ = compiled(given)
    np.testing.assert_array_equal(picked, np.array([3 - 1j, 1j], np.complex64))
    np.testing.assert_array_equal(cut, np.array([3, 1 + 2j], np.complex64))


@pytest.mark.parametrize("wrong", [np.array([["a", 3], ["b", "c"]], object), np.ones((2, 2))])
def test_what_is_no_text_is_refused(wrong: np.ndarray) -> None:
    compiled = clew.compile(model(TensorProto.STRING), cache=False)
    with pytest.raises(InputError, match="I043"):
        compiled(wrong)


def test_text_in_raw_bytes_is_refused() -> None:
    with pytest.raises(ModelError, match="M006"):
        clew.compile(model(TensorProto.STRING, raw=True), cache=False)


def test_a_module_with_text_is_read_again(tmp_path: Path) -> None:
    module = clew.load(model(TensorProto.STRING))
    assert str(parse_module(str(module))) == str(module)
    arrays = {"words": WORDS.astype(TEXT), "numbers": np.array([1j, 2], np.complex64)}
    save_arrays(tmp_path / "arrays.npz", arrays)
    again = load_arrays(tmp_path / "arrays.npz")
    assert again["words"].tolist() == WORDS.tolist()
    assert again["numbers"].tolist() == [1j, 2]


def test_packed_text_is_what_equal_texts_share() -> None:
    one = np.array(["long text that is kept elsewhere", "", "é\0"], TEXT)
    other = np.array(["long text that is kept elsewhere", "", "é\0"], TEXT)
    assert packed(one).tobytes() == packed(other).tobytes()
    assert unpacked(packed(one), (3,)).tolist() == one.tolist()
    assert (
        packed(np.array(["ab", "c"], TEXT)).tobytes()
        != packed(np.array(["a", "bc"], TEXT)).tobytes()
    )
    for damaged in (packed(one)[:-1], packed(one)[:5]):
        with pytest.raises(ValueError, match="text"):
            unpacked(damaged, (3,))


@pytest.mark.parametrize("text", ["map<i64, f32[2]>", "seq<map<str, f32[]>>"])
def test_types_of_maps_are_read_again(text: str) -> None:
    module = parse_module(f"clew 1\ndef @main(%m: {text}) -> {text} {{\n  return %m\n}}\n")
    assert str(module.main.params[0].type) == text


def one_node(op: str) -> onnx.ModelProto:
    """Returns a model of an operator on texts `x[n]`, and on one text `z` if it takes two."""
    names = ["x", "z"] if op in ("Equal", "StringConcat") else ["x"]
    shapes: dict[str, list[str]] = {"x": ["n"], "z": []}
    inputs = [helper.make_tensor_value_info(n, TensorProto.STRING, shapes[n]) for n in names]
    kind = TensorProto.BOOL if op == "Equal" else TensorProto.STRING
    node = helper.make_node(op, names, ["y"])
    graph = helper.make_graph(
        [node], "one", inputs, [helper.make_tensor_value_info("y", kind, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize(
    "wrong", [["a", None], ["a", 1.0], [float("nan"), "a"], ["\ud800", "a"], [b"\xff", "a"]]
)
def test_each_array_of_objects_is_checked(wrong: list[object]) -> None:
    """Whatever arrays of this shape an earlier call had."""
    compiled = clew.compile(one_node("Identity"), cache=False)
    assert compiled(np.array(["a", "b"], object)).tolist() == ["a", "b"]
    with pytest.raises(InputError, match="I043"):
        compiled(np.array(wrong, object))


@pytest.mark.parametrize("wrong", [None, 3, "\udc00"])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9999])
def test_long_arrays_are_checked_to_the_end(wrong: object, place: int) -> None:
    texts = np.array(["a", "é"] * 5000, object)
    assert holds_text(texts)
    texts[place] = wrong
    assert not holds_text(texts)


def test_texts_of_other_classes_become_plain_ones() -> None:
    class Other(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    compiled = clew.compile(one_node("Identity"), cache=False)
    found = compiled(np.array([Other("a"), np.str_("b\0"), b"c"], object))
    assert [type(item) for item in found] == [str, str, str]
    assert found.tolist() == ["a", "b\0", "c"]


def test_results_are_no_inputs() -> None:
    compiled, given = clew.compile(one_node("Identity"), cache=False), np.array(["a", "b"], object)
    found = compiled(given)
    found[0] = "z"
    assert given.tolist() == ["a", "b"]


def test_a_text_without_axes_remains_an_array() -> None:
    x, z = np.array(["a", "b\0"], object), np.array("b\0", object)
    equal = clew.compile(one_node("Equal"), cache=False)
    assert equal(x, z).tolist() == [False, True]
    joined = clew.compile(one_node("StringConcat"), cache=False)
    assert joined(x, z).tolist() == ["ab\0", "b\0b\0"]
    pick = clew.parse("""clew 1
def @main(%x: str[n], %n: i64[]) -> str[] {
  %0: str[] = gather(%x, %n, axis=0)
  return %0
}
""")
    found = clew.compile(pick, cache=False)(x, np.array(1))
    assert found.shape == ()
    assert found.item() == "b\0"


def test_padding_is_empty_text() -> None:
    module = clew.parse("""clew 1
def @main(%x: str[2]) -> str[4] {
  %0: str[4] = pad(%x, pads=[1, 1], mode="constant", value=0.0)
  return %0
}
""")
    found = clew.compile(module, cache=False)(np.array(["a", "b"], object))
    assert [(type(item), item) for item in found] == [(str, t) for t in ("", "a", "b", "")]


def test_constants_of_other_objects_are_refused() -> None:
    assert Constant(np.array(["a", b"b"], object)).data.tolist() == ["a", "b"]
    for wrong in (["a", None], ["\ud800"]):
        with pytest.raises(GraphTypeError, match="T001"):
            Constant(np.array(wrong, object))


def test_a_lookup_is_one_step_for_all_sizes() -> None:
    """It runs no kernel, so that a build for single sizes would gain nothing."""
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[7]
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph([node], "lookup", [x], [y])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    compiled = clew.compile(helper.make_model(graph, opset_imports=opsets), cache=False)
    for _ in range(40):
        found = compiled(np.array(["a", "b"] * 500, object))
    assert found.tolist() == [7, -1] * 500
    assert compiled.build.program.whole is not None
    assert compiled.build.program.only_collects
    assert compiled.specialized == ()
