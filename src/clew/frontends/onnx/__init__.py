"""The ONNX frontend: `load` reads a model file into graph IR. The only code that imports `onnx`.

Every layer's nodes carry its `Source`, marked with the output where the node is a layer's result.
A layer whose value is needed for shapes only, or by nobody, leaves no node behind;
`main.attrs.eliminated`
lists those: (layer, operator, reason).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from onnx import ModelProto

from clew.frontends.onnx import (
    converters_control,
    converters_einsum,
    converters_elementwise,
    converters_image,
    converters_ml,
    converters_ml_trees,
    converters_nn,
    converters_quantized,
    converters_recurrent,
    converters_reduce,
    converters_sampling,
    converters_text,
    converters_transform,
)
from clew.frontends.onnx.budgets import Budgets
from clew.frontends.onnx.importer import Annotator, Importer, NodeView
from clew.frontends.onnx.loader import read
from clew.frontends.onnx.registry import converter, supported
from clew.ir.module import Module


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    annotate: Annotator | None = None,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of an ONNX model: a path, bytes, or a message.

    `annotate(source, node)` may edit each layer's source. `inputs` gives shapes of inputs by name,
    ints
    or names of sizes, in place of those in the model. An input that has an initialiser is a
    constant, as
    is one given a value in `constants`: that settles axes, shapes and counts that the model takes
    as inputs.

    Errors: M... for files that are damaged, unsafe or inconsistent; U... for valid models that are
    not supported; T... for layers whose shapes do not fit; I003 to I005 for wrong arguments.
    """
    limits = budgets or Budgets()
    loaded = read(source, limits)
    importer = Importer(
        loaded,
        limits,
        annotate=annotate,
        inputs=inputs,
        constants=constants,
    )
    return importer.run()


_CONVERTERS = (
    converters_control,
    converters_einsum,
    converters_elementwise,
    converters_image,
    converters_ml,
    converters_ml_trees,
    converters_nn,
    converters_quantized,
    converters_recurrent,
    converters_reduce,
    converters_sampling,
    converters_text,
    converters_transform,
)

__all__ = ["Annotator", "Budgets", "NodeView", "converter", "load", "supported"]
