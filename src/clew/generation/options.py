"""How tokens are chosen and when to stop: the options of a generation, with checked values."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.dataclass import dataclass
from clew.support.errors import InputError

LogitsCallback: TypeAlias = "Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]"
Stop: TypeAlias = "str | int | Sequence[str | int]"
DEFAULT_TOKENS: Final = 256
"""New tokens, if neither the caller nor the model's folder gives a number."""
_MOST_TOKENS: Final = 1 << 31
_MOST_BEAMS: Final = 1024
_MOST_SEED: Final = 1 << 63
_F32: Final = np.finfo(np.float32)
MOST_FACTOR: Final = float(_F32.max)
"""The most for temperatures and penalties: scores are f32."""
LEAST_FACTOR: Final = float(_F32.tiny)
MOST_POWER: Final = 32.0
"""The most for `length_penalty`: up to this power, f64 holds those of all lengths."""


@dataclass(frozen=True)
class Options:
    """The options of `clew.generate`, which describes them. None stands for the default of the
    model's folder.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    stop: Stop = ()
    seed: int | None = None
    logits: LogitsCallback | None = None
    lookup: int = 0
    draft_tokens: int = 4

    def checked(self) -> Options:
        """Returns the options with plain numbers. Errors: I482."""
        found: dict[str, Any] = {}
        for name, (kind, low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None:
                found[name] = _number(name, value, kind, low, high)
        if self.early_stopping not in (None, True, False, "never"):
            raise _wrong("early_stopping", self.early_stopping, "True, False or 'never'")
        if self.logits is not None and not callable(self.logits):
            raise _wrong("logits", self.logits, "a function of ids and scores")
        return replace(self, **found, stop=_stops(self.stop))

    def over(self, defaults: Mapping[str, Any]) -> Options:
        """Returns the options with defaults for those that are not given."""
        missing = {n: v for n, v in defaults.items() if getattr(self, n) is None}
        return replace(self, **missing)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn: with a temperature above 0, or with a restriction of the
        tokens to draw from.
        """
        if self.temperature is not None:
            return self.temperature > 0
        return bool(self.top_k) or self.top_p is not None or self.min_p is not None


_RANGES: Final[Mapping[str, tuple[type, float, float]]] = {
    "max_tokens": (int, 1, _MOST_TOKENS),
    "temperature": (float, 0.0, MOST_FACTOR),
    "top_k": (int, 0, _MOST_TOKENS),
    "top_p": (float, 0.0, 1.0),
    "min_p": (float, 0.0, 1.0),
    "repetition_penalty": (float, LEAST_FACTOR, MOST_FACTOR),
    "presence_penalty": (float, -MOST_FACTOR, MOST_FACTOR),
    "frequency_penalty": (float, -MOST_FACTOR, MOST_FACTOR),
    "beams": (int, 1, _MOST_BEAMS),
    "length_penalty": (float, -MOST_POWER, MOST_POWER),
    "seed": (int, 0, _MOST_SEED),
    "lookup": (int, 0, _MOST_BEAMS),
    "draft_tokens": (int, 1, _MOST_BEAMS),
}


def _number(name: str, value: Any, kind: type, low: float, high: float) -> Any:
    wanted = numbers.Integral if kind is int else numbers.Real
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, wanted):
        raise _wrong(name, value, "a whole number" if kind is int else "a number")
    try:
        found = kind(value)
    except OverflowError:  # a whole number beyond f64
        found = math.inf
    if not low <= found <= high:
        if low in (0, 1) and high >= _MOST_TOKENS and not found > high:
            raise _wrong(name, value, f"{low:g} or more")
        raise _wrong(name, value, f"from {low:g} to {high:g}")
    return found


def _stops(given: Stop) -> tuple[str | int, ...]:
    """Returns texts and ids that end a generation."""
    found: list[Any]
    try:
        found = [given] if isinstance(given, (str, numbers.Integral)) else list(given)  # type: ignore[arg-type]
        stops = tuple(s if isinstance(s, str) else int(s) for s in found)
    except (TypeError, ValueError):
        raise _wrong("stop", given, "a text, an id, or a list of these") from None
    for each, stop in zip(found, stops, strict=True):
        is_number = isinstance(each, numbers.Integral) and not isinstance(each, (bool, np.bool_))
        if stop == "" or (not isinstance(each, str) and not is_number):
            raise _wrong("stop", given, "a text that is not empty, an id, or a list of these")
    return stops


def _wrong(name: str, value: Any, wanted: str) -> InputError:
    return InputError("I482", f"{name} is {value!r:.60}", hint=f"{name} must be {wanted}")
