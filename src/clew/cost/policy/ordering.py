"""Sorting, selection, running totals, and other stages that visit elements in order."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

DIGIT_BITS: Final = threshold(
    8, "bits", "of a digit of a radix sort: four passes sort 32 bits, and the counters of a pass "
    "stay in the first-level cache"
)  # fmt: skip
LONG_ROW: Final = threshold(
    4096, "elements", "from which wider digits are profitable: fewer passes, more counters"
)
LONG_DIGIT_BITS: Final = threshold(11, "bits", "of a digit in long rows")
FEW_WANTED: Final = threshold(
    32, "elements", "wanted of those that reach a bound, up to which digits are narrow"
)
FEW_DIGIT_BITS: Final = threshold(
    4, "bits", "of a digit if few elements take part: clearing the counters takes most of the time"
)
PART_OF_LOOP: Final = threshold(
    64, "elements", "in each part of a loop over elements; parts without work are skipped"
)
COMPARED_TOGETHER: Final = threshold(
    8, "candidates", "that one candidate of a greedy selection is compared with at a time"
)
MOST_RANKED: Final = threshold(
    128, "elements", "up to which comparing all of them takes less time than clearing and adding "
    "up the counters of digits"
)  # fmt: skip
RANKED_TOGETHER: Final = threshold(16, "elements", "whose ranks are counted at a time")
CHAINS_TOGETHER: Final = threshold(
    8, "chains", "of links that are followed at once, since each step of one waits for memory"
)
GROUPS_OF_BOUND: Final = threshold(
    (64, 16, 8, 4), "elements", "of a group, the largest that fits: the lowest keys of groups "
    "give a bound on the lowest keys of a row"
)  # fmt: skip
GROUPS_FOR_ONE: Final = threshold(
    2, "groups", "for each wanted element; with fewer, many more elements reach the bound"
)
MOST_COMPARED_GROUPS: Final = threshold(
    256, "groups", "up to which comparing all of them takes less time than sorting them"
)
MOST_RANKED_ACROSS: Final = threshold(
    16, "elements", "of a row along another axis than the last, up to which the places of all are "
    "counted: vectors compare elements of several such rows"
)  # fmt: skip
SHORT_SCAN: Final = threshold(
    8, "elements", "of a row, up to which each running total is a reduction of its own, which "
    "fuses with other operators"
)  # fmt: skip
