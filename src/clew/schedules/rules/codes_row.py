"""Products of one row with weights of a few bits (`nn.dense_codes`).

The time to read the weight limits them; a tile reads whole panels of it.

Kernels for any number of rows have such a tile besides those of several rows.
"""

from __future__ import annotations

from clew.cost.policy.tiles import VECTORS_OF_ONE_ROW_OF_CODES
from clew.machine.target import Target
from clew.schedules.rule import Demand, Work
from clew.schedules.rules.codes import Codes


def _one_row(work: Work, target: Target) -> bool:
    return all(extent == 1 for info in work.outputs for extent in info.store.buffer.shape[:-1])


class CodesRow(Codes):
    """Sums of one row over blocks of products of integers, unpacked from words."""

    name = "codes_row"
    demands = (*Codes.demands, Demand("one row of results", _one_row))
    vectors = VECTORS_OF_ONE_ROW_OF_CODES
