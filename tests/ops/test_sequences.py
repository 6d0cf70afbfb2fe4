"""Pieces of tensors in sequences."""

from __future__ import annotations

import numpy as np
import pytest

from clew.ops.registry import get_op
from clew.support.text_arrays import TEXT


@pytest.mark.parametrize("values", [np.array(["a", "b"], TEXT), np.array([1, 2], np.float32)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_pieces_are_arrays_of_the_same_dtype(values: np.ndarray, keepdims: bool) -> None:
    pieces = get_op("sequence.split").run_reference([values], {"axis": 0, "keepdims": keepdims})
    assert [type(piece) for piece in pieces] == [np.ndarray] * 2
    assert [piece.dtype for piece in pieces] == [values.dtype] * 2
    assert [piece.shape for piece in pieces] == [(1,) if keepdims else ()] * 2
    assert [piece.item() for piece in pieces] == values.tolist()
