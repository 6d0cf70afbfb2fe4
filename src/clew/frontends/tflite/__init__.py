"""The TFLite frontend: `load` reads a model file into graph IR."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from clew.frontends.tflite.converters import (  # noqa: F401  registers converters
    blocks,
    boxes,
    custom,
    draw,
    elementwise,
    hash_tables,
    images,
    matrices,
    movement,
    products,
    reduce,
    segments,
    signal,
    stablehlo,
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
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of a TFLite model: a path, or bytes.

    `inputs` gives shapes of inputs by name, as ints or names of sizes, which replace those in the
    model. `budgets` limit the resources of the model.

    Errors: M... for files that are damaged or inconsistent; U... for valid models that are not
    supported; T... for layers whose shapes do not fit; I004 for wrong arguments.
    """
    limits = budgets or current()
    data = source if isinstance(source, bytes) else read_bytes(os.fspath(source))
    return Importer(read(data, limits), inputs or {}, limits).run()
