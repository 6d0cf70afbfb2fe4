"""LiteRT, clew's interpreter and clew on a TFLite file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

Array = np.ndarray[Any, Any]


class CannotRun(Exception):
    """LiteRT refuses a file."""


def interpreter(data: bytes) -> Any:
    """Returns LiteRT with its reference kernels, ready to run. Errors: CannotRun."""
    try:
        made = Interpreter(
            model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
        )
        made.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise CannotRun(str(error)) from None
    return made


def shapes_of(data: bytes, tensors: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the shapes of tensors by their numbers. Errors: CannotRun."""
    details = {each["index"]: each for each in interpreter(data).get_tensor_details()}
    if any(tensor not in details for tensor in tensors):
        raise CannotRun("a tensor has no shape")
    return [tuple(map(int, details[tensor]["shape"])) for tensor in tensors]


def litert(data: bytes, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the results of a file by name. Errors: CannotRun."""
    made = interpreter(data)
    for each in made.get_input_details():
        made.set_tensor(each["index"], feeds[each["name"]])
    try:
        made.invoke()
    except RuntimeError as error:
        raise CannotRun(str(error)) from None
    return {each["name"]: made.get_tensor(each["index"]) for each in made.get_output_details()}
