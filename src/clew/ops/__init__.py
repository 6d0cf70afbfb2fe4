"""Operators: a folder per kind and a file per family. Importing the package fills the registry.

The files directly in this folder are shared by the declarations.
"""

from clew.ops import (  # noqa: F401  registers operators
    host,
)
from clew.ops.convolution import (  # noqa: F401  registers operators
    conv,
    conv_by_size,
    conv_frames,
    conv_parts,
    conv_transpose,
    deform_conv,
    phases,
    pool,
    winograd,
)
from clew.ops.data import (  # noqa: F401  registers operators
    flat_sequences,
    forest,
    hashing,
    lookup,
    maps,
    ngrams,
    optionals,
    sequences,
    skip_grams,
    svm,
    text,
)
from clew.ops.images import (  # noqa: F401  registers operators
    decode_image,
    image,
    regions,
    resize_u8,
    sample,
    soft_suppression,
    suppression,
)
from clew.ops.math import (  # noqa: F401  registers operators
    activation,
    attention,
    create,
    dense_by_rows,
    dense_codes,
    elementwise,
    fixed_point,
    fourier,
    gather_matmul,
    linalg,
    logic,
    matmul,
    matmul_by_rows,
    norm,
    parts,
    quantization,
    random,
    random_bits,
    ranking,
    reduce,
    scan,
    signal,
    signal_weights,
    sorting,
    storage,
    unary,
    unique,
)
from clew.ops.movement import (  # noqa: F401  registers operators
    blocks,
    compaction,
    cutting,
    fold,
    indexing,
    overwriting,
    rows,
    scatter,
    slicing,
    transform,
)
