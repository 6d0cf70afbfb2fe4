"""Layouts: blocks of channels, padding to whole blocks, and weights that each run packs."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

BLOCKS_OF_CHANNELS: Final = threshold(
    (32, 16, 8, 4), "channels", "block sizes of images and weights, longest first"
)
BLOCKS_OF_FEW_CHANNELS: Final = threshold(
    (2, 4, 8), "channels", "blocks that few input channels are padded to for a matrix unit"
)
LONGER_BLOCKS_OF_GROUPS: Final = threshold(
    2,
    "times",
    "a grouped convolution reads a plain image if that makes blocks of results more than this many"
    " times as long as blocks that divide the inputs of a group as well",
    measured="AVX-512",
)
LONGER_BLOCKS_OF_HALF_LINES: Final = threshold(
    1, "times", "the same for 256-bit vectors, where a partial vector costs as much as a full one: "
    "60 to 120 channels in 3 groups take 0.6 of the time", measured="Zen 3",
)  # fmt: skip
LEAST_BLOCK_OF_DOTS: Final = threshold(
    8, "channels", "in a block at least, for dot products: fewer are multiplied one by one",
    measured="Zen 3",
)  # fmt: skip
LEAST_FILLED_BLOCKS: Final = threshold(
    0.8, "share", "channels in padded blocks: with fewer, the zeros take too much of the time"
)
LEAST_FILLED_DEPTH: Final = threshold(
    0.25,
    "share",
    "of a matrix tile's depth that columns of a filter fill: less is not worth padding",
)
VECTORS_OF_CONV_PANELS: Final = threshold(
    2, "vectors", "filters that a register tile of a convolution computes together"
)
VECTORS_OF_DENSE_PANELS: Final = threshold(
    2, "vectors", "columns that a register tile of a dense layer computes together"
)
VECTORS_OF_PANELS: Final = threshold(
    (1, 2, 3, 4), "vectors", "widths of a weight's panels to choose from", tunable=True
)
VECTORS_OF_CODE_PANELS: Final = threshold(
    4, "vectors", "columns of codes in a panel: so many sums hide the latency of their additions"
)
PIXELS_TO_PACK: Final = threshold(
    64, "pixels", "with fewer, packing a convolution's weight in the run takes too much of the time"
)
IMAGE_TO_PACK: Final = threshold(
    4096, "elements", "a smaller image is not worth the kernels that pack the weight"
)
ROWS_TO_PACK: Final = threshold(
    8, "rows", "with fewer, packing a matrix in the run takes longer than reading it as it lies"
)
ROWS_TO_PACK_SHORT: Final = threshold(
    3, "rows", "the same for a matrix whose rows are too short for sums over lanes",
    measured="Zen 4",
)  # fmt: skip
ROWS_TO_PACK_FAR: Final = threshold(
    5, "rows", "the same for a matrix whose lines lie on pages of their own", measured="Zen 4"
)
ROWS_TO_PACK_ANY: Final = threshold(
    192, "rows", "from so many on, packing a matrix in the run pays for itself in any layout"
)
STEPS_OF_DOTS: Final = threshold(
    3, "vectors", "depth of products along the depth: with less, adding up lanes dominates"
)
STEPS_OF_ONE_DOT: Final = threshold(
    192, "vectors", "depth from which one row is multiplied by several rows of a matrix at once, "
    "in as many memory streams: 1x4096x4096 takes 0.79 of the time", measured="Zen 3",
)  # fmt: skip
DEPTH_PER_ROW: Final = threshold(
    4, "elements", "depth per row up to which packing a matrix is faster than sums over lanes"
)
DEPTH_PER_ROW_NEAR: Final = threshold(
    12, "elements", "the same for a matrix that stays in a cache, which is cheap to pack"
)
PATCHES_BELOW_CHANNELS: Final = threshold(
    8, "channels", "fewer results than this do not fill the rows of a register tile"
)
MOST_TAPS_OF_PATCHES: Final = threshold(
    25, "taps", "larger windows copy each pixel too often into patches"
)
LEAST_BLOCK_OF_PATCHES: Final = threshold(
    4,
    "channels",
    "shorter blocks of a group do not fill vectors, so patches are multiplied instead",
)
MOST_COLUMNS_JOINED: Final = threshold(
    8, "channels", "more channels leave few lanes of dot products empty without joining columns"
)
READS_OF_MAXIMA: Final = threshold(
    4, "positions", "of an image that are moved while one is read for the maxima of a region, "
    "channel by channel: sums share the products of a line, maxima do not", measured="Zen 4",
)  # fmt: skip
CHANNELS_TO_SAMPLE: Final = threshold(
    8, "channels", "fewer channels of a sampled image do not fill vectors"
)
