"""LiteRT as the reference of TFLite files, and drawn values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from clew.ir.types import to_numpy


def interpreter(data: bytes) -> Interpreter:
    """Returns LiteRT with its reference kernels, or its plain ones where it has no others."""
    try:
        found = Interpreter(
            model_content=data, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
        )
    except ValueError:
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        found = Interpreter(model_content=data, experimental_op_resolver_type=kind)
    return found


def litert(data: bytes, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the results of a file in LiteRT."""
    found = interpreter(data)
    places = {each["name"]: each for each in found.get_input_details()}
    for name, value in feed.items():
        if list(places[name]["shape"]) != list(value.shape):
            found.resize_tensor_input(places[name]["index"], value.shape)
    found.allocate_tensors()
    for name, value in feed.items():
        found.set_tensor(places[name]["index"], value)
    found.invoke()
    return [found.get_tensor(each["index"]) for each in found.get_output_details()]


def draw(
    seed: int, *shape: int, dtype: str = "f32", low: float = -3, high: float = 3
) -> np.ndarray:
    """Returns drawn elements."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype[0] in "iu":
        return rng.integers(max(low, 0) if dtype[0] == "u" else low, high, shape, to_numpy(dtype))
    return rng.uniform(low, high, shape).astype(to_numpy(dtype))


def frames(data: bytes, feeds: Iterable[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Returns the results of a file in LiteRT for one frame after the other, with its state."""
    run = interpreter(data)
    run.allocate_tensors()
    outputs = run.get_output_details()
    found = []
    for feed in feeds:
        for each in run.get_input_details():
            run.set_tensor(each["index"], feed[each["name"]])
        run.invoke()
        found.append([run.get_tensor(each["index"]) for each in outputs])
    return found
