"""Imports a TFLite file as a module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from clew.frontends.tflite.converters import (  # noqa: F401  registers converters
    blocks,
    boxes,
    control,
    custom,
    draw,
    elementwise,
    hash_tables,
    hashing,
    images,
    matrices,
    movement,
    products,
    recurrent,
    reduce,
    segments,
    signal,
    stablehlo,
    stablehlo_bodies,
    text,
    variables,
)
from clew.frontends.tflite.converters.quantized import (  # noqa: F401  registers converters
    elements as quantized_elements,
)
from clew.frontends.tflite.converters.quantized import (  # noqa: F401
    images as quantized_images,
)
from clew.frontends.tflite.converters.quantized import (  # noqa: F401
    products as quantized_products,
)
from clew.frontends.tflite.converters.quantized import (  # noqa: F401
    quotients,
    tables,
)
from clew.frontends.tflite.file.model import read
from clew.frontends.tflite.importer import Importer
from clew.ir.module import Module
from clew.support.budgets import Budgets, current
from clew.support.files import read_bytes


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    signature: str | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of a TFLite model, given as a path or as bytes.

    `signature` names a signature of the file, which selects the subgraph and names its inputs and
    outputs. Without it, the first subgraph is imported, with the names of its tensors.

    `inputs` overrides shapes of inputs, by name; sizes are ints or names. `budgets` limit the
    resources of the model.

    Errors: M... for files that are damaged or inconsistent; U... for valid models that are not
    supported; T... for layers whose shapes do not fit; I004 and I007 for wrong arguments.
    """
    limits = budgets or current()
    data = source if isinstance(source, bytes) else read_bytes(os.fspath(source))
    return Importer(read(data, limits), inputs or {}, limits, signature).run()
