"""Values that are no tensors, at a model's boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clew.runtime.drawing import draw
from clew.runtime.input_spec import InputSpec
from clew.runtime.kinds import Kind
from clew.support.errors import ClewError, InputError
from clew.support.text_arrays import TEXT

F32 = np.dtype(np.float32)
ROW = Kind("tensor", F32, (None, 3))
LIST = Kind("sequence", parts=(ROW,))
MAYBE = Kind("optional", parts=(LIST,))
MAP = Kind("map", TEXT, parts=(Kind("tensor", F32, None),))


def row(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (LIST, []),
        (LIST, [row(1, 3), row(2, 3)]),
        (MAYBE, None),
        (MAYBE, [row(1, 3)]),
        (MAP, {"a": row(), "b": row(2, 2)}),
        (Kind("map", np.dtype(np.int64), parts=(ROW,)), {1: row(1, 3), np.int64(2): row(0, 3)}),
    ],
)
def test_fitting_values_are_taken(kind: Kind, given: Any) -> None:
    assert kind.check(given, "it") == given or kind.check(given, "it") is not given
    assert Kind.from_json(kind.to_json()) == kind


@pytest.mark.parametrize(
    ("kind", "given", "code"),
    [
        (LIST, row(1, 3), "I043"),
        (LIST, None, "I043"),
        (LIST, [row(3)], "I042"),
        (LIST, [row(1, 2)], "I042"),
        (LIST, [row(1, 3).astype("f8")], "I043"),
        (LIST, [[row(1, 3)]], "I042"),
        (MAYBE, row(1, 3), "I043"),
        (MAP, [("a", row())], "I043"),
        (MAP, {1: row()}, "I043"),
        (Kind("map", np.dtype(np.int64), parts=(ROW,)), {True: row(1, 3)}, "I043"),
        (Kind("sequence", parts=(Kind("tensor", TEXT, None),)), [np.array([1])], "I043"),
    ],
)
def test_others_are_refused(kind: Kind, given: Any, code: str) -> None:
    with pytest.raises(ClewError) as caught:
        kind.check(given, "input 'q'")
    assert caught.value.code == code
    assert "input 'q'" in caught.value.message


def test_what_is_fully_known_is_drawn() -> None:
    known = Kind("sequence", parts=(Kind("tensor", F32, (2, 3)),))
    drawn = draw([InputSpec("q", None, (), kind=known)], {}, 0, {})
    assert [part.shape for part in drawn["q"]] == [(2, 3), (2, 3)]
    with pytest.raises(InputError, match="I061"):
        draw([InputSpec("q", None, (), kind=LIST)], {}, 0, {})


class _Own(np.ndarray):
    """An array of a user's class."""


_NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
_PACKED = np.ndarray((2, 3), np.float32, buffer=bytearray(25), offset=1)
_PACKED[...] = _NUMBERS
FORMS: dict[str, Any] = {
    "big-endian": _NUMBERS.astype(">f4"),
    "strided": np.repeat(_NUMBERS, 2, axis=1)[:, ::2],
    "reversed": _NUMBERS[::-1, ::-1].copy()[::-1, ::-1],
    "Fortran": np.asfortranarray(_NUMBERS),
    "transposed": np.ascontiguousarray(_NUMBERS.T).T,
    "unaligned": _PACKED,
    "read-only": np.frombuffer(_NUMBERS.tobytes(), np.float32).reshape(2, 3),
    "subclass": _NUMBERS.view(_Own),
    "matrix": _NUMBERS.view(np.matrix),
    "masked nowhere": np.ma.masked_array(_NUMBERS),
    "list": _NUMBERS.tolist(),
    "list of integers": _NUMBERS.astype(int).tolist(),
    "tuple of rows": tuple(_NUMBERS),
    "memory": _NUMBERS.data,
}


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_every_form(form: str) -> None:
    spec = InputSpec("x", np.float32, (2, 3))
    for found in (spec.check(FORMS[form]), LIST.check([FORMS[form]], "x")[0]):
        assert type(found) is np.ndarray
        assert found.dtype == np.float32
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, _NUMBERS)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("f4", _NUMBERS.astype("f8")), ("f4", _NUMBERS.astype(">f8")), ("f4", None), ("f4", "text"),
        ("f4", _NUMBERS.astype(object)), ("f4", np.zeros((2, 3), [("a", "f4")])), ("f4", {1.0}),
        ("f4", np.ma.masked_array(_NUMBERS, mask=_NUMBERS > 2)), ("f4", [[1.0, 2.0], [3.0]]),
        ("i8", [[1.0, 2.0, 3.0]] * 2), ("i8", [[True, False, True]] * 2), ("u1", [[1, 2, 256]] * 2),
        ("i8", [[2**70, 0, 0]] * 2), ("i8", np.full((2, 3), "2020-01-01", "M8[D]")),
        ("i8", [[None]]), ("i8", np.full((2, 3), 1, ">m8[s]")),
        ("?", [[0, 1, 1]] * 2), ("f4", [[1j, 0, 0]] * 2),
    ],
)  # fmt: skip
def test_arrays_that_are_refused(dtype: str, given: Any) -> None:
    with pytest.raises(ClewError, match="I043"):
        InputSpec("x", dtype, (2, 3)).check(given)


@pytest.mark.parametrize(
    "given", [3, np.int8(3), np.array([3], ">i8"), torch.tensor(3), torch.tensor([3])], ids=repr
)
def test_counts_are_integers_of_any_library(given: Any) -> None:
    spec = InputSpec("n", "bool", ("n",))
    spec.is_count = True
    assert spec.check(given).shape == (3,)


def test_numbers_take_the_dtype_of_the_input() -> None:
    for dtype, given in (("f4", 2), ("f4", 2.0), ("f2", np.float16(2)), ("i1", 2), ("c8", 2)):
        found = InputSpec("x", dtype, ()).check(given)
        assert (found.dtype, found.shape, found.item()) == (np.dtype(dtype), (), 2)
    assert InputSpec("x", "i8", (0,)).check([]).dtype == np.int64
