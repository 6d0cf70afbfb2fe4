"""Reads `config.json` with checked types and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from clew.frontends.checkpoint.files import CONFIGURATION
from clew.frontends.limits import over
from clew.support.budgets import current
from clew.support.errors import ModelError, UnsupportedError
from clew.support.files import read_json_file, reason_of

_MOST: Final = 1 << 31
_MOST_REAL: Final = 1e30
_MISSING: Final = object()
_OTHER_DOORS: Final = (
    "load the model with transformers and call clew.from_torch, or export it to ONNX with Optimum"
)


class Config:
    """The fields of a configuration, with the names of `config.json`. A null field counts as
    missing. `keys` has the names of fields in another `file`.

    Errors of all methods: M071 for an invalid value.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        file: str = CONFIGURATION,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self._fields = fields
        self._file = file
        self._keys = keys or {}

    @staticmethod
    def read(folder: Path) -> Config:
        """Returns the configuration of a folder. Errors: M071."""
        try:
            fields = read_json_file(folder / CONFIGURATION)
        except (OSError, ValueError) as error:
            raise _wrong(CONFIGURATION, f"cannot be read: {reason_of(error)}") from None
        if not isinstance(fields, dict):
            raise _wrong(CONFIGURATION, "is not an object")
        return Config(fields)

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _field(self, name: str, default: Any) -> Any:
        found = self._fields.get(name)
        if found is None:
            if default is _MISSING:
                raise _wrong(self._file, f"lacks {self._keys.get(name, name)!r}")
            return default
        return found

    def invalid(self, name: str) -> NoReturn:
        """Raises M071 for a field's value."""
        shown = self._keys.get(name, name)
        raise _wrong(self._file, f"has {shown}: {self._fields.get(name)!r:.60}")

    def count(self, name: str, default: Any = _MISSING) -> int:
        """Returns a positive integer."""
        found = self._field(name, default)
        if type(found) is not int or not 0 < found < _MOST:
            self.invalid(name)
        return found

    def layers(self, name: str) -> int:
        """Returns a number of layers. Errors: M009 for more than the budget `nodes`."""
        found, most = self.count(name), current().nodes
        if found > most:
            raise over("M009", f"layers in {self._file}", found, "nodes", most)
        return found

    def real(self, name: str, default: Any = _MISSING) -> float:
        """Returns a number that `is_real` accepts."""
        found = self._field(name, default)
        if not is_real(found):
            self.invalid(name)
        return float(found)

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean."""
        found = self._field(name, default)
        if not isinstance(found, bool):
            self.invalid(name)
        return found

    def text(self, name: str, default: Any = _MISSING) -> str:
        """Returns a string."""
        found = self._field(name, default)
        if not isinstance(found, str):
            self.invalid(name)
        return found

    def items(self, name: str, length: int) -> list[Any]:
        """Returns a list of the given length."""
        found = self._field(name, _MISSING)
        if not isinstance(found, list) or len(found) != length:
            self.invalid(name)
        return found

    def numbers(self, name: str) -> list[int]:
        """Returns a list of integers; an empty one if it is missing."""
        found = self._field(name, [])
        if not isinstance(found, list) or not all(type(n) is int for n in found):
            self.invalid(name)
        return found

    def bounds(self, name: str, default: tuple[float, float]) -> tuple[float, float]:
        """Returns the lower and the upper bound of a range of nonnegative numbers. The upper bound
        may be infinite; transformers writes infinity as an object.
        """
        found = self._field(name, list(default))
        if not isinstance(found, list) or len(found) != 2:
            self.invalid(name)
        infinite = {"__float__": "Infinity"}
        least, most = (math.inf if bound == infinite else bound for bound in found)
        if not all(bound == math.inf or is_real(bound) for bound in (least, most)):
            self.invalid(name)
        if not 0 <= least <= most or least == math.inf:
            self.invalid(name)
        return float(least), float(most)

    def part(self, name: str) -> Config:
        """Returns a nested object; an empty one if it is missing."""
        found = self._field(name, {})
        if not isinstance(found, dict):
            self.invalid(name)
        return Config(found, self._file, self._keys)


def is_real(value: Any) -> bool:
    """Whether a value is a number of a size that occurs, or 0: it has a form in `f32`, and products
    and quotients of a few of them are finite in `f64`.
    """
    size = abs(value) if type(value) in (int, float) else math.nan
    return size == 0 or 1 / _MOST_REAL <= size <= _MOST_REAL


def unsupported(what: str, hint: str = "") -> UnsupportedError:
    """Returns the error for a model that clew cannot build a graph of."""
    return UnsupportedError(
        "U009",
        f"clew builds no graph of {what}",
        hint=f"{hint}; {_OTHER_DOORS}" if hint else _OTHER_DOORS,
    )


def _wrong(file: str, what: str) -> ModelError:
    return ModelError("M071", f"{file} {what}", hint="save the model again, or download it")
