"""What is typed after a command: inputs from files or drawn, shapes by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.runtime.model import InputSpec

Array = np.ndarray[Any, Any]


def named(values: Sequence[str], option: str) -> dict[str, str]:
    """Returns `name=value` pairs as a dict; a usage error (exit code 2) for anything else."""
    pairs: dict[str, str] = {}
    for value in values:
        name, _, text = value.rpartition("=")
        if not name or not text:
            raise typer.BadParameter(f"{value!r} is not name=value", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        pairs[name] = text
    return pairs


def shapes(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Returns `name=1,3,224,224` pairs as shapes by name; a usage error for anything else."""
    found: dict[str, tuple[int, ...]] = {}
    for name, text in named(values, "--shape").items():
        parts = [p.strip() for p in text.split(",")]
        if not all(p.isdecimal() for p in parts):
            raise typer.BadParameter(f"{text!r} is not a shape", param_hint="--shape")
        found[name] = tuple(int(p) for p in parts)
    return found


def read_array(name: str, file: Path) -> Array:
    """Returns the array of a `.npy` file.

    Errors: I060 for a file that cannot be read or holds no array of numbers.
    """
    try:
        array = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            "I060", f"input {name!r}: {str(file)!r} cannot be read: {_reason(error)}"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(
            "I060",
            f"input {name!r}: {str(file)!r} is an archive of several arrays",
            hint="save each with numpy.save and give it its own --input",
        )
    return array


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is no .npy file of numbers"


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


def need_sizes(model: Any) -> None:
    """Refuses a model whose inputs have named sizes.

    Errors: I061.
    """
    for wanted in model.inputs:
        _settled(wanted, {})


def _settled(wanted: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    """Returns the shape of an input with its named sizes settled.

    Errors: I061 where one is not.
    """
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


def _draw_one(wanted: InputSpec, rng: np.random.Generator, sizes: Mapping[str, int]) -> Array:
    if wanted.dtype is None:
        raise InputError("I061", f"input {wanted.name!r} is no tensor and cannot be drawn")
    settled = _settled(wanted, sizes)
    floating = wanted.dtype.kind in "fV"  # V: bfloat16 and its like
    drawn = rng.standard_normal(settled) if floating else rng.integers(0, 2, settled)
    return np.asarray(drawn).astype(wanted.dtype)
