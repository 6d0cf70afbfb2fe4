"""Calibration data: inputs of calls, from arrays, iterators, folders of `.npz` files, or drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.compiled import CompiledModel
from clew.support.archives import Archive
from clew.support.errors import ClewError, ClewWarning, InputError
from clew.support.files import reason_of

DRAWN: Final = "drawn"
"""Calibration data by this name are drawn at random."""
_DRAWN_COUNT: Final = 64

Feed = Mapping[str, Any]


def feeds_of(model: CompiledModel, given: Any, *, seed: int = 0) -> list[Feed]:
    """Returns the inputs of calls, by name.

    `given` is an iterable of calls' inputs (mappings, tuples, or the only input); an array, or a
    mapping of arrays, with many samples along the first axis, which is divided into calls; a folder
    of `.npz` files, one per call; one such file with samples along the first axis; or `drawn`.

    Errors: I392 (none), I393 (NaN or infinite), I394 (of the wrong kind), and those of calls.
    """
    if isinstance(given, str) and given == DRAWN:
        warnings.warn(
            ClewWarning(
                "I395",
                "calibrated on drawn data, whose ranges are not those of real inputs",
                hint="give arrays, an iterator, or a folder of .npz files",
            ),
            stacklevel=3,
        )
        drawn = [model.drawn(seed=seed + n) for n in range(_DRAWN_COUNT)]
        return [dict(zip(model.input_names, each, strict=True)) for each in drawn]
    found = [_named(model, n, each) for n, each in enumerate(_calls(model, given))]
    if not found:
        raise InputError("I392", "there are no calibration data", hint="give at least one sample")
    return found


def _named(model: CompiledModel, number: int, given: Any) -> Feed:
    try:
        named = model.named_inputs(given)
        model.checked((), named)
    except ClewError as error:
        error.message = f"sample {number}: {error.message}"
        raise
    for name, value in named.items():
        array = np.asarray(value)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(
                "I393",
                f"sample {number} has NaN or infinite numbers in input {name!r}",
                hint="ranges cannot be measured with them; leave the sample out",
            )
    return named


def _calls(model: CompiledModel, given: Any) -> Iterable[Any]:
    if isinstance(given, (str, Path)):
        return _files(model, Path(given))
    if isinstance(given, np.ndarray):
        names = model.input_names
        if len(names) != 1:
            raise InputError(
                "I394",
                f"the model has {len(names)} inputs, and the data are one array",
                hint=f"give a mapping with arrays for {', '.join(names)}",
            )
        return _divided(model, {names[0]: given})
    if isinstance(given, Mapping):
        return _divided(model, given)
    if isinstance(given, Iterable):
        return given
    raise InputError(
        "I394",
        f"calibration data cannot be a {type(given).__name__}",
        hint="give arrays, an iterable of inputs, or a folder of .npz files",
    )


def _files(model: CompiledModel, path: Path) -> Iterable[Any]:
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise InputError("I392", f"the folder {path} has no .npz files")
        return [_arrays(file) for file in files]
    if not path.exists():
        raise InputError("I394", f"there is no file or folder {path}")
    return _divided(model, _arrays(path))


def _divided(model: CompiledModel, arrays: Mapping[str, Any]) -> Sequence[Feed]:
    """Returns calls of arrays that hold many along the first axis, or one call."""
    batches = {s.name: s.shape[0] for s in model.inputs if s.shape}
    lengths = {n: len(a) for n, a in arrays.items() if np.ndim(a)}
    count = 0
    for name, length in lengths.items():
        batch = batches.get(name)
        size = batch if isinstance(batch, int) and batch > 0 else 1
        if length % size:
            raise InputError(
                "I394",
                f"input {name!r} has {length} samples, not a multiple of the batch of {size}",
            )
        if count and length // size != count:
            raise InputError("I394", "the arrays hold different numbers of samples")
        count = length // size
    if not count:
        return [arrays] if arrays and not lengths else []
    parts = {
        n: np.split(np.asarray(a), count) if n in lengths else [a] * count
        for n, a in arrays.items()
    }
    return [{n: p[k] for n, p in parts.items()} for k in range(count)]


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with Archive(path) as archive:
            return {name: archive[name] for name in archive}
    except (OSError, ValueError) as error:
        raise InputError(
            "I394",
            f"{path} cannot be read: {reason_of(error)}",
            hint="numpy.savez writes arrays by name to a .npz file",
        ) from error
