"""Operators on texts, apart from their samples."""

from __future__ import annotations

import numpy as np
import pytest

from clew.ir.types import to_numpy
from clew.ops.registry import get_op
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT


@pytest.mark.parametrize("delimiter", ["-", "--", "", "\0"])
@pytest.mark.parametrize("max_splits", [-1, 0, 1])
def test_pieces_are_those_of_each_text(delimiter: str, max_splits: int) -> None:
    """Delimiters at the ends of texts do not run into each other."""
    texts = ["a-", "-b", "", "--", "a\0 b--c", "é"]
    op = get_op("text.split")
    attrs = op.bind({"delimiter": delimiter, "max_splits": max_splits})
    pieces, counts = op.run_reference([np.array(texts, TEXT)], attrs)
    rows = [text.split(delimiter or None, max_splits) for text in texts]
    assert counts.tolist() == [len(row) for row in rows]
    assert pieces.tolist() == [row + [""] * (pieces.shape[1] - len(row)) for row in rows]


@pytest.mark.parametrize("wrong", ["1_0", "\u0663", "0x1", "", "+-1", "1e", "--1"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_what_only_python_reads_is_no_number(wrong: str, dtype: str) -> None:
    op = get_op("text.to_number")
    with pytest.raises(GraphTypeError, match="T160"):
        op.run_reference([np.array(["1", wrong], TEXT)], op.bind({"dtype": dtype}))


def test_integers_out_of_range_are_refused() -> None:
    op = get_op("text.to_number")
    found = op.run_reference([np.array(["-128", " 127 "], TEXT)], op.bind({"dtype": "i8"}))
    assert found.tolist() == [-128, 127]
    for wrong in ("128", "-129", "9" * 500):
        with pytest.raises(GraphTypeError, match="T160"):
            op.run_reference([np.array([wrong], TEXT)], op.bind({"dtype": "i8"}))


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
def test_the_ends_of_integers(dtype: str) -> None:
    op, limits = get_op("text.to_number"), np.iinfo(to_numpy(dtype))
    texts = ["1.9", str(limits.min), str(limits.max), "0"]
    found = op.run_reference([np.array(texts, TEXT)], op.bind({"dtype": dtype}))
    assert found.dtype == to_numpy(dtype)
    assert found.tolist() == [1, limits.min, limits.max, 0]
    for wrong in (limits.min - 1, limits.max + 1):
        with pytest.raises(GraphTypeError, match=f"T160.*'{wrong}'"):
            op.run_reference([np.array(["7", str(wrong)], TEXT)], op.bind({"dtype": dtype}))


@pytest.mark.parametrize("others", [0, 40])
def test_floats_above_the_largest_are_infinite(others: int) -> None:
    texts = ["3.4e38", "3.5e38", "-1e300", "1e9"] * (1 + others)
    with np.errstate(all="raise"):
        found = get_op("text.to_number").run_reference([np.array(texts, TEXT)], {})
    expected = np.array([3.4e38, np.inf, -np.inf, 1e9], np.float32)
    assert np.array_equal(found, np.tile(expected, 1 + others))


def test_many_and_few_keys_give_the_same_rows() -> None:
    op, x = get_op("one_hot_of_keys"), np.array([["7", "0"], ["5", "120"]], TEXT)
    keys = np.array([str(n) for n in range(200)], TEXT)
    few, many = (op.run_reference([x, k], op.bind({})) for k in (keys[:128], keys))
    np.testing.assert_array_equal(few, many[..., :128])
    assert few.argmax(-1).tolist() == [[7, 0], [5, 120]]
    x[1, 0] = "x"
    with pytest.raises(GraphTypeError, match="'x' is not one of the 200"):
        op.run_reference([x, keys], op.bind({}))
