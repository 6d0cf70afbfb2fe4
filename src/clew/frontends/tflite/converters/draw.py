"""Random numbers: with a seed, the same in every run; without one, new in each run."""

from __future__ import annotations

from clew.frontends.building import call, cast
from clew.frontends.lowering.drawing import drawn_classes
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.expr import Expr


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
