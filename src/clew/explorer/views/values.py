"""Values of layers in a run: statistics and a sample; in loops, of each iteration.

The model runs when a value is first requested, with the inputs of measurements. A run keeps only
some iterations, and of these only the data shown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from clew.explorer import schema
from clew.explorer.inputs import drawn
from clew.explorer.session import Session
from clew.ir.expr import While
from clew.ir.loops import iterations_of
from clew.ir.types import TensorType, leaves
from clew.support.errors import ClewError, InputError
from clew.tap.read import IterationValues, loops_in_memory, results_of, tap_iterations

Key = tuple[str, int]

LAST: Final = "last"
# Limits for one run: iterations kept at once, and their total bytes.
_MOST_ITERATIONS: Final = 32
_MOST_BYTES: Final = 64 << 20
_MOST_KEPT: Final = 4096
_SAMPLE: Final = 64
_BINS: Final = 24
_PIECE: Final = 1 << 20
# Limits for a report: results of layers in loops, and iterations of each.
_MOST_REPORTED: Final = 200
_REPORTED_ITERATIONS: Final = 8
_FIRST_ITERATIONS: Final = 3


def values(session: Session, which: str) -> schema.Values:
    """Returns a layer's value: `which` is `ITERATION/RESULT/LAYER`, an iteration from 0 or `last`.

    Outside loops the iteration is ignored; an iteration beyond the last means the last.

    Errors: I243 for malformed text, I070, I150, I151, I153, I155 (see `BuiltModel.tap`), I245
    during a measurement of the model, I061 (inputs that cannot be drawn), and those of a run.
    """
    iteration, key = _parsed(which)
    known = session.once(_known)
    found = known.find(key, iteration)
    if found is None:
        with _alone(session):
            _run(session, [key], _window(session, key, iteration), known)
        found = known.find(key, iteration)
    if found is None:
        raise InputError(
            "I155",
            f"{key[0]} has no value: it did not run",
            hint="these inputs do not reach its branch or loop",
        )
    return found


def values_in_report(session: Session) -> Iterator[str]:
    """Yields the values of a report: for layers in loops the first iterations, some, and the last.

    This runs the model, so a report written without running it has no values. If the model cannot
    run, the last iterations are yielded; their answers give the reason.
    """
    if "profile" not in session.measured:
        return
    looped = loops_in_memory(session.compiled)
    keys = list(looped)[:_MOST_REPORTED]
    known = session.once(_known)
    groups: list[list[Key]] = []
    room = 0
    for key in keys:
        size = max(1, _bytes(looped[key][1])) * _REPORTED_ITERATIONS
        if not groups or room + size > _MOST_BYTES:
            groups.append([])
            room = 0
        groups[-1].append(key)
        room += size
    for group in groups:
        wanted = {n for key in group for n in _reported(iterations_of(looped[key][0]))}
        try:
            with _alone(session):
                _run(session, group, wanted, known)
        except ClewError:
            yield from (f"{LAST}/{output}/{layer}" for layer, output in group)
            continue
        for key in group:
            held = known.iterations(key)
            layer, output = key
            yield f"{LAST}/{output}/{layer}"
            total = iterations_of(looped[key][0])
            shown = [*_reported(total), *held[-1:]]
            yield from (f"{n}/{output}/{layer}" for n in sorted({*shown} & {*held}))


def _reported(total: int | None) -> Sequence[int]:
    """Returns the iterations that a report shows, besides the last one."""
    if total is None or total <= _REPORTED_ITERATIONS:
        return range(_REPORTED_ITERATIONS)
    between = range(_FIRST_ITERATIONS, _REPORTED_ITERATIONS)
    spread = (total * n // _REPORTED_ITERATIONS for n in between)
    return sorted({*range(_FIRST_ITERATIONS), *spread, total - 1})


def _parsed(which: str) -> tuple[int | None, Key]:
    parts = which.split("/", 2)
    if len(parts) == 3:
        iteration, output, layer = parts
        given = iteration == LAST or (iteration.isdecimal() and len(iteration) <= 18)
        if given and output.isdecimal() and len(output) <= 9:
            return None if iteration == LAST else int(iteration), (layer, int(output))
    raise InputError(
        "I243",
        f"{which[:80]!r} is not a value's name",
        hint="values are named ITERATION/RESULT/LAYER",
    )


@contextmanager
def _alone(session: Session) -> Iterator[None]:
    """Runs the block unless the model is being measured, which a run would disturb.

    Errors: I245.
    """
    if session.measuring.holder is not None:
        raise InputError(
            "I245", "the model is being measured", hint="repeat the request after the measurement"
        )
    with session.running:
        yield


# --- what is known ---


class _Known:
    """Values as shown, by layer, result and iteration; the oldest are dropped."""

    def __init__(self) -> None:
        self._values: OrderedDict[tuple[Key, int], schema.Values] = OrderedDict()
        self._last: dict[Key, int] = {}

    def put(self, key: Key, shown: schema.Values) -> None:
        self._values[key, shown.iteration] = shown
        self._last[key] = max(shown.iterations - 1, -1)
        while len(self._values) > _MOST_KEPT:
            self._values.popitem(last=False)

    def find(self, key: Key, iteration: int | None) -> schema.Values | None:
        if key not in self._last:
            return None
        last = self._last[key]
        return self._values.get((key, last if iteration is None else min(iteration, last)))

    def iterations(self, key: Key) -> list[int]:
        """Returns the known iterations of a result, in order."""
        return sorted(iteration for known, iteration in self._values if known == key)


def _known(session: Session) -> _Known:
    return _Known()


# --- running ---


def _run(session: Session, keys: Sequence[Key], wanted: Collection[int], known: _Known) -> None:
    """Runs the model and stores the values.

    Errors: as `values`.
    """
    arrays = session.compiled.checked(drawn(session))
    outputs = results_of(session.compiled)
    for key, found in tap_iterations(session.compiled, keys, arrays, wanted).items():
        paths = _Paths(session, found)
        for n, value in enumerate(found.values):
            place = found.places[n] if found.total else -1
            shown = _shown(key, outputs[key[0]] or [0], value, place, found, paths.at(place))
            known.put(key, shown)


def _window(session: Session, key: Key, iteration: int | None) -> Collection[int]:
    """Returns the iterations to keep when one is requested: also its neighbors, for stepping."""
    held = loops_in_memory(session.compiled).get(key)
    if iteration is None or held is None:
        return ()
    count = max(1, min(_MOST_ITERATIONS, _MOST_BYTES // max(1, _bytes(held[1]))))
    first = iteration - iteration % count
    return range(first, first + count)


def _bytes(type_: Any) -> int:
    """Returns the bytes of a value; the limit for a value of data-dependent size."""
    parts = leaves(type_)
    if any(not isinstance(t, TensorType) or not t.is_static for t in parts):
        return _MOST_BYTES
    return sum(t.size_bytes for t in parts if isinstance(t, TensorType))


class _Paths:
    """Splits an iteration counted over all loops into the iteration of each loop."""

    def __init__(self, session: Session, found: IterationValues) -> None:
        self._layers = [_layer(session, loop) for loop in found.loops]
        inner = [loop.trips for loop in found.loops[1:]]
        known = [n for n in inner if isinstance(n, int)]
        whole = bool(found.total) and len(known) == len(inner) and not found.in_branch
        self._inner: list[int] | None = known if whole and -1 not in self._layers else None
        each = int(np.prod(known, dtype=np.int64)) if known else 1
        self._outer = found.total // max(each, 1)

    def at(self, iteration: int) -> list[schema.LoopIteration]:
        if self._inner is None or not self._layers:
            return []
        found: list[schema.LoopIteration] = []
        counts = [self._outer, *self._inner]
        for layer, count in zip(reversed(self._layers), reversed(counts), strict=True):
            found.append(schema.LoopIteration(layer, iteration % max(count, 1), count))
            iteration //= max(count, 1)
        return found[::-1]


def _layer(session: Session, loop: While) -> int:
    places = [session.layers[name] for name in loop.span.layers if name in session.layers]
    return places[0] if len(places) == 1 else -1


# --- showing ---


def _shown(
    key: Key,
    outputs: Sequence[int],
    value: Any,
    iteration: int,
    found: IterationValues,
    path: list[schema.LoopIteration],
) -> schema.Values:
    array = value if isinstance(value, np.ndarray) else None
    return schema.Values(
        layer=key[0],
        output=key[1],
        outputs=list(outputs),
        type=type(value).__name__ if array is None else f"{array.dtype}{list(array.shape)}",
        iteration=iteration,
        iterations=found.total,
        path=path,
        in_branch=found.in_branch,
        elements=0 if array is None else array.size,
        **_statistics(array),
        sample=_sample(value),
    )


def _statistics(array: np.ndarray[Any, Any] | None) -> Mapping[str, Any]:
    none: dict[str, Any] = {
        "least": None, "most": None, "mean": None, "deviation": None, "zeros": 0, "nans": 0,
        "infinities": 0, "histogram": [],
    }  # fmt: skip
    if array is None or not array.size or not _is_real(array):
        return none
    least, most, total = np.inf, -np.inf, 0.0
    count = zeros = nans = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _finite(array):
            count += part.size
            zeros += int(np.count_nonzero(part == 0))
            least, most = min(least, float(part.min())), max(most, float(part.max()))
            total += float(part.sum())
        for piece in _pieces(array):
            nans += int(np.count_nonzero(np.isnan(piece)))
        none |= {"zeros": zeros, "nans": nans, "infinities": array.size - count - nans}
        if not count:
            return none
        mean, squares, counts = total / count, 0.0, np.zeros(_BINS, np.int64)
        spread = 0 < most - least < np.inf
        for part in _finite(array):
            squares += float(((part - mean) ** 2).sum())
            counts += np.histogram(part, _BINS, (least, most))[0] if spread else 0
        deviation = float(np.sqrt(squares / count))
    return none | {
        "least": least,
        "most": most,
        "mean": mean if np.isfinite(mean) else None,
        "deviation": deviation if np.isfinite(deviation) else None,
        "histogram": counts.tolist() if spread else [],
    }


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yields an array's elements as f64, in chunks, to limit memory."""
    flat = array.reshape(-1)
    for first in range(0, flat.size, _PIECE):
        yield flat[first : first + _PIECE].astype(np.float64)


def _finite(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yields the finite elements."""
    for piece in _pieces(array):
        part = piece[np.isfinite(piece)]
        if part.size:
            yield part


def _is_real(array: np.ndarray[Any, Any]) -> bool:
    """Whether elements are numbers or booleans; NumPy's kind of bf16 and the like is `V`."""
    return array.dtype.kind in "biufV" and array.dtype.names is None


def _sample(value: Any) -> list[str]:
    """Returns the first elements as texts of bounded length."""
    if not isinstance(value, np.ndarray):
        return [str(value)[:200]]
    return [f"{x:.6g}" if isinstance(x, float) else str(x)[:80] for x in _first(value)]


def _first(array: np.ndarray[Any, Any]) -> list[Any]:
    some = array.reshape(-1)[:_SAMPLE]
    if _is_real(array) and array.dtype.kind not in "biu":
        some = some.astype(np.float64)
    found: list[Any] = some.tolist()
    return found
