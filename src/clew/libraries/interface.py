"""The C interface of a library: names, tensors and error codes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from clew.runtime.input_spec import InputSpec
from clew.runtime.output_spec import OutputSpec
from clew.support.dataclass import dataclass
from clew.support.errors import InputError, UnsupportedError
from clew.support.text_arrays import dtype_name

OK, NULL, ALIGNMENT, INDEX, LOOP = range(5)
ERRORS: Final = {
    "OK": "no error",
    "ERROR_NULL": "a pointer is NULL",
    "ERROR_ALIGNMENT": "an input or output is not aligned to its elements",
    "ERROR_INDEX": "an index is out of range",
    "ERROR_LOOP": "a loop takes more iterations than the limit that the library was made with",
}
"""The error codes in their order, with the texts that `NAME_error` returns."""

C_TYPES: Final = {
    "bool": "uint8_t",
    **{f"{sign}int{n}": f"{sign}int{n}_t" for sign in ("", "u") for n in (8, 16, 32, 64)},
    "float16": "uint16_t",
    "bfloat16": "uint16_t",
    "float32": "float",
    "float64": "double",
}
"""C's types of elements. Those of 16-bit floats hold their bits."""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]+")
_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KEYWORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl
        concept const consteval constexpr constinit const_cast continue decltype default delete do
        double dynamic_cast else enum explicit export extern false float for friend goto if inline
        int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
        protected public register reinterpret_cast requires restrict return short signed sizeof
        static static_assert static_cast struct switch template this thread_local throw true try
        typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
        """,
    )
)
"""The keywords of C99 and C++, which cannot name fields."""


class Tensor(NamedTuple):
    """An input or output: the model's name, the name of its field in C, shape and dtype."""

    name: str
    field: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def dtype_name(self) -> str:
        """NumPy's name of the dtype, or `bfloat16`."""
        return dtype_name(self.dtype)

    @property
    def c_type(self) -> str:
        """C's type of an element."""
        return C_TYPES[self.dtype_name]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of all elements."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a library, and the prefix of all its names."""

    prefix: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)


def c_name(text: str) -> str:
    """Returns a C name for a model's name, such as that of its file."""
    found = _NOT_IN_NAMES.sub("_", text).strip("_").lower()[:64]
    return found if found and found[0].isalpha() else f"model_{found}".rstrip("_")


def interface_of(
    prefix: str, inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
) -> Interface:
    """Returns the C interface of a model.

    Errors: I470 (a prefix that is no C name), U081 (sizes known only in a run), U082 (a value that
    is no tensor of numbers).
    """
    if not _PREFIX.fullmatch(prefix) or prefix in _KEYWORDS:
        raise InputError(
            "I470",
            f"{prefix!r} cannot begin the names of a C library",
            hint="names have letters, digits and underscores, and begin with a letter",
        )
    return Interface(prefix, _tensors("input", inputs), _tensors("output", outputs))


def _tensors(kind: str, specs: Iterable[InputSpec | OutputSpec]) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for spec in specs:
        if spec.dtype is None or dtype_name(spec.dtype) not in C_TYPES:
            raise UnsupportedError("U082", f"{kind} {spec.name!r} is no tensor of numbers")
        if spec.shape is None or not all(isinstance(size, int) for size in spec.shape):
            raise UnsupportedError(
                "U081",
                f"a library of a model whose {kind} {spec.name!r} has sizes that are known only "
                "in a run",
                hint="compile the model for fixed sizes: inputs={...}, or --sizes NAME=N",
            )
        shape = tuple(int(size) for size in spec.shape)
        field = _field(spec.name, {tensor.field for tensor in found}, f"{kind}{len(found)}")
        found.append(Tensor(spec.name, field, shape, np.dtype(spec.dtype)))
    return tuple(found)


def _field(name: str, taken: set[str], default: str) -> str:
    found = _NOT_IN_NAMES.sub("_", name).strip("_") or default
    if found[0].isdigit() or found in _KEYWORDS:
        found = f"{default}_{found}"
    while found in taken:
        found += "_"
    return found
