"""The values of inputs besides tokens and caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from clew.runtime.wiring import Wiring


def test_a_total_length_counts_past_and_new_tokens() -> None:
    spec = SimpleNamespace(name="total_sequence_length", dtype=np.dtype(np.int32), shape=())
    wiring: Any = SimpleNamespace(tokens="input_ids", dtype=np.dtype(np.int64), filled=[spec])
    given = Wiring.inputs(wiring, np.zeros((1, 3), np.int64), 5, [0], 2)
    assert given["total_sequence_length"].shape == ()
    assert given["total_sequence_length"] == 8
