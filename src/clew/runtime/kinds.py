"""Values other than tensors at the boundary of a model: lists, None, dicts, and their contents.

Inside, a sequence is a list of arrays, an optional is a value or None, and a map is a dict. A
caller's value is checked once, completely, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.arrays import native
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.foreign import array_of
from clew.support.interrupts import held_interrupts
from clew.support.lazy import cached_property
from clew.support.loading import LOADING
from clew.support.locks import once
from clew.support.text_arrays import TEXT, as_text, dtype_name, dtype_named, provide

Json: TypeAlias = "Mapping[str, Any]"

_ARRAY: Final = np.ndarray
_NUMBERS: Final = (bool, int, float, complex, list, tuple, range)
# The kinds of Python's numbers that tensors of each kind take.
_KINDS: Final = {"b": "b", "i": "i", "f": "if", "c": "ifc"}


@once
def texts() -> ModuleType:
    """Returns the module of native code on texts, which few models have."""
    with LOADING, held_interrupts():
        from clew.runtime import texts  # noqa: PLC0415

    return texts


provide(lambda: texts().native_code())


def as_array(given: Any, dtype: Any, what: str, expected: Callable[[], str]) -> Any:
    """Returns a tensor of a dtype from an array, a number, nested lists of numbers, or another
    library's tensor; `what` names it in errors, and `expected()` what the model takes.

    Subclasses of arrays become plain arrays, and a foreign byte order the machine's. Python numbers
    have no dtype, so they take the model's if it has their kind of numbers.

    Errors: I043 for another dtype, for masked elements, and for values that are not arrays.
    """
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InputError(
            "I043",
            f"{what} has masked elements, and a model takes all of them",
            hint="fill them: x.filled(0)",
        )
    try:
        array = array_of(given)
    except Exception as error:  # of any type: another library raises it
        raise InputError("I043", f"{what} cannot be read as an array: {error}") from error
    if dtype == TEXT:
        if array.dtype == TEXT and texts().are_texts(array):
            return array
        try:
            return as_text(array)
        except (TypeError, ValueError) as error:
            raise InputError("I043", f"{what} does not hold text: {error}") from error
    array = native(array)
    if array.dtype == dtype:
        return array
    fits = not array.size or array.dtype.kind in _KINDS[_kind_of(dtype)]
    if isinstance(given, _NUMBERS) and fits:
        made = array.astype(dtype)
        if array.dtype.kind != "i" or _kind_of(dtype) != "i" or np.array_equal(made, array):
            return made
        raise InputError("I043", f"{what} has numbers that {dtype} cannot hold")
    raise InputError(
        "I043",
        f"{what} is {array.dtype}, the model expects {expected()}",
        hint=f"convert it: x.astype({str(dtype)!r})",
    )


def _kind_of(dtype: Any) -> str:
    """Returns the kind of the numbers of a dtype: `b`, `i`, `f` or `c`."""
    if dtype.kind in "bc":
        return str(dtype.kind)
    return "i" if dtype.kind in "iu" or "int" in dtype.name else "f"


@dataclass(frozen=True)
class Kind:
    """The required kind of a value: a `tensor` (of a dtype, and of sizes where `shape` has numbers;
    None means any rank), a `sequence` or an `optional` of `parts[0]`, or a `map` from keys of a
    dtype.
    """

    name: str
    dtype: Any = None
    shape: tuple[int | None, ...] | None = None
    parts: tuple[Kind, ...] = ()

    def __str__(self) -> str:
        match self.name:
            case "tensor":
                sizes = (
                    "*"
                    if self.shape is None
                    else ", ".join("?" if d is None else str(d) for d in self.shape)
                )
                return f"{dtype_name(self.dtype)}[{sizes}]"
            case "sequence":
                return f"a list of {self.parts[0]}"
            case "optional":
                return f"None or {self.parts[0]}"
        return f"a dict from {dtype_name(self.dtype)} to {self.parts[0]}"

    def check(self, given: Any, what: str) -> Any:
        """Returns a value in the form that a run uses; `what` names it in errors.

        Errors: I042 (shape), I043 (dtype, or another kind of value).
        """
        match self.name:
            case "tensor":
                return self._tensor(given, what)
            case "sequence":
                if not isinstance(given, (list, tuple)):
                    raise self._wrong(given, what)
                (part,) = self.parts
                if part.is_of_all(given):
                    return list(given)
                return [part.check(item, f"{what}[{n}]") for n, item in enumerate(given)]
            case "optional":
                return None if given is None else self.parts[0].check(given, what)
        if not isinstance(given, Mapping):
            raise self._wrong(given, what)
        wanted = str if self.dtype == TEXT else (int, np.integer)
        for key in given:
            if not isinstance(key, wanted) or isinstance(key, bool):
                raise self._wrong(given, what)
        (part,) = self.parts
        return {key: part.check(item, f"{what}[{key!r}]") for key, item in given.items()}

    def is_of_all(self, items: Sequence[Any]) -> bool:
        """Whether values are arrays that need no check. If not, they may still be accepted."""
        if self.name != "tensor":
            return False
        dtype, sizes = self.dtype, self._sizes
        for item in items:
            if type(item) is not _ARRAY or item.dtype is not dtype:
                return False
            if sizes is not None:  # a call of `_fits` takes longer than the rest
                shape, (rank, known) = item.shape, sizes
                if len(shape) != rank:
                    return False
                for axis, size in known:
                    if shape[axis] != size:
                        return False
        return dtype is not TEXT or all(map(texts().are_texts, items))

    @cached_property
    def _sizes(self) -> tuple[int, list[tuple[int, int]]] | None:
        """The rank, and the known sizes with their axes; None for any rank."""
        if self.shape is None:
            return None
        known = [(axis, size) for axis, size in enumerate(self.shape) if size is not None]
        return len(self.shape), known

    def _wrong(self, given: Any, what: str) -> InputError:
        return InputError("I043", f"{what} is a {type(given).__name__}, the model expects {self}")

    def _tensor(self, given: Any, what: str) -> Any:
        if type(given) is np.ndarray and given.dtype is self.dtype and given.dtype is not TEXT:
            array = given
        elif given is None or isinstance(given, Mapping):
            raise self._wrong(given, what)
        else:
            array = as_array(given, self.dtype, what, self.__str__)
        if self.shape is not None and not _fits(array.shape, self.shape):
            raise InputError(
                "I042", f"{what} has shape {list(array.shape)}, the model expects {self}"
            )
        return array

    def to_json(self) -> dict[str, Any]:
        """Returns the kind as JSON values; `from_json` reads it."""
        dtype = None if self.dtype is None else dtype_name(self.dtype)
        parts = [part.to_json() for part in self.parts]
        return {"kind": self.name, "dtype": dtype, "shape": self.shape, "parts": parts}

    @staticmethod
    def from_json(record: Json) -> Kind:
        """Returns the kind from the result of `to_json`."""
        dtype, shape = record["dtype"], record["shape"]
        parts = tuple(map(Kind.from_json, record["parts"]))
        found = None if dtype is None else dtype_named(dtype)
        return Kind(record["kind"], found, None if shape is None else tuple(shape), parts)


def common_rank(value: Any) -> int | None:
    """Returns the rank of all tensors in a checked value; None if it has none, or ranks differ."""
    if type(value) is _ARRAY:
        return int(value.ndim)
    if not isinstance(value, list):
        return None
    found = {item.ndim if type(item) is _ARRAY else common_rank(item) for item in value}
    return found.pop() if len(found) == 1 else None


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Whether a shape has the sizes that are not None."""
    if len(shape) != len(wanted):
        return False
    for own, size in zip(shape, wanted, strict=True):  # a generator takes longer than the rest
        if size is not None and own != size:
            return False
    return True
