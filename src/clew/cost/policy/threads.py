"""Threads: the pieces that a kernel leaves them to share."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

PIECES_FOR_THREADS: Final = threshold(
    4, "pieces", "of a kernel: with fewer panels, bands or groups, threads are idle", tunable=True
)
BANDS_FOR_THREADS: Final = threshold(
    (16, 8, 4, 2), "bands", "of an image, tried in order; each needs enough pixels", tunable=True
)
BANDS_BESIDE_PANELS: Final = threshold(
    (4, 2), "bands", "the same, if threads share panels of channels as well", tunable=True
)
LINES_WITH_BORDERS: Final = threshold(
    4, "lines", "of one of more than 4 bands, if lines at their borders are computed for both",
    tunable=True, measured="Zen 4",
)  # fmt: skip
PIXELS_OF_BAND: Final = threshold(
    14, "pixels", "of a band without such lines: a register tile", tunable=True, measured="Zen 4",
)  # fmt: skip
TILES_OF_BAND: Final = threshold(
    8, "tiles", "of rows in a band in bf16 parts, at least",
    tunable=True,
)  # fmt: skip
MOST_TILES_OF_BAND: Final = threshold(
    32, "tiles", "of rows in such a band: a larger one gains nothing", tunable=True
)
ROWS_PER_ROW_AROUND: Final = threshold(
    8, "rows", "that this grows by for each row around a band, which is split with it", tunable=True
)
PARTS_FOR_THREADS: Final = threshold(
    128, "parts", "of a kernel, as many as large machines have cores; with fewer, and with enough "
    "work, an inner loop is divided as well",
)  # fmt: skip
WORTH_DIVIDING: Final = threshold(
    20.0, "µs", "of one run of a kernel, from which it should have work for all cores"
)
KERNELS_FOR_WORKERS: Final = threshold(
    4, "kernels", "to compile: other processes that lower them take as long to start"
)
SIMILAR_COSTS: Final = threshold(
    0.125,
    "ratio",
    "between costs up to which work keeps its division among threads, as at the next length of a "
    "cache: from 128 to 288 positions, a decoder is divided 11 times, with half the ratio 13 "
    "times, with an eighth of it 33 times, and each division costs half of a call",
    measured="Zen 3",
)
