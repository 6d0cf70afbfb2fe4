"""The named sizes of inputs, and their ranges."""

from __future__ import annotations

import numpy as np
import pytest

from clew.ir.dim_places import size_places
from clew.runtime.input_spec import ANY_SHAPE, InputSpec, check_sizes, free_sizes
from clew.support.errors import InputError
from clew.support.size_ranges import read_sizes

INPUTS = (
    InputSpec("ids", "i8", ["batch", "seq"]),
    InputSpec("mask", "f4", [1, "seq", "?3", "2*seq"]),
    InputSpec("rest", "f4", ANY_SHAPE),
)


def test_free_sizes_are_named_once_and_in_order() -> None:
    assert free_sizes(INPUTS) == ["batch", "seq"]


def test_sizes_out_of_range_name_the_input() -> None:
    ranges = read_sizes({"seq": (1, 512), "batch": (2, None)})

    def checked(batch: int, seq: int) -> None:
        arrays = [np.zeros((batch, seq), "i8"), np.zeros((1, seq, 7, 2 * seq), "f4"), np.zeros(600)]
        check_sizes(INPUTS, arrays, ranges, size_places([spec.dims for spec in INPUTS]))

    checked(2, 1)
    checked(99, 512)
    for sizes, message, hint, typed in (
        ((2, 600), "seq is 600, but the model was compiled for 1 to 512", "seq (1, 600)", "1:600"),
        ((2, 0), "seq is 0, but the model was compiled for 1 to 512", "seq (0, 512)", "0:512"),
        ((1, 8), "batch is 1, but the model was compiled for 2 or more", "batch (1, None)", "1:"),
    ):
        with pytest.raises(InputError) as caught:
            checked(*sizes)
        assert caught.value.code == "I317"
        assert caught.value.message == f"input 'ids': {message}"
        name, _, bounds = hint.partition(" ")
        assert caught.value.hint == f"compile it with sizes={{{name!r}: {bounds}}}"
        assert caught.value.text("cli").endswith(f"={typed}")
