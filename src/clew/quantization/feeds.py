"""Calibration data: inputs of calls, from arrays, iterators, folders of `.npz` files, or random.

Calibration goes over the data several times. Folders, and sequences that are not lists, are read
again in each pass, one call at a time, so that they may be larger than memory.
"""

from __future__ import annotations

import copy
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, overload, runtime_checkable

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.quantization.sequences import DRAWN_CALLS, Sequences
from clew.support.archives import Archive
from clew.support.errors import ClewError, ClewWarning, InputError
from clew.support.files import reason_of
from clew.support.text_arrays import content

DRAWN: Final = "drawn"
"""Calibration data by this name are random."""
_DRAWN_COUNT: Final = 64
_END: Final = object()
_GOLDEN: Final = (math.sqrt(5) - 1) / 2  # steps of this part of a circle fill it evenly

Feed = Mapping[str, Any]


@runtime_checkable
class _Indexed(Protocol):
    """Data whose parts can be had by number, as often as needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


class Feeds(Sequence[Feed]):
    """The inputs of calls. Those in a list are held; others are read on each use.

    Of each call that is not held, a checksum is kept, so that data that change from pass to pass
    are noticed.
    """

    def __init__(self, model: CompiledModel, calls: _Indexed, sequences: Sequences) -> None:
        """Reads and checks every call once. Errors: as of `feeds_of`."""
        self._model, self._calls, self._sequences = model, calls, sequences
        with _users_data("the number of samples"):
            self._count = len(calls)
        self._held: list[Feed] = []
        self._sums: list[int] = []
        for number in range(self._count):
            feed = self._read(number)
            if isinstance(calls, list):
                self._held.append(feed)
            else:
                self._sums.append(_checksum(feed))
        if not self._count:
            raise InputError(
                "I392", "there are no calibration data", hint="give at least one sample"
            )

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int, /) -> Feed: ...

    @overload
    def __getitem__(self, number: slice, /) -> Sequence[Feed]: ...

    def __getitem__(self, number: int | slice, /) -> Feed | Sequence[Feed]:
        if isinstance(number, slice):
            return _Part(self, range(len(self))[number])
        return self._again(range(len(self))[number])

    @property
    def spread(self) -> Sequence[Feed]:
        """All calls, in an order in which the first ones come from everywhere in the data, which
        may be sorted.
        """
        count = len(self)
        step = max(1, round(_GOLDEN * count))
        while math.gcd(step, count) > 1:
            step += 1
        return _Part(self, [number * step % count for number in range(count)])

    def _again(self, number: int) -> Feed:
        if self._held:
            return self._held[number]
        found = self._read(number)
        if _checksum(found) != self._sums[number]:
            raise InputError(
                "I394",
                f"sample {number} is not the same when it is read again",
                hint="give list(data), which holds it in memory",
            )
        return found

    def _read(self, number: int) -> Feed:
        with _users_data(f"sample {number}"):
            given = self._calls[number]
        return _named(self._model, number, given, self._sequences)


@contextmanager
def _users_data(what: str) -> Iterator[None]:
    """Names what was read from users' data that fail. Errors: I394."""
    try:
        yield
    except ClewError:
        raise
    except Exception as error:
        raise InputError(
            "I394",
            f"{what} cannot be read: {type(error).__name__}: {error}",
            hint="the calibration data raised this error",
        ) from error


def _held(given: Iterable[Any]) -> list[Any]:
    """Returns the items as a list. They are copies, since an iterator may write its next item into
    the same memory. Errors: I394 if the iterable fails.
    """
    found: list[Any] = []
    items = iter(given)
    while True:
        with _users_data(f"sample {len(found)}"):
            item = next(items, _END)
            if item is _END:
                return found
            found.append(_copied(item))


def _copied(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {name: _copied(value) for name, value in item.items()}
    if isinstance(item, list):
        return list(map(_copied, item))
    if isinstance(item, tuple):
        return tuple(map(_copied, item))
    return copy.deepcopy(item) if hasattr(item, "__array__") else item


class _Part(Sequence[Feed]):
    """Some of the calls."""

    def __init__(self, feeds: Feeds, numbers: Sequence[int]) -> None:
        self._feeds, self._numbers = feeds, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any, /) -> Any:
        if isinstance(number, slice):
            return _Part(self._feeds, self._numbers[number])
        return self._feeds[self._numbers[number]]


class _Read(Sequence[Any]):
    """Calls that a function gives by number."""

    def __init__(self, count: int, read: Callable[[int], Any]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any, /) -> Any:
        return self._read(number)


def _checksum(feed: Feed) -> int:
    found = 0
    for name in sorted(feed):
        found = zlib.crc32(content(feed[name]), found)
    return found


def feeds_of(model: CompiledModel, given: Any, sequences: Sequences, *, seed: int = 0) -> Feeds:
    """Returns the inputs of calls, by name. Growing states that a call omits are empty.

    `given` is an iterable of calls' inputs (mappings, tuples, or the only input), which is held in
    memory unless its parts can be had by number; an array, or a mapping of arrays, with many
    samples along the first axis, which is divided into calls; a folder of `.npz` files, one per
    call; one such file with samples along the first axis; or `drawn`.

    Errors: I392 (none), I393 (NaN or infinite), I394 (of the wrong kind), and those of calls.
    """
    if isinstance(given, str) and given == DRAWN:
        warnings.warn(
            ClewWarning(
                "I395",
                "calibrated on random data, whose ranges differ from those of real inputs",
                hint="give arrays, an iterator, or a folder of .npz files",
            ),
            stacklevel=3,
        )
        if sequences.has_ids:
            calls = _Read(DRAWN_CALLS, lambda n: sequences.drawn(seed + n))
        else:
            calls = _Read(_DRAWN_COUNT, lambda n: model.drawn(seed=seed + n))
        return Feeds(model, calls, sequences)
    return Feeds(model, _calls(model, given, sequences), sequences)


def _named(model: CompiledModel, number: int, given: Any, sequences: Sequences) -> Feed:
    try:
        named = model.named_inputs(sequences.completed(given))
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


def _calls(model: CompiledModel, given: Any, sequences: Sequences) -> _Indexed:
    if isinstance(given, (str, Path)):
        return _files(model, Path(given))
    if isinstance(given, np.ndarray):
        names = [sequences.ids] if sequences.has_ids else model.input_names
        if len(names) != 1:
            raise InputError(
                "I394",
                f"the model has {len(names)} inputs, and the data are one array",
                hint=f"give a mapping with arrays for {', '.join(names)}",
            )
        return _divided(model, {names[0]: given})
    if isinstance(given, Mapping):
        return _divided(model, given)
    if isinstance(given, _Indexed) and not isinstance(given, (list, tuple)):
        return given
    if isinstance(given, Iterable):
        return list(given) if isinstance(given, (list, tuple)) else _held(given)
    raise InputError(
        "I394",
        f"calibration data cannot be a {type(given).__name__}",
        hint="give arrays, an iterable of inputs, or a folder of .npz files",
    )


def _files(model: CompiledModel, path: Path) -> _Indexed:
    if os.path.isdir(path):
        files = sorted(path.glob("*.npz"))
        if not files:
            raise InputError("I392", f"the folder {path} has no .npz files")
        return _Read(len(files), lambda n: _arrays(files[n]))
    if not os.path.exists(path):
        raise InputError("I394", f"there is no file or folder {path}")
    return _divided(model, _arrays(path))


def _divided(model: CompiledModel, arrays: Mapping[str, Any]) -> list[Feed]:
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
