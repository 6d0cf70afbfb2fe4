"""The C interface of a library: names, tensors and error codes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from clew.ir.dims import Dim, is_unknown
from clew.ir.types import TensorType, Type, is_native, leaves, sizes_in, to_numpy
from clew.libraries.sizing import Sizing
from clew.serving.built_model import BuiltModel
from clew.support.dataclass import dataclass
from clew.support.errors import InputError, UnsupportedError
from clew.support.text_arrays import dtype_name

FREE: Final = -1
"""What stands for a free size in the tables of tensors."""
OK, NULL, ALIGNMENT, INDEX, LOOP, SIZE = range(6)
ERRORS: Final = {
    "OK": "no error",
    "ERROR_NULL": "a pointer is NULL",
    "ERROR_ALIGNMENT": "an input or output is not aligned to its elements",
    "ERROR_INDEX": "an index is out of range",
    "ERROR_LOOP": "a loop takes more iterations than the limit that the library was made with",
    "ERROR_SIZE": "a size is out of its range, or the model has no results at these sizes",
}
"""The error codes in their order, with the texts that `NAME_error` returns."""
MACROS: Final = ("H", "HPP", "WORKSPACE_BYTES", "N_INPUTS", "N_OUTPUTS", "MAX_THREADS")
"""The macros of the headers, after the prefix."""

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
_PREFIX_LETTERS: Final = 64
_PREFIX: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{_PREFIX_LETTERS - 1}}}")
_KEYWORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t
        char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval
        constexpr constinit continue decltype default delete do double dynamic_cast else enum
        explicit export extern false float for friend goto if inline int long mutable namespace new
        noexcept not not_eq nullptr operator or or_eq private protected public register
        reinterpret_cast requires restrict return short signed sizeof static static_assert
        static_cast struct switch template this thread_local throw true try typedef typeid typename
        typeof typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
        """,
    )
)
"""The keywords of C and C++, which cannot name fields."""

_NOT_FIELDS: Final = _KEYWORDS | {*C_TYPES.values()}

_MACROS: Final = re.compile(
    r"NULL|EOF|I|NAN|INFINITY|errno|linux|unix|stdin|stdout|stderr|[A-Z0-9_]+_(?:MAX|MIN)"
)
"""Macros of C's headers and compilers, which cannot name fields."""

_FILES: Final = frozenset(
    re.findall(
        r"\w+",
        """
        assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal
        stdalign stdarg stdatomic stdbool stdckdint stdbit stddef stdint stdio stdlib stdnoreturn
        string tgmath threads time uchar wchar wctype
        c dl m pthread rt
        all clean edit_cache help install package package_source rebuild_cache test
        """,
    )
)
"""C's headers, libraries of each program, and CMake's targets, whose names would be those of files
and targets beside a library.
"""


# The weights of a library are aligned to these elements.
_WORD: Final = np.dtype(np.uint64)


class Size(NamedTuple):
    """A free size: the model's name, the name of its field in C, and its range."""

    name: str
    field: str
    low: int
    high: int


class Tensor(NamedTuple):
    """An input or output: the model's name, the name of its field in C, shape and dtype, and its
    number of elements at the largest sizes.
    """

    name: str
    field: str
    shape: tuple[Dim, ...]
    dtype: np.dtype[np.generic]
    most: int

    @property
    def dtype_name(self) -> str:
        """NumPy's name of the dtype, or `bfloat16`."""
        return dtype_name(self.dtype)

    @property
    def c_type(self) -> str:
        """C's type of an element."""
        return C_TYPES[self.dtype_name]

    @property
    def most_bytes(self) -> int:
        """The bytes of all elements, at the largest sizes."""
        return self.most * self.dtype.itemsize

    @property
    def size_bytes(self) -> Dim:
        """The bytes of all elements."""
        total: Dim = self.dtype.itemsize
        for size in self.shape:
            total = total * size
        return total


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a library, the prefix of all its names, and its free sizes."""

    prefix: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[Size, ...] = ()

    def with_weights(self, size_bytes: int) -> Interface:
        """Returns the interface with one more input, the file of weights."""
        taken = {tensor.field for tensor in self.inputs} | {size.field for size in self.sizes}
        field = field_of("weights", taken, "weights")
        words = size_bytes // _WORD.itemsize
        made = Tensor("weights", field, (words,), _WORD, words)
        return replace(self, inputs=(*self.inputs, made))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)


def c_name(text: str) -> str:
    """Returns a C name for a model's name, such as that of its file."""
    found = _NOT_IN_NAMES.sub("_", text).strip("_").lower()[:_PREFIX_LETTERS].rstrip("_")
    if _is_prefix(found):
        return found
    return f"model_{found}"[:_PREFIX_LETTERS].rstrip("_")


def _is_prefix(name: str) -> bool:
    taken = name in _KEYWORDS or name.lower() in _FILES
    return _PREFIX.fullmatch(name) is not None and not taken


def interface_of(model: BuiltModel, prefix: str) -> tuple[Interface, Sizing]:
    """Returns the C interface of a model, and what its free sizes decide.

    Errors: I470 (a prefix that is no C name), U081 (sizes known only in a run, or without largest
    ones), U082 (a value that is no tensor of numbers).
    """
    if not _is_prefix(prefix):
        raise InputError(
            "I470",
            f"{prefix!r} cannot begin the names of a C library",
            hint=f"names have up to {_PREFIX_LETTERS} letters, digits and underscores, begin with "
            "a letter, and are none of C's keywords, headers and libraries or CMake's targets",
        )
    for spec in model.inputs:
        if spec.decides or spec.is_count:
            raise UnsupportedError(
                "U081",
                f"a library of a model whose input {spec.name!r} decides sizes by its value",
                hint="export a model in which this value is a constant",
            )
    main = model.module.main
    given = [(p.name, p.type) for p in main.params]
    made = list(zip(model.output_names, leaves(main.body.type), strict=True))
    names = sorted({n for _, type_ in (*given, *made) for n in sizes_in(type_)})
    taken = {f"{prefix.upper()}_{name}" for name in MACROS}
    sizes: list[Size] = []
    for name in names:
        if not name.startswith("?"):
            sizes.append(_size(model, name, taken | {size.field for size in sizes}))
    sizing = Sizing([(size.name, size.low, size.high) for size in sizes])
    inputs = _tensors("input", given, sizing, taken | {size.field for size in sizes})
    outputs = _tensors("output", made, sizing, taken)
    return Interface(prefix, inputs, outputs, tuple(sizes)), sizing


def _size(model: BuiltModel, name: str, taken: Collection[str]) -> Size:
    found = model.sizes.of(name)
    if found.high is None:
        raise UnsupportedError(
            "U081",
            f"a library of a model whose size {name!r} has no largest value",
            hint=f"give its range or fix it when compiling: --sizes {name}=1:64, or {name}=64",
        )
    return Size(name, field_of(name, taken, "size"), found.low, found.high)


def _tensors(
    kind: str, values: Iterable[tuple[str, Type]], sizing: Sizing, taken: set[str]
) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for name, type_ in values:
        if not isinstance(type_, TensorType) or not is_native(type_):
            raise UnsupportedError("U082", f"{kind} {name!r} is no tensor of numbers")
        if any(map(is_unknown, type_.shape)):
            raise UnsupportedError("U081", f"{kind} {name!r} has sizes that the data decide")
        dtype = to_numpy(type_.dtype)
        if dtype_name(dtype) not in C_TYPES:
            raise UnsupportedError("U082", f"{kind} {name!r} is no tensor of numbers in C")
        field = field_of(name, {tensor.field for tensor in found} | taken, f"{kind}{len(found)}")
        made = Tensor(name, field, type_.shape, dtype, 0)
        most = sizing.most(made.size_bytes, f"{kind} {name!r}") // dtype.itemsize
        found.append(made._replace(most=most))
    return tuple(found)


def field_of(name: str, taken: Collection[str], default: str) -> str:
    """Returns the name of a field in C for a model's name, which is not one of those `taken`:
    `input0_class` for `class` with the default `input0`.
    """
    found = _NOT_IN_NAMES.sub("_", name).strip("_") or default
    if found[0].isdigit() or found in _NOT_FIELDS or _MACROS.fullmatch(found):
        found = f"{default}_{found}"
    while found in taken:
        found += "_"
    return found
