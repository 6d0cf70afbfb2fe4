"""Outputs of models: names, dtypes and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.support.dataclass import dataclass
from clew.support.text_arrays import dtype_name, dtype_named


@dataclass(frozen=True)
class OutputSpec:
    """An output, as far as it is known before a run.

    `shape` has a string for each size that is not a number, and is None if the rank is unknown.
    `dtype` is None for values other than tensors, and if only a run determines the type
    (`is_known` distinguishes these).
    """

    name: str
    dtype: Any = None
    shape: tuple[int | str, ...] | None = None
    is_known: bool = True

    @property
    def shown_type(self) -> str:
        """The dtype and shape as text."""
        if not self.is_known:
            return "of unknown type"
        if self.dtype is None:
            return "no tensor"
        sizes = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{dtype_name(self.dtype)}[{sizes}]"

    def to_json(self) -> dict[str, Any]:
        """Returns the type as JSON values; `from_json` reads it."""
        dtype = None if self.dtype is None else dtype_name(self.dtype)
        return {"dtype": dtype, "shape": self.shape, "known": self.is_known}

    @staticmethod
    def from_json(name: str, record: Mapping[str, Any]) -> OutputSpec:
        """Returns the output from the result of `to_json`."""
        dtype, shape = record["dtype"], record["shape"]
        found = None if dtype is None else dtype_named(dtype)
        sizes = None if shape is None else tuple(shape)
        return OutputSpec(name, found, sizes, bool(record["known"]))
