"""Values that are no tensors, at a model's boundary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
        (LIST, [[row(1, 3)]], "I043"),
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
