"""A build for all sizes refuses the operands that the imported operators refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from free_models import drawn, made
from onnx import TensorProto, helper

import clew
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
INDEX = TensorProto.INT64, ["k", 2]


def one(op: str, inputs: dict[str, Any], held: dict[str, Array], **attrs: Any) -> Any:
    """A model of one operator, compiled for all sizes."""
    nodes = [helper.make_node(op, [*inputs, *held], ["y"], **attrs)]
    return clew.compile(made(nodes, inputs, ["y"], **held), threads=1, cache=False)


def updates(rows: int) -> list[Array]:
    return [np.zeros((rows, 2), np.int64), drawn(rows, 2)]


CASES: dict[str, tuple[Any, list[Array], list[list[Array]], str]] = {
    # A weight in blocks of rows and columns fits several widths.
    "rows of another width": (
        ("MatMul", {"x": ["n", "k"]}, {"w": drawn(8, 3)}, {}),
        [drawn(2, 8)], [[drawn(2, 7)], [drawn(2, 9)]], "T103",
    ),
    "images of other channels": (
        ("Conv", {"x": ["n", "c", 5, 5]}, {"w": drawn(8, 4, 3, 3)}, {"pads": [1, 1, 1, 1]}),
        [drawn(1, 4, 5, 5)], [[drawn(1, 3, 5, 5)], [drawn(1, 5, 5, 5)]], "T103",
    ),
    # Rows of updates outside of the tensor were written.
    "more updates than rows": (
        ("ScatterElements", {"x": ["b", 7], "i": INDEX, "u": ["k", 2]}, {}, {"axis": 1}),
        [drawn(3, 7), *updates(3)], [[drawn(1, 7), *updates(4000)]], "T108",
    ),
    "parts of blocks": (
        ("SpaceToDepth", {"x": [1, 2, "h", 4]}, {}, {"blocksize": 2}),
        [drawn(1, 2, 4, 4)], [[drawn(1, 2, 3, 4)]], "T107",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_fit(name: str) -> None:
    (op, inputs, held, attrs), fits, others, code = CASES[name]
    model = one(op, inputs, held, **attrs)
    model(*fits)
    for arrays in others:
        with pytest.raises(ClewError) as caught:
            model(*arrays)
        assert caught.value.code == code
