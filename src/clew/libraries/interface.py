"""The C interface of a library: names, tensors and error codes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, cast

import numpy as np

from clew.ir.dims import Dim, SymDim, is_unknown
from clew.ir.expr import Function
from clew.ir.types import (
    TensorType,
    Type,
    is_native,
    leaves,
    sizes_in,
    to_numpy,
    unknown_sizes,
)
from clew.libraries.model_layers import (
    decided_by_input,
    listed_layers,
    maker_of_output,
    sized_by,
    sized_by_data,
    users_of,
)
from clew.libraries.sizing import Sizing
from clew.libraries.whole_program import WholeProgram
from clew.runtime.memory import round_up
from clew.runtime.state import first_value, given_pairs
from clew.serving.built_model import BuiltModel
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.dataclass import dataclass
from clew.support.errors import InputError, UnsupportedError
from clew.support.text_arrays import dtype_name

FREE: Final = -1
"""The value of a free size in the tables of tensors."""
COUNTED: Final = -2
"""The value of a data-dependent size in these tables."""
OK, NULL, ALIGNMENT, INDEX, LOOP, SIZE, TARGET = range(7)
ERRORS: Final = {
    "OK": "no error",
    "ERROR_NULL": "a pointer is NULL",
    "ERROR_ALIGNMENT": "an input or output is not aligned to its elements",
    "ERROR_INDEX": "an index is out of range",
    "ERROR_LOOP": "a loop exceeded the iteration limit that was set when the library was compiled",
    "ERROR_SIZE": "a size is out of its range, or the model has no results at these sizes",
    "ERROR_TARGET": "the library has no code for this CPU, or for a target of this number",
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
"""The C types of elements; 16-bit floats are passed as bit patterns."""

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


# The element type of the weights input, which sets its alignment.
_WORD: Final = np.dtype(np.uint64)


class Size(NamedTuple):
    """A free size: the model's name for it, the name of its field in C, and its range."""

    name: str
    field: str
    low: int
    high: int


class Tensor(NamedTuple):
    """An input or output: the model's name for it, the name of its field in C, its shape and dtype,
    and its number of elements at the largest sizes.
    """

    name: str
    field: str
    shape: tuple[Dim, ...]
    dtype: np.dtype[np.generic]
    most: int

    @property
    def dtype_name(self) -> str:
        """NumPy's name for the dtype, or `bfloat16`."""
        return dtype_name(self.dtype)

    @property
    def is_counted(self) -> bool:
        """Whether a size is data-dependent."""
        return any(map(is_unknown, self.shape))

    def kind_of(self, size: SymDim) -> int:
        """Returns the value in the table of tensors of a size that is not a number."""
        return COUNTED if is_unknown(size) else FREE

    @property
    def c_type(self) -> str:
        """The C type of an element."""
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


class State(NamedTuple):
    """A state: an input that an output of the previous call feeds.

    `input` and `output` are their numbers among all of the model's, `offset` is the place in the
    caller's memory, and `first` has the bytes of the first value; none for zeros.
    """

    tensor: Tensor
    input: int
    output: int
    offset: int
    first: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes from this state to the next one."""
        return round_up(max(self.tensor.most_bytes, 1), ALIGNMENT_BYTES)


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a library, the prefix of all its names, its free sizes, and its
    states, which are neither inputs nor outputs.
    """

    prefix: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[Size, ...] = ()
    states: tuple[State, ...] = ()

    @property
    def state_bytes(self) -> int:
        """The memory of all states; not empty if there are any."""
        return sum(s.size_bytes for s in self.states)

    def with_weights(self, size_bytes: int) -> Interface:
        """Returns the interface with one more input, the contents of the weights file."""
        taken = {tensor.field for tensor in self.inputs} | {size.field for size in self.sizes}
        field = field_of("weights", taken, "weights")
        words = size_bytes // _WORD.itemsize
        made = Tensor("weights", field, (words,), _WORD, words)
        return replace(self, inputs=(*self.inputs, made))

    @property
    def all_inputs(self) -> list[Tensor]:
        """The inputs of the model: those of a call and the states."""
        found = list(self.inputs)
        for state in sorted(self.states, key=lambda state: state.input):
            found.insert(state.input, state.tensor)
        return found

    @property
    def shape_fields(self) -> list[tuple[int, str]]:
        """The fields that receive the shapes of outputs with data-dependent sizes, each with the
        number of its output.
        """
        taken = {tensor.field for tensor in self.outputs}
        found: list[tuple[int, str]] = []
        for number, tensor in enumerate(self.outputs):
            if tensor.is_counted:
                field = field_of(f"{tensor.field}_shape", taken, f"output{number}_shape")
                taken.add(field)
                found.append((number, field))
        return found

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)


def c_name(text: str) -> str:
    """Returns a C name made from another name, such as that of a model's file."""
    found = _NOT_IN_NAMES.sub("_", text).strip("_").lower()[:_PREFIX_LETTERS].rstrip("_")
    if _is_prefix(found):
        return found
    return f"model_{found}"[:_PREFIX_LETTERS].rstrip("_")


def _is_prefix(name: str) -> bool:
    taken = name in _KEYWORDS or name.lower() in _FILES
    return _PREFIX.fullmatch(name) is not None and not taken


def sizes_of(model: BuiltModel, prefix: str) -> tuple[Size, ...]:
    """Returns the free sizes of a model whose inputs and outputs have C types.

    Errors: I470 (an invalid prefix), U081 (sizes that are unknown before a run or unbounded), U082
    (a value that is not a numeric tensor).
    """
    if not _is_prefix(prefix):
        raise InputError(
            "I470",
            f"{prefix!r} is not a valid prefix for C names",
            hint=f"a prefix has up to {_PREFIX_LETTERS} letters, digits and underscores, begins "
            "with a letter, and is not a keyword, header or library of C, or a target of CMake",
        )
    main = model.module.main
    for spec in model.inputs:
        if spec.decides or spec.is_count:
            raise UnsupportedError(
                "U081",
                f"cannot export a model whose input {spec.name!r} decides sizes by its value",
                hint="compile the model with this value as a constant",
                layer=decided_by_input(main, spec.name),
            )
    given, made = _given(model), _made(model)
    for kind, values in (("input", given), ("output", made)):
        _check_types(main, kind, values)
    names = sorted({n for _, type_ in (*given, *made) for n in sizes_in(type_)})
    taken = _macros(prefix)
    sizes: list[Size] = []
    for name in names:
        if not name.startswith("?"):
            sizes.append(_size(model, name, taken | {size.field for size in sizes}))
    return tuple(sizes)


def interface_of(
    model: BuiltModel,
    prefix: str,
    state: Mapping[str, str] | None,
    sizes: tuple[Size, ...],
    whole: WholeProgram,
) -> tuple[Interface, Sizing]:
    """Returns the C interface of a model, and its numbers that depend on sizes. `state` maps each
    state input to the output that feeds it; without it, states are those that the model itself has.

    Errors: I371 and I372 (`state`), U081 (sizes that are unknown before a run or unbounded; a state
    with such sizes).
    """
    main = model.module.main
    counted = whole.counted
    layers = listed_layers(sorted(sized_by_data(main))) if counted is not None else ""
    sizing = Sizing([(size.name, size.low, size.high) for size in sizes], counted, layers)
    given, made = _given(model), _made(model)
    shapes = {n: type_.shape for n, (_, type_) in enumerate(made)} | dict(whole.shapes)
    for number, (name, type_) in enumerate(made):
        if unknown_sizes(type_) and number not in whole.shapes:
            what = f"output {name!r} has data-dependent sizes"
            raise UnsupportedError("U081", what, layer=sized_by(main, type_))
    made = [(name, type_.with_(shape=shapes[n])) for n, (name, type_) in enumerate(made)]
    taken = _macros(prefix)
    inputs = _tensors("input", given, sizing, taken | {size.field for size in sizes})
    outputs = _tensors("output", made, sizing, taken)
    states = _states(model, state, inputs, outputs)
    fed, feed = {s.input for s in states}, {s.output for s in states}
    return Interface(
        prefix,
        tuple(t for n, t in enumerate(inputs) if n not in fed),
        tuple(t for n, t in enumerate(outputs) if n not in feed),
        sizes,
        states,
    ), sizing


def _macros(prefix: str) -> set[str]:
    return {f"{prefix.upper()}_{name}" for name in MACROS}


def _given(model: BuiltModel) -> list[tuple[str, TensorType]]:
    """Returns the names and types of the inputs, which are tensors once they are checked."""
    return [(p.name, cast("TensorType", p.type)) for p in model.module.main.params]


def _made(model: BuiltModel) -> list[tuple[str, TensorType]]:
    types = [cast("TensorType", type_) for type_ in leaves(model.module.main.body.type)]
    return list(zip(model.output_names, types, strict=True))


def _states(
    model: BuiltModel,
    state: Mapping[str, str] | None,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[State, ...]:
    if state is None:
        state = {spec.name: spec.fed_by for spec in model.inputs if spec.fed_by}
    found: list[State] = []
    end = 0
    for pair in given_pairs(model.inputs, model.outputs, state):
        number = model.input_names.index(pair.input.name)
        output = model.output_names.index(pair.output.name)
        tensor = inputs[number]
        shapes = (tensor.shape, outputs[output].shape)
        if shapes[0] != shapes[1] or not all(isinstance(size, int) for size in tensor.shape):
            raise UnsupportedError(
                "U081",
                f"a library whose state {tensor.name!r} has the shape {list(tensor.shape)} before "
                f"a call and {list(shapes[1])} after it",
                hint="states of a library have fixed sizes: compile with --sizes NAME=N, or export "
                "it as input and output, with state={}",
            )
        first = first_value(pair.input, {}, ()).tobytes()
        found.append(State(tensor, number, output, end, first if first.strip(b"\0") else b""))
        end += found[-1].size_bytes
    return tuple(found)


def _size(model: BuiltModel, name: str, taken: Collection[str]) -> Size:
    found = model.sizes.of(name)
    if found.high is None:
        raise UnsupportedError(
            "U081",
            f"cannot export a model whose size {name!r} has no upper bound",
            hint=f"give its range or fix it when compiling: --sizes {name}=1:64, or {name}=64",
        )
    return Size(name, field_of(name, taken, "size"), found.low, found.high)


def _check_types(main: Function, kind: str, values: Sequence[tuple[str, Type]]) -> None:
    """Raises an error if an input or output has no form in C."""
    for number, (name, type_) in enumerate(values):
        what = f"{kind} {name!r}"
        if not isinstance(type_, TensorType) or not is_native(type_):
            what += " is not a numeric tensor"
        elif dtype_name(to_numpy(type_.dtype)) not in C_TYPES:
            what += " has a dtype without a C type"
        elif kind == "input" and unknown_sizes(type_):
            raise UnsupportedError("U081", f"{what} has a size that is unknown before a run")
        else:
            continue
        layer = users_of(main, name) if kind == "input" else maker_of_output(main, number)
        raise UnsupportedError("U082", what, layer=layer)


def _tensors(
    kind: str, values: Iterable[tuple[str, TensorType]], sizing: Sizing, taken: set[str]
) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for name, type_ in values:
        dtype = to_numpy(type_.dtype)
        field = field_of(name, {tensor.field for tensor in found} | taken, f"{kind}{len(found)}")
        made = Tensor(name, field, type_.shape, dtype, 0)
        most = sizing.most(made.size_bytes, f"{kind} {name!r}") // dtype.itemsize
        found.append(made._replace(most=most))
    return tuple(found)


def field_of(name: str, taken: Collection[str], default: str) -> str:
    """Returns the name of a field in C for a name in the model, other than those `taken`:
    `input0_class` for `class` with the default `input0`.
    """
    found = _NOT_IN_NAMES.sub("_", name).strip("_") or default
    if found[0].isdigit() or found in _NOT_FIELDS or _MACROS.fullmatch(found):
        found = f"{default}_{found}"
    while found in taken:
        found += "_"
    return found
