"""Random numbers: with a seed, the same in every run; without one, new in each run."""

from __future__ import annotations

from typing import Final

from clew.frontends.building import call, cast, fields, reshaped
from clew.frontends.lowering.drawing import drawn_classes
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.expr import Expr

_ALGORITHMS: Final = ("philox", "philox", "threefry")
"""The generators by number; the first one is the default."""


def _key(layer: TfliteLayer) -> Expr:
    """Returns the key of a layer's generator; without seeds, a new one in each run."""
    seeds = layer.integer("seed", 0), layer.integer("seed2", 0)
    return call("random_key", seed=float(hash(seeds) & 0xFFFFFFFF) if any(seeds) else None)


@converter("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
def random(layer: TfliteLayer) -> Result:
    """Random numbers of a shape, uniform in `[0, 1)` or normally distributed."""
    op = "random_uniform" if layer.op == "RANDOM_UNIFORM" else "random_normal"
    return call(op, _key(layer), shape=layer.dims(0, "the shape"), dtype="f32")


@converter("MULTINOMIAL")
def multinomial(layer: TfliteLayer) -> Result:
    """Random indices for each row of unnormalized log-probabilities."""
    count = layer.one_int(1, "the number of samples")
    if layer.rank() != 2 or count < 0:
        raise layer.wrong(f"draws {count} samples from {layer.type(0)}")
    return cast(drawn_classes(layer.input(0), count, _key(layer)), layer.result_dtype())


@converter("STABLEHLO_RNG_BIT_GENERATOR")
def random_bits(layer: TfliteLayer) -> Result:
    """The next state of a generator, and random integers of the result's shape in the file."""
    number, dtype = layer.integer("algorithm", 0), layer.result_dtype(1)
    of_state, shape = _shape(layer, 0), _shape(layer, 1)
    if not 0 <= number < len(_ALGORITHMS):
        raise layer.wrong(f"has the algorithm {number}")
    state = reshaped(layer.input(0), of_state)
    algorithm = _ALGORITHMS[number]
    return fields(call("random_bits", state, shape=shape, dtype=dtype, algorithm=algorithm), 2)


def _shape(layer: TfliteLayer, index: int) -> tuple[int, ...]:
    """Returns the shape of a result in the file. Errors: U005 for a free one."""
    layer.result_dtype(index)
    result = layer.results[index]
    assert result is not None
    known = tuple(size for size in result.shape if size is not None)
    if len(known) < len(result.shape):
        raise layer.unsupported("random bits of a free shape")
    return known
