"""Convolutions: the gain that an algorithm must promise, and the images that it needs."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

WINOGRAD_GAIN: Final = threshold(
    1.15, "ratio", "expected gain over a direct convolution that outweighs the model's errors"
)
SPLIT_GAIN: Final = threshold(
    1.1, "ratio", "expected gain of products of bf16 parts over all other algorithms"
)
GAIN_OF_ONE_MORE: Final = threshold(
    1.5, "ratio", "expected gain, at some size, of one more tile size in a kernel of free sizes, "
    "whose code takes as long to compile as another kernel", tunable=True,
)  # fmt: skip
SIGNAL_GAIN: Final = threshold(
    1.05, "ratio", "expected gain of vectors along a signal over blocks of channels"
)
SKIP_PADDING_GAIN: Final = threshold(
    1.2, "ratio", "expected gain of separate convolutions per tap over one on a padded image"
)
MOST_PARTS_WITHOUT_PADDING: Final = threshold(
    27, "convolutions", "parts of one convolution, as many as a 3x3x3 window has taps"
)
TAPS_TO_SKIP: Final = threshold(
    8, "taps", "along an axis of free size, from which on those that meet no pixel are left out"
)
USUAL_WINOGRAD_TILES: Final = threshold(
    (2, 3), "pixels", "tile sides whose rounding errors are allowed for most weights of f32"
)
FULL_TILE_ROWS: Final = threshold(
    8, "rows", "with fewer, a register tile does not hide the latency of multiply-adds"
)
TYPICAL_LATE_IMAGES: Final = threshold(
    8, "images", "stands for a data-dependent number of images, which are mostly regions"
)
CHANNELS_ALONG_SIGNAL: Final = threshold(
    4, "channels", "of a signal: more are faster in blocks of channels"
)
FILTERS_ALONG_SIGNAL: Final = threshold(
    4, "filters", "of a group: with fewer, a vector of the signal serves too few once it is loaded"
)
MOST_WASTE_OF_TRANSPOSED: Final = threshold(
    1.5, "ratio", "multiplications of one convolution for all places, over one for each place"
)
MOST_PLACES_OF_TRANSPOSED: Final = threshold(
    4096, "places", "of a step that are computed apart; larger strides only occur in damaged files"
)
MOST_TERMS_OF_TRANSPOSED: Final = threshold(
    9, "taps", "to add up for a place, if the weight is multiplied as it lies"
)
FILTERS_TO_FILL: Final = threshold(
    3, "filters", "of a group: with fewer, too much of the padded block is zeros",
    measured="Zen 3",
)  # fmt: skip
CHANNELS_PER_PIXEL: Final = threshold(
    2, "channels/pixel", "from so many on, making filters from a run's weight is slower"
)
CHANNELS_OF_EMPTY_VECTORS: Final = threshold(
    128, "channels", "from so many on, half-empty vectors are slower than products"
)
MOST_EMPTY_VECTORS: Final = threshold(
    1.5, "ratio", "lanes of a transposed convolution's vectors over those that hold results"
)
TILES_OF_WINOGRAD_GROUP: Final = threshold(
    24, "tiles", "of a group: each weight is read once for as many products"
)
MOST_TILES_OF_WINOGRAD_GROUP: Final = threshold(
    64, "tiles", "of a group: more leave too few groups of a small image to threads", tunable=True
)
ROWS_OF_WINOGRAD_GROUP: Final = threshold(
    6, "tiles", "of a group: fewer do not fill a register tile"
)
TILES_PER_FAR_WEIGHT: Final = threshold(
    28, "tiles", "per weight, if weights do not stay in the second-level cache"
)
MANY_BLOCKS: Final = threshold(
    160, "blocks", "from so many on, pixels arrive faster from a copy in which blocks are close",
    measured="Zen 3", tunable=True,
)  # fmt: skip
CHUNKS_OF_CONV: Final = threshold(
    2, "chunks", "of a weight panel at least: with fewer, it nearly fits the first-level cache",
    measured="Zen 3",
)  # fmt: skip
TILES_OF_CONV_CHUNK: Final = threshold(
    32, "tiles", "that use a chunk of weights before the next: with 8, loading it costs too much; "
    "with more, threads have too few groups", measured="Zen 3",
)  # fmt: skip
GOOD_FIT: Final = threshold(
    0.95, "ratio", "tiles of an image as one line over those of its lines, below which it is one",
    tunable=True,
)  # fmt: skip
LINES_OF_FREE_IMAGE: Final = threshold(
    2, "lines", "of a register tile, if sizes are free: small images fill most of it, and tiles of "
    "fewer columns have shorter remainders", tunable=True,
)  # fmt: skip
LINES_OF_FREE_WINDOWS: Final = threshold(
    3, "lines", "of a depthwise tile, if their length is free: each number takes its own code",
    tunable=True,
)  # fmt: skip
BLOCK_IN_VECTORS: Final = threshold(
    2, "vectors", "in the longest block of channels that a register tile holds"
)
LINES_PER_LINE_AROUND: Final = threshold(
    2, "lines", "of a band, for each line around it that is split again with it"
)
EVEN_BANDS: Final = threshold(2, "bands", "larger numbers of bands are even, to be shared evenly")
FRAME_FILTERS: Final = threshold(
    0.5,
    "share",
    "of a window's length, filters from which a transform is faster: it computes all bins",
)
