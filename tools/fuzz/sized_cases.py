"""Random models whose sizes data decide, with inputs of many sizes for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from onnx import ModelProto, NodeProto

from fuzz.choices import Choices
from fuzz.dtypes import Array
from fuzz.graph import Unfit
from fuzz.sized_graphs import BOOL, F32, I64, Builder, Size, Value
from fuzz.sized_operators import TABLE

SIZES: Final = (5, 0, 1, 2, 3, 8, 17, 33, 63, 64, 65, 66, 127, 128, 129, 130)
"""Around the width of vectors, the first limit of counts (64), and the next ones."""
_DENSITIES: Final = (0.5, 0.0, 0.03, 0.2, 0.9, 1.0)
_NUMPY: Final[dict[int, type]] = {F32: np.float32, I64: np.int64, BOOL: np.bool_}


@dataclass(frozen=True)
class SizedCase:
    """A model, and inputs for calls one after the other."""

    model: ModelProto
    calls: tuple[dict[str, Array], ...]
    operators: tuple[str, ...]


def draw(choices: Choices) -> SizedCase:
    """Returns a case."""
    b = Builder(choices, TABLE)
    free = choices.integer(0, 2) > 0
    n: Size = "n" if free else choices.pick(SIZES)
    k = choices.pick((4, 3, 1, 8))
    b.most["n"] = max(SIZES)
    named = {
        "mask": Value("mask", BOOL, (n,)),
        "x": Value("x", F32, (n, k), 4),
        "w": Value("w", I64, (n,), 9),
        "v": Value("v", F32, (n,), 4),
        "boxes": Value("boxes", F32, (n, 4), 9),
        "grid": Value("grid", BOOL, (6, 7)),
        "flag": Value("flag", BOOL, ()),
    }
    if choices.one_in(3):
        named["s"] = Value("s", I64, (), 70)
    b.inputs = list(named.values())
    b.top.values.extend(reversed(b.inputs))
    if choices.integer(0, 3):  # values of whole numbers may decide which build serves a call
        _compute(b)
    given = len(b.top.nodes)
    operators = b.grow(choices.pick((3, 2, 4, 5, 7)))
    made = {name for node in b.top.nodes[given:] for name in node.output}
    read = {name for node in b.top.nodes for name in node.input}
    values = [v for v in b.top.values if v.name in made and v.items < 0]
    ends = [v for v in values if v.name not in read] or values[-1:]
    ends += [v for v in values if v.name in read and choices.one_in(4)]
    if not ends:
        raise Unfit
    used = {name for node in _all_nodes(b.top.nodes) for name in node.input}
    b.inputs = [v for v in b.inputs if v.name in used]
    if not b.inputs:
        raise Unfit
    calls = tuple(_feeds(b, choices) for _ in range(choices.integer(5, 7)))
    return SizedCase(b.model(ends), calls, tuple(operators))


def _compute(b: Builder) -> None:
    """Replaces whole numbers and booleans of the inputs by values computed from floats."""
    for number, value in enumerate(b.inputs):
        if value.dtype == F32:
            continue
        given = b.inputs[number] = replace(value, name=f"{value.name}_f", dtype=F32)
        b.top.values.remove(value)
        b.emit("Cast", [given], value, to=value.dtype)


def _all_nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g.node)


def _feeds(b: Builder, choices: Choices) -> dict[str, Array]:
    """Returns values for the inputs."""
    n = choices.pick(SIZES)
    density = choices.pick(_DENSITIES)
    rng = np.random.default_rng(choices.integer(0, 2**16))
    found: dict[str, Array] = {}
    for value in b.inputs:
        shape = [size if isinstance(size, int) else n for size in value.shape]
        array: Any
        if value.name in ("mask_f", "grid_f", "flag_f") or value.dtype == BOOL:
            array = rng.random(shape) < density
        elif value.name in ("s", "s_f"):
            array = np.array(choices.pick((5, 0, 1, 64, 65, 70)))
        elif value.name in ("w", "w_f"):
            array = rng.integers(0, choices.pick((10, 1, 3)), shape)
        elif value.name == "boxes":
            low, size = rng.integers(0, 6, (*shape[:1], 2)), rng.integers(1, 4, (*shape[:1], 2))
            array = np.concatenate([low, low + size], axis=1).astype(np.float32)
        else:
            values = rng.integers(-4, 5, shape)
            array = np.where(rng.random(shape) < density, values, 0).astype(np.float32)
        found[value.name] = np.asarray(array).astype(_NUMPY[value.dtype])
    return found
