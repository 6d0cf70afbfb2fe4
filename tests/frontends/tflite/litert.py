"""LiteRT as the reference of TFLite files, and drawn values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from clew.ir.types import to_numpy
from litert_runs import OPTIMIZED, Refused, interpreter, outputs


def reference(data: bytes) -> Any:
    """Returns LiteRT with its reference kernels, or its plain ones where it has no others."""
    try:
        return interpreter(data)
    except Refused:
        return interpreter(data, OPTIMIZED)


def litert(data: bytes, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the results of a file in LiteRT."""
    return outputs(reference(data), feed)


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
    run = reference(data)
    run.allocate_tensors()
    outputs = run.get_output_details()
    found = []
    for feed in feeds:
        for each in run.get_input_details():
            run.set_tensor(each["index"], feed[each["name"]])
        run.invoke()
        found.append([run.get_tensor(each["index"]) for each in outputs])
    return found
