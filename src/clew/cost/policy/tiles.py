"""Tiles: sums in registers, unrolled steps, and the lines that tiles prefetch."""

from __future__ import annotations

from typing import Final

from clew.cost.policy.facts import Subject

threshold: Final = Subject()

MOST_ROWS: Final = threshold(
    14, "rows", "of a register tile: so many of two vectors fit 32 registers", tunable=True
)
ENOUGH_ACCUMULATORS: Final = threshold(
    8, "vectors", "of sums that keep the arithmetic units busy without unrolling"
)
FEW_UNROLLED: Final = threshold(4, "steps", "of a reduction that a smaller tile unrolls")
UNROLLED_STEPS: Final = threshold(
    (0, 1, 2, 4), "steps", "to choose from; with 0, the tile's size decides", tunable=True
)
REGISTERS_OF_BROADCAST: Final = threshold(1, "registers", "of a tile, for the other factor")
REGISTERS_OF_SHORT_PAIRS: Final = threshold(
    2, "registers", "ones, and sums of pairs on their way to 32 bits: with none left for these, a "
    "tile of 6x2 vectors spills and takes 1.16 times as long as one of 5x2 (256 to 256 channels, "
    "28x28)", measured="Zen 3",
)  # fmt: skip
FEWER_TILES: Final = threshold(
    0.9, "ratio", "tiles of another shape over those of the usual one, below which it is taken"
)
MOST_CHAINS: Final = threshold(
    4, "vectors", "of long functions computed together: eight chains no longer fit the registers",
    measured="Zen 3", tunable=True,
)  # fmt: skip
VECTORS_OF_COLUMNS: Final = threshold(
    (1, 2, 4, 8), "vectors", "of sums or columns computed together", tunable=True
)
VECTORS_OF_MATMUL: Final = threshold(
    (1, 2, 3, 4), "vectors", "of columns in a register tile", tunable=True
)
COPIED_PANELS: Final = threshold(
    (4, 8), "panels", "of a run-time matrix to copy together, if a row of a panel is one cache "
    "line: products take 0.3 to 0.9 of the time", measured="Zen 3", tunable=True,
)  # fmt: skip
ROWS_TO_COPY_PANELS: Final = threshold(
    16, "rows", "with fewer, copying these panels costs more than reading them in place",
    measured="Zen 3",
)  # fmt: skip
GROUPS_OF_COPIED_PANELS: Final = threshold(
    4, "groups", "of such panels at least, so that threads can share them", measured="Zen 3"
)
VECTORS_OF_CODES: Final = threshold(
    2, "vectors", "of columns in a tile: codes are unpacked once for all rows", tunable=True
)
ROWS_OF_CODES: Final = threshold(
    4, "rows", "of a tile that share unpacked codes: with two of three digits, four rows took 1.18 "
    "times as long", measured="Zen 4", tunable=True,
)  # fmt: skip
VECTORS_OF_ONE_ROW_OF_CODES: Final = threshold(
    8, "vectors", "of columns computed together for one row", tunable=True
)
VECTORS_OF_DOT: Final = threshold(
    4, "vectors", "of sums that hide the latency of a dot product: with two, products of one row "
    "took 1.15 times as long", measured="Zen 4", tunable=True,
)  # fmt: skip
ROWS_OF_WIDE_DOT: Final = threshold(
    6, "rows", "of a tile of so many vectors that is as fast as one of two"
)
DOT_COLUMNS: Final = threshold(4, "columns", "of a register tile whose lanes lie along the depth")
DOT_REGISTERS: Final = threshold(5, "registers", "of such a tile, for a column's vectors and a row")
MOST_DOT_ROWS: Final = threshold(8, "rows", "of such a tile to choose from", tunable=True)
USUAL_DOT_ROWS: Final = threshold(6, "rows", "of such a tile by default", tunable=True)
VECTORS_OF_SIGNAL: Final = threshold(
    4, "vectors", "of neighbors in a register tile of a signal", tunable=True
)
ACCUMULATORS_OF_SIGNAL: Final = threshold(
    20, "vectors", "of sums, few enough that they are stored while the next tile is computed",
    tunable=True,
)  # fmt: skip
VECTORS_OF_ROW: Final = threshold(
    4, "vectors", "of columns that a product of one row computes together", tunable=True
)
FULL_VECTORS_OF_ROW: Final = threshold(
    (16, 8), "vectors", "of columns, if there are enough of them", tunable=True
)
STEPS_OF_ROW: Final = threshold(2, "steps", "of the depth that they unroll", tunable=True)
VECTORS_OF_STREAM: Final = threshold(
    512, "vectors", "of a matrix's row read one after another, with sums in memory: for "
    "1x1024x4096, 128 take 1.6 times as long", measured="Zen 3", tunable=True,
)  # fmt: skip
ROWS_OF_STREAM: Final = threshold(
    4, "rows", "of the other operand, up to which a large matrix is read in row order: with 5, the "
    "factors of 8 steps take too many registers", measured="Zen 3",
)  # fmt: skip
DEPTH_OF_STREAM: Final = threshold(
    16, "rows", "of such a matrix at least: with fewer, storing and loading partial sums takes "
    "noticeable time",
)  # fmt: skip
STEPS_OF_STREAM: Final = threshold(
    8, "steps", "between which these sums are loaded and stored", tunable=True
)
VECTORS_OF_SEPARABLE: Final = threshold(
    2, "vectors", "of channels in a tile of a depthwise and a 1x1 convolution"
)
NEIGHBORS: Final = threshold(
    4, "rows", "of sums over an image that share what they read", tunable=True
)
REGISTERS_OF_SPATIAL: Final = threshold(4, "registers", "of such a tile, besides its sums")
MOST_UNROLLED_NEIGHBORS: Final = threshold(64, "products", "of such a tile to unroll completely")
MOST_UNROLLED_WINDOWS: Final = threshold(
    256, "products", "of a depthwise tile to unroll; with more, the lines of taps are a loop",
    tunable=True,
)  # fmt: skip
TILES_HIGH: Final = threshold(
    2, "tiles", "of sums that a matrix unit computes together along the rows"
)
TILES_WIDE: Final = threshold(
    2, "tiles", "of sums that a matrix unit computes together along the columns"
)
ROWS_OF_MATRIX_TILE: Final = threshold(
    5, "rows", "with fewer, a tile of a matrix unit is too empty to be profitable"
)
DEPTH_OF_MATRIX_TILE: Final = threshold(
    0.25, "share", "of the depth: with less, a tile of a matrix unit is too empty"
)
BLOCKS_OF_ROWS: Final = threshold(
    2, "blocks", "of rows, up to which storing and loading sums per chunk of the depth is too slow"
)
DEPTH_IN_CHUNKS: Final = threshold(
    1.5, "ratio", "depth of a product over the largest chunk, above which it is divided"
)
STEPS_OF_SPLIT_CHUNK: Final = threshold(
    (2, 3, 1), "steps", "of the depth in a chunk; the parts of two fit in the first-level cache",
    tunable=True,
)  # fmt: skip
MOST_PAIRS_TO_OVERLAP: Final = threshold(
    16, "tiles", "pairs of rows, up to which splitting weights takes a noticeable time",
    tunable=True,
)  # fmt: skip
ROWS_READ_TURNED: Final = threshold(
    8, "rows", "of a tile of sums that are transposed together as they are read", tunable=True
)
LINES_A_REQUEST: Final = threshold(
    4, "lines", "of a share for each one requested: a hardware prefetcher continues the stream, "
    "and requests for all would occupy the buffers for tile loads",
)  # fmt: skip
DISTANCE_BYTES: Final = threshold(8192, "bytes", "ahead of their use that these are requested")
MOST_ROWS_OF_SCORES: Final = threshold(
    4, "queries", "whose scores are rows of keys: more of them fill the lanes of columns",
    measured="Zen 4",
)  # fmt: skip
KEYS_AHEAD: Final = threshold(
    2, "tiles", "of keys ahead of their use that attention of few queries prefetches", tunable=True
)
VALUES_AHEAD: Final = threshold(
    32, "rows", "of values, or of keys in rows of scores, that it prefetches ahead of their use",
    tunable=True,
)  # fmt: skip
VALUES_OF_CHUNK: Final = threshold(
    32, "rows", "of values that a few queries sum together, and that stay in the L1 cache"
)
ROWS_OF_BAND: Final = threshold(
    56, "rows", "with fewer, a panel is loaded for too little work", tunable=True
)
STEPS_OF_PREFETCH: Final = threshold(
    16, "steps", "of a reduction between two prefetches, if the number of tiles is free"
)
STEPS_OF_IMAGE_PREFETCH: Final = threshold(
    4, "steps", "the same in convolutions: a small image has few tiles, so larger steps would make "
    "each share a burst of requests",
)  # fmt: skip
MOST_LINES_AT_ONCE: Final = threshold(
    8, "lines", "requested at once: more would queue and delay other loads"
)
STEPS_OF_REQUEST: Final = threshold(
    16, "steps", "of a reduction between two requests, if each would be less than a line"
)
ROWS_OF_EXPERT: Final = threshold(
    16, "rows", "of a block that one expert of a mixture multiplies, at most: more fill no larger "
    "tiles, and more of them stay empty"
)  # fmt: skip
STEPS_OF_CHUNK: Final = threshold(
    64, "steps", "of a state-space recurrence that products compute at once, at most: their number "
    "grows with its square"
)  # fmt: skip
