"""Imports a TFLite file as a module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from clew.frontends.deferred import DeferredModel, advice, asked_for
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
from clew.support.errors import ClewError
from clew.support.files import read_bytes


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    signature: str | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of a TFLite model, given as a path or as bytes.

    `signature` names a signature of the file, which selects the subgraph and names its inputs and
    outputs. Without it, the first subgraph is imported, with the names of its tensors.

    `inputs` overrides shapes of inputs, by name; sizes are ints or names. `constants` are values of
    inputs, which fix sizes that the model takes as inputs. `budgets` limit the resources of the
    model.

    Errors: M... for files that are damaged or inconsistent; U... for valid models that are not
    supported; T... for layers whose shapes do not fit; I004 and I007 for wrong arguments.
    """
    make = _importers(source, signature, budgets)
    importer = make(inputs, constants)
    try:
        return importer.run()
    except ClewError as error:
        if _waits(importer, error):
            error.hint = advice(importer, error)
        raise


def load_or_defer(
    source: str | os.PathLike[str] | bytes,
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    signature: str | None = None,
    budgets: Budgets | None = None,
) -> Module | DeferredModel:
    """Returns the graph IR of a TFLite model as `load` does. If sizes or axes are values of inputs,
    returns an object that imports the model in a run.

    Errors: as `load`.
    """
    return _imported(_importers(source, signature, budgets), inputs)


def _imported(
    make: Callable[..., Importer], inputs: Mapping[str, Sequence[int | str]] | None
) -> Module | DeferredModel:
    importer = make(inputs, None)
    try:
        return importer.run()
    except ClewError as error:
        if not _waits(importer, error):
            raise
        return DeferredModel(make, importer, error, partial(_imported, make))


def _waits(importer: Importer, error: ClewError) -> bool:
    """Whether a failed import may succeed with the values of inputs. A model with a state does not
    wait: its session starts before the first run.
    """
    return bool(asked_for(importer, error)) and not importer.variables.exist


def _importers(
    source: str | os.PathLike[str] | bytes, signature: str | None, budgets: Budgets | None
) -> Callable[..., Importer]:
    """Returns a function that makes importers, for shapes and values of inputs, of a file that is
    read once.
    """
    limits = budgets or current()
    data = source if isinstance(source, bytes) else read_bytes(os.fspath(source))
    file = read(data, limits)

    def make(
        inputs: Mapping[str, Sequence[int | str]] | None,
        constants: Mapping[str, NDArray[Any]] | None,
        *,
        late: bool = False,  # no layer is imported while the model runs
        without_ones: bool = False,
    ) -> Importer:
        return Importer(file, inputs or {}, limits, signature, constants, without_ones)

    return make
