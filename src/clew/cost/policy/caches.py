"""Caches: the shares that tensors, bands and panels may take; the rest is for streaming data."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

SHARE_OF_TENSOR: Final = threshold(
    0.4, "of L2", "up to which the next kernel still finds a tensor in the cache"
)
SHARE_OF_BAND: Final = threshold(
    0.6, "of L2", "for a band of a result with the lines that its windows read"
)
SHARE_OF_WEIGHTS: Final = threshold(
    0.2, "of L2", "up to which weights stay while bands of an image are processed"
)
SHARE_OF_PIECE: Final = threshold(
    1 / 32, "of L2", "up to which readers fetch a selected piece element by element"
)
SHARE_OF_ROWS: Final = threshold(
    0.4, "of L2", "for rows; this panel of weights and the next one take the rest", tunable=True
)
SHARE_OF_ROWS_BESIDE_COPIES: Final = threshold(
    2.0, "of L2", "for rows used with copied panels: copying panels again costs more than fetching "
    "rows again", measured="Zen 3",
)  # fmt: skip
SHARE_OF_COPIED_PANELS: Final = threshold(
    0.5, "of L2", "for the panels of a larger matrix that are copied together", measured="Zen 3"
)
SHARE_OF_IMAGE: Final = threshold(
    0.4, "of L2", "for a band of an image; this panel of weights and the next one take the rest",
    tunable=True,
)  # fmt: skip
PANELS_FOR_BANDS: Final = threshold(
    4, "panels", "of weights: with fewer, the image is not read often enough to divide it in bands",
    tunable=True,
)  # fmt: skip
SHARE_OF_SIGNAL: Final = threshold(
    0.4, "of L2", "for a band of a signal; weights and results take the rest", tunable=True
)
SHARE_OF_CONV_PANEL: Final = threshold(
    0.25, "of L2", "above which each tile reads a panel of weights from beyond the cache",
    tunable=True,
)  # fmt: skip
SHARE_OF_CONV_CHUNK: Final = threshold(
    0.3, "of L1", "for the weights of a chunk of input channels, beside the image lines that "
    "windows read: 1 and 4 blocks of 3x3 weights are slower than 2", measured="Zen 3", tunable=True,
)  # fmt: skip
SHARE_OF_POINTWISE_CHUNK: Final = threshold(
    0.16, "of L1", "the same for 1x1 convolutions, whose tiles read different pixels",
    measured="Zen 3", tunable=True,
)  # fmt: skip
SHARE_OF_WAYS: Final = threshold(
    0.5, "share", "of the places for a line that a band may take before it is copied", tunable=True
)
WAYS_OF_L2: Final = threshold(
    16, "lines", "that a place of the second-level cache holds, as on most CPUs"
)
WAYS_OF_L1: Final = threshold(
    8, "lines", "that a place of the first-level cache holds, as on most CPUs", measured="Zen 4"
)
COLUMNS_TO_COPY: Final = threshold(
    256, "columns", "that make a copy of crowded rows worth its time", measured="Zen 4",
    tunable=True,
)  # fmt: skip
MOST_COPIED_ROWS: Final = threshold(
    32, "L2 sizes", "of the largest copy of crowded rows", tunable=True
)
SHARE_OF_HEAD: Final = threshold(
    0.25, "of L2", "for keys of a head, above which those whose rows lie apart are copied",
    measured="Zen 3", tunable=True,
)  # fmt: skip
QUERIES_TO_COPY: Final = threshold(
    256, "queries", "with fewer, a copy of the keys and values serves too few",
    measured="Zen 3", tunable=True,
)  # fmt: skip
SHARE_OF_SEPARABLE: Final = threshold(
    0.7, "of L2", "for the memory that a band of a depthwise and a 1x1 convolution touches",
    tunable=True,
)  # fmt: skip
LINES_AROUND_BAND: Final = threshold(
    2, "lines", "that windows read outside such a band, approximately"
)
SHARE_OF_DOT_ROWS: Final = threshold(
    0.5, "of L2", "for rows that all columns read, or a matrix that is cheap to pack"
)
SHARE_OF_SPLIT_PIECE: Final = threshold(
    0.5, "of L2", "for the operands of a piece of a deep layer in bf16 parts"
)
SHARE_OF_PANEL_ROWS: Final = threshold(
    0.5, "of L2", "for the parts of rows that all panels of a layer in bf16 parts read"
)
SHARE_OF_SPLIT_WEIGHTS: Final = threshold(
    0.5, "of L2", "for all weights of a convolution in bf16 parts, beside a band of the image"
)
SHARE_OF_SPLIT_BAND: Final = threshold(
    0.3, "of L2", "for a band of its image beside the weights", tunable=True
)
SHARE_OF_SPLIT_IMAGE: Final = threshold(
    0.5, "of L2", "for the image, if panels of weights stream by"
)
SHARE_OF_MATRIX_ROWS: Final = threshold(
    0.75, "of L2", "for rows: reading weights twice costs more than fetching rows again",
    tunable=True,
)  # fmt: skip
SHARE_OF_MATRIX_PANEL: Final = threshold(
    0.34, "of L1", "for a chunk of a panel; the rest is for sums and rows that stream by",
    tunable=True,
)  # fmt: skip
LARGE_OUTPUT: Final = threshold(
    8, "L2 sizes", "from which on results bypass the caches: the next kernel finds none of them"
)
PATCHES_IN_CACHES: Final = threshold(
    2, "L2 sizes", "that patches of a convolution may fill, since every tile of filters reads them"
)
