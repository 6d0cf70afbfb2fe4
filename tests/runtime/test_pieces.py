"""A run in pieces has the times of its kernels, and says which were taken undisturbed."""

from __future__ import annotations

import numpy as np
from handmade import chain, library

from clew.machine.probes.quiet import Quiet
from clew.runtime import pieces
from clew.runtime.pieces import Pieces
from clew.runtime.program import Program, RunSegment
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool


class _Told(Quiet):
    """Watches by a script: one answer for each look and each wait."""

    def __init__(self, *answers: bool) -> None:
        self._answers = iter(answers)

    def begin(self) -> bool:
        return next(self._answers)

    def is_so(self) -> bool:
        return next(self._answers)


def _pieces(*answers: bool) -> tuple[Pieces, list[np.ndarray]]:
    """Returns the pieces of five kernels: two, two and one; and the inputs of a run."""
    segment = NativeSegment(chain(64, 5), library(), shared_pool(1))
    program = Program([RunSegment(segment, (0, 1), (2,))], 3, (0, 1), (2,), {})
    made = Pieces(program, [segment], [(0, step) for step in range(5)], _Told(*answers))
    made.divide(np.array([0.5, 0.4, 0.5, np.nan, 0.9]) * pieces._PIECE_NS)
    return made, [np.ones(64, np.float32)] * 2


def test_a_piece_counts_if_it_began_and_ended_undisturbed() -> None:
    made, arrays = _pieces(True, False, True, True, True)  # the second piece waited for its begin
    taken, good = made.run(arrays)
    assert (taken > 0).all()
    assert good.tolist() == [False, False, True, True, True]


def test_a_piece_that_waited_in_vain_does_not_count() -> None:
    made, arrays = _pieces(False, False, True, True, True)
    assert made.run(arrays)[1].tolist() == [False, False, True, True, True]
    made, arrays = _pieces(True, True, True, False)
    assert made.run(arrays)[1].tolist() == [True, True, True, True, False]
