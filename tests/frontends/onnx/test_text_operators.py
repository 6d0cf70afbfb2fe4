"""Operators on text: all that move it, patterns, numbers spelled, and hostile text."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clew
from clew.ops.data.text import compiled_pattern
from clew.support.errors import ClewError

STRING = TensorProto.STRING
WORDS = np.array([["b", "a", "é"], ["", "b", "long text that is kept elsewhere"]], object)


def run(op: str, *arrays: np.ndarray, outputs: int = 1, opset: int = 22, **attrs: Any) -> Any:
    """Runs a node: text is an input, other arrays are constants."""
    names = [f"x{n}" for n in range(len(arrays))]
    results = [f"y{n}" for n in range(outputs)]
    inputs, constants, feeds = [], [], {}
    for name, array in zip(names, arrays, strict=True):
        if array.dtype == object:
            inputs.append(helper.make_tensor_value_info(name, STRING, array.shape))
            feeds[name] = array
        else:
            constants.append(onnx.numpy_helper.from_array(array, name))
    node = helper.make_node(op, names, results, **attrs)
    values = [helper.make_value_info(name, onnx.TypeProto()) for name in results]
    graph = helper.make_graph([node], "text", inputs, values, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return list(clew.compile(model, cache=False, threads=1).run(feeds).values())


I = np.array  # noqa: E741
MOVES: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any], Any]] = [
    ("Identity", (WORDS,), {}, WORDS),
    ("Transpose", (WORDS,), {"perm": [1, 0]}, WORDS.T),
    ("Reshape", (WORDS, I([3, -1])), {}, WORDS.reshape(3, 2)),
    ("Flatten", (WORDS,), {"axis": 0}, WORDS.reshape(1, 6)),
    ("Squeeze", (WORDS[:1], I([0])), {}, WORDS[0]),
    ("Unsqueeze", (WORDS, I([1])), {}, WORDS[:, None]),
    ("Slice", (WORDS, I([2]), I([0]), I([1]), I([-1])), {}, WORDS[:, 2:0:-1]),
    ("Gather", (WORDS, I([2, 0])), {"axis": 1}, WORDS[:, [2, 0]]),
    ("GatherElements", (WORDS, I([[0, 1, 0]])), {"axis": 0}, WORDS[[[0, 1, 0]], [[0, 1, 2]]]),
    ("GatherND", (WORDS, I([[0, 2], [1, 1]])), {}, WORDS[[0, 1], [2, 1]]),
    ("Concat", (WORDS, WORDS), {"axis": 1}, np.concatenate([WORDS, WORDS], 1)),
    ("Expand", (WORDS[:, :1], I([2, 4])), {}, np.broadcast_to(WORDS[:, :1], (2, 4))),
    ("Tile", (WORDS, I([1, 2])), {}, np.tile(WORDS, (1, 2))),
    ("Where", (I([[True], [False]]), WORDS, WORDS[:, ::-1].copy()), {}, None),
    ("Compress", (WORDS, I([True, False, True])), {"axis": 1}, WORDS[:, [0, 2]]),
    ("NonZero", (WORDS,), {}, I([[0, 0, 0, 1, 1], [0, 1, 2, 1, 2]])),
    ("Shape", (WORDS,), {}, I([2, 3])),
    ("Size", (WORDS,), {}, I(6)),
    ("Trilu", (WORDS,), {"upper": 1}, I([["b", "a", "é"], ["", "b", WORDS[1, 2]]], object)),
    ("ReverseSequence", (WORDS.T.copy(), I([3, 2])), {}, None),
    ("Pad", (WORDS, I([0, 1, 0, 0])), {}, np.pad(WORDS, ((0, 0), (1, 0)), constant_values="")),
    ("DepthToSpace", (np.tile(WORDS.reshape(-1)[:4], 1).reshape(1, 4, 1, 1),), {"blocksize": 2},
     WORDS.reshape(-1)[:4].reshape(1, 1, 2, 2)),
    ("ScatterElements", (WORDS, I([[1, 0, 1]]), I([["x", "y", "z"]], object)), {"axis": 0}, None),
    ("ScatterND", (WORDS, I([[1, 1]]), I(["x"], object)), {}, None),
    ("Equal", (WORDS, WORDS[:, ::-1].copy()), {}, WORDS[:, ::-1] == WORDS),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arrays", "attrs", "expected"), MOVES, ids=[m[0] for m in MOVES])
def test_operators_move_text(op: str, arrays: Any, attrs: Any, expected: Any) -> None:
    (found,) = run(op, *arrays, **attrs)
    if op == "Where":
        expected = np.where(*arrays)
    elif op == "ReverseSequence":
        expected = arrays[0].copy()
        expected[:, 0] = expected[::-1, 0]
        expected[:2, 1] = expected[1::-1, 1]
    elif op == "ScatterElements":
        expected = I([["b", "y", "é"], ["x", "b", "z"]], object)
    elif op == "ScatterND":
        expected = arrays[0].copy()
        expected[1, 1] = "x"
    assert found.tolist() == expected.tolist()


def test_split_and_unique() -> None:
    first, second = run("Split", WORDS, I([1, 2]), outputs=2, axis=1)
    assert (first.tolist(), second.tolist()) == (WORDS[:, :1].tolist(), WORDS[:, 1:].tolist())
    flat = I(["b", "a", "b", ""], object)
    values, places, inverse, counts = run("Unique", flat, outputs=4)
    assert values.tolist() == ["", "a", "b"]
    assert (places.tolist(), inverse.tolist()) == ([3, 1, 0], [2, 1, 2, 0])
    assert counts.tolist() == [1, 1, 2]


def test_constants_of_text() -> None:
    assert run("Constant", value_string="é\0x")[0].item() == "é\0x"
    assert run("Constant", value_strings=["a", ""])[0].tolist() == ["a", ""]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "to", "expected"),
    [
        (["1.5", "-INF", "1e400", " 7 "], TensorProto.FLOAT, [1.5, -np.inf, np.inf, 7]),
        (["9007199254740993", "100.5", "1E2"], TensorProto.INT64, [9007199254740993, 100, 100]),
        (["true", "0", "2.5"], TensorProto.BOOL, [True, False, True]),
        (["0.1", "65504"], TensorProto.FLOAT16, np.array([0.1, 65504], "f2").tolist()),
        (["1.5", "nan"], TensorProto.BFLOAT16, [1.5, np.nan]),
        (["-128", "127"], TensorProto.INT8, [-128, 127]),
    ],
)  # fmt: skip
def test_text_to_numbers(texts: list[str], to: int, expected: list[Any]) -> None:
    (found,) = run("Cast", I(texts, object), to=to)
    exact = found.dtype.kind == "i"
    np.testing.assert_array_equal(found if exact else found.astype("f8"), expected)


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ("Hello World!", TensorProto.FLOAT),
        ("", TensorProto.FLOAT),
        ("1_000", TensorProto.FLOAT),
        ("0x10", TensorProto.INT32),
        ("٣", TensorProto.INT32),
        ("nan", TensorProto.INT32),
        ("1e999", TensorProto.INT64),
        ("128", TensorProto.INT8),
        ("-1", TensorProto.UINT8),
        ("9" * 5000, TensorProto.INT64),
        ("yes", TensorProto.BOOL),
    ],
)
def test_text_that_spells_no_number(text: str, to: int) -> None:
    with pytest.raises(ClewError, match="T160"):
        run("Cast", I([text], object), to=to)


def test_numbers_to_text() -> None:
    def spelled(values: list[Any], dtype: str) -> list[str]:
        x = helper.make_tensor_value_info(
            "x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [len(values)]
        )
        y = helper.make_tensor_value_info("y", STRING, None)
        graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=8)], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        return clew.compile(model, cache=False)(np.array(values, dtype)).tolist()

    assert spelled([0.1, 1, -np.inf, np.nan], "f4") == ["0.1", "1.0", "-INF", "NaN"]
    assert spelled([1 / 3], "f8") == ["0.3333333333333333"]
    assert spelled([-(2**63)], "i8") == ["-9223372036854775808"]
    assert spelled([True, False], "?") == ["True", "False"]


# --- patterns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "texts", "expected"),
    [
        (r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)", ["a.b@gmail.com", "x@me.com"], [1, 0]),
        ("a{2,4}", ["a", "aa", "aaaa", "aaaaa"], [0, 1, 1, 0]),
        ("a{,2}", ["a{,2}", "a"], [1, 0]),
        ("(?i)straße|ÉTÉ", ["STRAßE", "été", "ete"], [1, 1, 0]),
        ("(?s:.)a", ["\na", "ba"], [1, 1]),
        (".a", ["\na", "ba"], [0, 1]),
        ("(?m)^a$\n^b$", ["a\nb"], [1]),
        (r"\bab\b", ["ab", "a"], [1, 0]),
        (r"\Qa.b\E+", ["a.bb", "axb"], [1, 0]),
        (r"[[:alpha:]\d_-]+", ["a1_-", "a b"], [1, 0]),
        (r"[^a-c\s]", ["d", "b", "\n", "é"], [1, 0, 0, 1]),
        (r"\p{Lu}\PL\x41\x{1F600}", ["É1A😀", "é1A😀"], [1, 0]),
        (r"\d+", ["12", "٣"], [1, 0]),
        ("(|a)*", ["", "aaa", "b"], [1, 1, 0]),
        ("", ["", "a"], [1, 0]),
        ("[]a]", ["]", "a"], [1, 1]),
        (r"\101\07", ["A\7"], [1]),
    ],
)  # fmt: skip
def test_patterns(pattern: str, texts: list[str], expected: list[int]) -> None:
    (found,) = run("RegexFullMatch", I(texts, object), pattern=pattern)
    assert found.astype(int).tolist() == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[", "a**", "*a", r"\1", r"(?=a)", r"(?<=a)b", r"(?P<1-2>a)", "[b-a]", r"\y",
        r"\p{Nobody}", "a{1001}", "a{3,2}", "((a{1000}){1000}){1000}", "(" * 500, "\\",
        r"\x{110000}",
    ],
)  # fmt: skip
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(ClewError, match="T162"):
        run("RegexFullMatch", I(["a"], object), pattern=pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*a){20}"])
def test_patterns_that_go_back_take_no_time(pattern: str) -> None:
    (found,) = run("RegexFullMatch", I(["a" * 3000 + "c"], object), pattern=pattern)
    assert not found[0]


# --- hostile text ---------------------------------------------------------------------------------


def test_bad_and_unusual_text_in_a_model() -> None:
    node = helper.make_node("StringNormalizer", ["x"], ["y"], stopwords=[b"\xff\xfe", b"a"])
    node.doc_string = "\u202e\0\uffff"
    x = helper.make_tensor_value_info("x", STRING, [None])
    y = helper.make_tensor_value_info("y", STRING, [None])
    graph = helper.make_graph([node], "\ud7ff\u2028", [x], [y], doc_string="\0")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    model.doc_string = "\U0010ffff" * 10
    entry = model.metadata_props.add()
    entry.key, entry.value = "\n", "\0"
    found = clew.compile(model, cache=False)(I(["a", "\0", "\U0010ffff"], object))
    assert found.tolist() == ["\0", "\U0010ffff"]


def test_pieces_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.ops.data.text.MAX_PIECES", 10)
    with pytest.raises(ClewError, match="T161"):
        run("StringSplit", I(["a b c d e f", "a"], object), outputs=2)


def test_patterns_need_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_pattern.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ClewError) as caught:
        run("RegexFullMatch", WORDS, pattern="a+")
    assert caught.value.code == "T168"
    assert "clew[text]" in caught.value.hint
