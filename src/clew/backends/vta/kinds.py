"""The kinds of layers that VTA computes: their patterns, in order of preference, and how a layer is
read from the function of a match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from clew.backends.vta.recognize import (
    Layer,
    Number,
    Refused,
    convolution_of,
    numbers_of,
    numbers_of_match,
    quantized_convolution,
)
from clew.backends.vta.recognize_operators import (
    AddLayer,
    PooledLayer,
    PoolLayer,
    addition_of,
    max_pool,
    pool_of,
    pooled_convolution,
    pooled_convolution_of,
    quantized_addition,
)
from clew.ir.expr import Call, Expr, Function
from clew.ir.visit import post_order
from clew.patterns import Match, Pattern

AnyLayer: TypeAlias = "Layer | AddLayer | PoolLayer | PooledLayer"


@dataclass(frozen=True)
class Kind:
    """A kind of layer. Those with calls of all of `operators` are of the first such kind; the
    reader raises `Refused` if VTA does not compute one exactly.
    """

    name: str
    operators: tuple[str, ...]
    pattern: Callable[[], Pattern]
    read: Callable[[Expr, Number, int], AnyLayer]


KINDS: Final = (
    Kind(
        "vta_conv2d_max_pool2d",
        ("nn.conv2d", "nn.max_pool2d"),
        pooled_convolution,
        pooled_convolution_of,
    ),
    Kind("vta_conv2d", ("nn.conv2d",), quantized_convolution, convolution_of),
    Kind("vta_max_pool2d", ("nn.max_pool2d",), max_pool, pool_of),
    Kind("vta_add", ("add",), quantized_addition, addition_of),
)


def recognized(function: Function, block_in: int) -> AnyLayer:
    """Returns the layer that a function of a match computes; operands are numbers of parameters.

    Raises `Refused` with the reason if VTA does not compute it exactly.
    """
    names = {n.op_name for n in post_order(function.body) if isinstance(n, Call)}
    return _read(names, function.body, numbers_of(function), block_in)


def recognized_match(found: Match, block_in: int) -> AnyLayer:
    """Returns the layer that a match computes; its operands are numbered in any order.

    Raises `Refused` with the reason if VTA does not compute it exactly.
    """
    names = {n.op_name for n in found.nodes if isinstance(n, Call)}
    return _read(names, found.root, numbers_of_match(found), block_in)


def _read(names: set[str], body: Expr, number: Number, block_in: int) -> AnyLayer:
    for kind in KINDS:
        if names.issuperset(kind.operators):
            return kind.read(body, number, block_in)
    raise Refused("it is not a layer that VTA computes")
