"""Inputs that nobody gave: drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.runtime.kinds import Kind
    from clew.runtime.model import InputSpec

Array = np.ndarray[Any, Any]


def draw(
    inputs: Sequence[InputSpec],
    given: Mapping[str, Array],
    seed: int,
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    """Returns values for the inputs that are not given, drawn from a seed.

    Floats come from the standard normal distribution, integers are 0 or 1 (which suits masks, and
    ids of any vocabulary). `sizes` holds named sizes that given inputs settle.

    Errors: I061 for an input whose named sizes nobody settled.
    """
    rng = np.random.default_rng(seed)
    return {i.name: _draw_one(i, rng, sizes) for i in inputs if i.name not in given}


def sizes_of(inputs: Sequence[InputSpec], given: Mapping[str, Array]) -> dict[str, int]:
    """Returns the named sizes that given arrays settle."""
    sizes: dict[str, int] = {}
    for wanted in inputs:
        array = given.get(wanted.name)
        if array is not None and array.ndim == len(wanted.shape):
            pairs = zip(wanted.shape, array.shape, strict=True)
            sizes.update({d: n for d, n in pairs if isinstance(d, str)})
    return sizes


def settled(wanted: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    """Returns the shape of an input with its named sizes settled.

    Errors: I061 where one is not, and for an input whose value decides sizes: nobody can guess it.
    """
    if wanted.decides:
        raise InputError(
            "I061",
            f"the value of input {wanted.name!r} decides sizes or axes and cannot be drawn",
            hint=f"give it, as in --input {wanted.name}=value.npy",
        )
    shape = [sizes.get(d, d) if isinstance(d, str) else d for d in wanted.shape]
    open_sizes = [d for d in shape if isinstance(d, str)]
    if open_sizes:
        name, dims = wanted.name, ", ".join(map(str, wanted.shape))
        example = ",".join("1" if isinstance(d, str) else str(d) for d in shape)
        raise InputError(
            "I061",
            f"input {name!r} has the shape [{dims}], and {', '.join(open_sizes)} is open",
            hint=f"say it, as in --shape {name}={example}",
        )
    return [int(d) for d in shape]


def _draw_one(wanted: InputSpec, rng: np.random.Generator, sizes: Mapping[str, int]) -> Any:
    if wanted.kind is not None:
        return _draw_value(wanted.kind, rng, f"input {wanted.name!r} is {wanted.kind}")
    if wanted.dtype is None:
        raise InputError("I061", f"input {wanted.name!r} is no tensor and cannot be drawn")
    return _draw_array(wanted.dtype, settled(wanted, sizes), rng)


def _draw_array(dtype: Any, shape: Sequence[int], rng: np.random.Generator) -> Array:
    floating = dtype.kind in "fV"  # V: bfloat16 and its like
    drawn = rng.standard_normal(shape) if floating else rng.integers(0, 2, shape)
    return np.asarray(drawn).astype(dtype)


def _draw_value(kind: Kind, rng: np.random.Generator, what: str) -> Any:
    """Returns a value that is no tensor: two elements of a sequence, what is optional is there.

    Errors: I061 for maps, and for tensors of unknown shape.
    """
    match kind.name:
        case "sequence":
            return [_draw_value(kind.parts[0], rng, what) for _ in range(2)]
        case "optional":
            return _draw_value(kind.parts[0], rng, what)
        case "tensor" if kind.shape is not None and None not in kind.shape:
            return _draw_array(kind.dtype, [int(d or 0) for d in kind.shape], rng)
    raise InputError("I061", f"{what} and cannot be drawn", hint="give it a value")
