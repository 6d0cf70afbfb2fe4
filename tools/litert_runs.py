"""Runs TFLite files in LiteRT, for tools and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

Array = np.ndarray[Any, Any]
REFERENCE: Final = OpResolverType.BUILTIN_REF
OPTIMIZED: Final = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES


class Refused(Exception):
    """LiteRT does not run a file."""


def interpreter(data: bytes, kernels: OpResolverType = REFERENCE) -> Any:
    """Returns LiteRT with a file. Errors: Refused."""
    try:
        return Interpreter(model_content=data, experimental_op_resolver_type=kernels)
    except (ValueError, RuntimeError) as error:
        raise Refused(" ".join(str(error).split())) from error


def _as_given(value: Array) -> Array:
    """Returns text as LiteRT takes it: in UTF-8."""
    if value.dtype != object:
        return value
    found = np.empty(value.shape, object)
    found.reshape(-1)[:] = [text.encode() for text in value.reshape(-1).tolist()]
    return found


def outputs(made: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Returns the outputs in order; inputs are resized to the arrays. Errors: Refused."""
    try:
        places = {each["name"]: each for each in made.get_input_details()}
        for name, value in feeds.items():
            if list(places[name]["shape"]) != list(value.shape):
                made.resize_tensor_input(places[name]["index"], value.shape)
        made.allocate_tensors()
        for name, value in feeds.items():
            made.set_tensor(places[name]["index"], _as_given(value))
        made.invoke()
        return [made.get_tensor(each["index"]) for each in made.get_output_details()]
    except (ValueError, RuntimeError) as error:
        raise Refused(" ".join(str(error).split())) from error
