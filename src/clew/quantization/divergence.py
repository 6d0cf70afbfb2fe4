"""The divergence of distributions: how much quantization changes a model's predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.support.errors import InputError
from clew.support.near import did_you_mean

Array = NDArray[Any]
_LOGITS: Final = ("logits", "lm_logits")
_ROWS: Final = 256


def logits_of(names: Sequence[str], given: str | None) -> int | None:
    """Returns the number of the output of logits: the given one, or else one with a usual name;
    None if there is none.

    Errors: I408 if no output has the given name.
    """
    if given is None:
        return next((n for n, name in enumerate(names) if name in _LOGITS), None)
    if given not in names:
        hint = did_you_mean(given, names, "outputs")
        raise InputError("I408", f"the model has no output {given!r} for logits", hint=hint)
    return list(names).index(given)


class Divergence:
    """The mean Kullback-Leibler divergence, in nats, of distributions from exact ones. The
    distributions are the softmax of logits along the last axis; the mean is over all positions.
    """

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def add(self, exact: Array, found: Array) -> None:
        """Adds the positions of a call."""
        width = exact.shape[-1] if exact.ndim else 0
        if not width:
            return
        before, after = exact.reshape(-1, width), found.reshape(-1, width)
        for begin in range(0, len(before), _ROWS):  # all logits in f64 would take much memory
            a, b = (_log_softmax(x[begin : begin + _ROWS]) for x in (before, after))
            self._total += float(np.sum(np.exp(a) * (a - b)))
        self._count += len(before)

    @property
    def mean(self) -> float:
        """The mean over positions."""
        return max(self._total / self._count, 0.0) if self._count else 0.0


def divergence(exact: Iterable[Array], found: Iterable[Array]) -> float:
    """Returns the mean divergence over the positions of all calls."""
    made = Divergence()
    for one, other in zip(exact, found, strict=True):
        made.add(one, other)
    return made.mean


def _log_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    found: Array = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return found
