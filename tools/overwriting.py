"""The rule that results own their memory, as a check: a caller writes to every input and every
result of a call, one after the other, and looks at all others and at the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Values: TypeAlias = "Mapping[str, Any]"


def overwritten(run: Callable[[Values], Values], inputs: Values) -> str:
    """Returns what changes although nobody wrote to it: an input in a call, an input or result when
    another one is written to, or the results of the next call. Empty if nothing does.

    `run` returns the results for inputs, both by name. The inputs stay as they are.
    """
    given = {name: _copy(value) for name, value in inputs.items()}
    found = run(given)
    leaves, own = (dict(_arrays("input", values)) for values in (given, inputs))
    for place, array in leaves.items():
        if _bytes(array) != _bytes(own[place]):
            return f"the call writes to {place}"
    wanted = {name: _copy(value) for name, value in found.items()}
    leaves.update(_arrays("result", found))
    before = {place: _bytes(array) for place, array in leaves.items()}
    for written, array in leaves.items():
        if not array.flags.writeable:
            if written.startswith("result"):
                return f"{written} is read-only"
            continue
        _write(array)
        for place, other in leaves.items():
            if place == written:
                before[place] = _bytes(other)
            elif _bytes(other) != before[place]:
                return f"a write to {written} changes {place}"
    again = run({name: _copy(value) for name, value in inputs.items()})
    for place, array in leaves.items():
        if _bytes(array) != before[place]:
            return f"the next call writes to {place}"
    first, second = (dict(_arrays("result", values)) for values in (wanted, again))
    for place, array in first.items():
        if _bytes(array) != _bytes(second[place]):
            return f"{place} is another one in the next call"
    return ""


def _arrays(place: str, value: Any) -> Iterator[tuple[str, Array]]:
    """Yields the arrays in a value, each with its place."""
    if isinstance(value, np.ndarray):
        yield place, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _arrays(f"{place} {name}", item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _arrays(f"{place}[{number}]", item)


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _bytes(array: Array) -> Any:
    return array.tolist() if array.dtype.kind in "OT" else array.tobytes()


def _write(array: Array) -> None:
    """Changes every element."""
    if array.dtype.kind in "OT":
        array[...] = np.array([f"{text}, written" for text in array.flat], array.dtype).reshape(
            array.shape
        )
        return
    changed = bytes(255 - byte for byte in array.tobytes())
    array[...] = np.frombuffer(changed, array.dtype).reshape(array.shape)
