"""The state of a module: inputs that outputs feed, and their initial values; also inputs with a
default value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.ir.module import Module
from clew.support.array_records import array_of, array_record

STATE: Final = "state"
"""The attribute of a main function that holds its states: input, output, and first value."""


class State(NamedTuple):
    """An input, the output that is its value in the next call, and its value in the first one. A
    first value of size 1 along a free axis is repeated for the size of the first call. Without an
    output (""), it is the value in every call that gives no other.
    """

    input: str
    output: str
    initial: NDArray[Any]


def state_attribute(states: Sequence[State]) -> tuple[Any, ...]:
    """Returns the attribute for states; it has a text form."""
    return tuple((s.input, s.output, array_record(s.initial)) for s in states)


def states_of(module: Module) -> Mapping[str, State]:
    """Returns the states of a module by input. A text form may hold others, which are left out."""
    found: dict[str, State] = {}
    params = {p.name for p in module.main.params}
    for entry in module.main.attrs.get(STATE, ()):
        match entry:
            case (str(given), str(output), tuple(record)) if given in params:
                found[given] = State(given, output, np.asarray(array_of(record)))
    return found
