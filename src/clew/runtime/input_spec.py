"""Inputs of models: names, dtypes and shapes, and checks of arrays against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.dim_places import SizePlace, size_places
from clew.ir.dims import Dim, SymDim, value_at
from clew.ir.size_rules import SizeRule
from clew.runtime.kinds import Kind, as_array, texts
from clew.support.arrays import number_dtype
from clew.support.errors import GraphTypeError, Hint, InputError
from clew.support.foreign import array_of
from clew.support.near import listed
from clew.support.size_ranges import SizeRange, SizeRanges, bounds_text
from clew.support.text_arrays import TEXT, dtype_name

Array: TypeAlias = "np.ndarray[Any, Any]"
ANY_SHAPE: Final = ("...",)
"""The shape of an input that accepts any shape."""


_FALSE: Final = bytes(1)
_ARRAY: Final = np.ndarray


class InputSpec:
    """An input, and the arrays that it accepts.

    `shape` has a string for each size that is not a number, and is `ANY_SHAPE` if even the rank is
    unknown. `expressions` has, by axis, the dimensions that are not plain names (`2*n`): other
    sizes determine them. `rules` are those on sizes that this input and earlier ones give. `dtype`
    is None for values other than tensors, which `kind` describes. `decides`: whether the input's
    value decides sizes or axes. Then `value_names` names its elements, in order, if one build
    serves all values of at least 1; otherwise each new value needs a build. A state of the model
    has an `initial` value, which calls use unless they give another, and `fed_by` names the output
    that is its next value. If `is_count` is set, callers give an integer, which the program takes
    as a vector of that many elements; it reads only the vector's size. Random values have the
    `usual` shape unless something else gives the sizes. `by_rank`: it is a list or optional whose
    tensors have no declared rank, and each rank has a variant of the model.
    """

    def __init__(
        self, name: str, dtype: Any, shape: Sequence[int | str], *, kind: Kind | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.dtype = None if dtype is None else number_dtype(dtype)
        self.shape = tuple(shape)
        self.expressions: Mapping[int, SymDim] = {}
        self.rules: tuple[SizeRule, ...] = ()
        self.decides = False
        self.value_names: tuple[str, ...] = ()
        self.initial: Array | None = None
        self.fed_by = ""
        self.is_count = False
        self.usual: tuple[int, ...] | None = None
        self.by_rank = False
        self.is_static = not any(isinstance(d, str) for d in self.shape)
        self._is_text = self.dtype == TEXT
        self._what = f"input {name!r}"
        self._numbers = [(n, d) for n, d in enumerate(self.shape) if not isinstance(d, str)]
        # The last shape that was found to fit, of an array of this very dtype.
        self._fitted = self.shape if self.is_static and kind is None else None

    def __repr__(self) -> str:
        names = f" ({', '.join(self.value_names)})" if self.value_names else ""
        decides = f", its value decides sizes{names}" if self.decides else ""
        return f"<{self.name}: {self.shown_type}{decides}>"

    def named_values(self, array: Any) -> dict[str, int]:
        """Returns the elements of an array for this input, by their `value_names`."""
        if not self.value_names:
            return {}
        return dict(zip(self.value_names, map(int, array.reshape(-1)), strict=True))

    @property
    def shown_type(self) -> str:
        """The dtype and shape, or the kind of a value other than a tensor, as text."""
        if self.is_count:
            return "int"
        if self.dtype is None:
            return "no tensor" if self.kind is None else str(self.kind)
        return f"{dtype_name(self.dtype)}{self.shown_shape}"

    @property
    def shown_shape(self) -> str:
        """The shape as text."""
        return f"[{', '.join(map(str, self.shape))}]"

    @property
    def takes_any_shape(self) -> bool:
        """Whether even the rank is unknown."""
        return self.shape == ANY_SHAPE

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of a shape fits."""
        return shape == self.shape or self._fits(shape)

    @property
    def takes_mapping(self) -> bool:
        """Whether its value is a mapping."""
        kind = self.kind
        while kind is not None and kind.name == "optional":
            kind = kind.parts[0]
        return kind is not None and kind.name == "map"

    def check(self, given: Any) -> Any:
        """Returns the input as an array that the model accepts.

        Errors: I042 (shape), I043 (dtype, or another kind of value).
        """
        # Calls of small models take microseconds, so the usual case comes first.
        if (
            type(given) is _ARRAY
            and given.dtype is self.dtype
            and given.shape == self._fitted
            # An array of objects may hold others.
            and (not self._is_text or texts().are_texts(given))
        ):
            return given
        if self.kind is not None:
            return self.kind.check(given, self._what)
        array = given
        if (
            self._is_text
            or type(given) is not _ARRAY
            or (given.dtype is not self.dtype and given.dtype != self.dtype)
        ):
            if self.dtype is None:
                return given
            count = self._count_of(given) if self.is_count else None
            if count is not None:
                return self._counted(count)
            array = as_array(given, self.dtype, self._what, partial(dtype_name, self.dtype))
        shape = array.shape
        if self.dtype is None:
            return array
        if not self.takes(shape):
            raise InputError(
                "I042",
                f"input {self.name!r} has shape {list(shape)}, "
                f"the model expects {self.shown_shape}",
                hint=self._of_other_shape(shape),
            )
        self._fitted = shape
        return array

    @staticmethod
    def _count_of(given: Any) -> int | None:
        """Returns the integer that is given instead of a vector of that many elements; None for
        other values.
        """
        try:
            array = array_of(given)
        except Exception:  # of any type: another library raises it, and `as_array` reports it
            return None
        return int(array.item()) if array.size == 1 and array.dtype.kind in "iu" else None

    def _counted(self, number: int) -> Array:
        """Returns an integer as a vector of that many elements.

        Errors: I317 for a negative one.
        """
        if number < 0:
            raise InputError(
                "I317",
                f"input {self.name!r} is {number}, the model takes integers from 0",
                hint="the model was traced for integers that are not negative",
            )
        return elements(number)

    def _of_other_shape(self, shape: tuple[int, ...]) -> str:
        """Returns a hint for an input with a shape that does not fit."""
        if len(shape) != len(self.shape):
            return f"the input has {len(self.shape)} axes"
        if not self.is_static:
            return "numbers must match, only named sizes vary"
        sizes = list(shape)
        return Hint(
            f"clew.load(model, inputs={{{self.name!r}: {sizes}}}) loads the model for this shape",
            cli=f"--shape {self.name}={','.join(map(str, sizes))} loads the model for this shape",
            page=f"compile it with the input shapes {self.name}={'x'.join(map(str, sizes))}",
        )

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self.takes_any_shape:
            return True
        if self.is_static or len(shape) != len(self.shape):
            return False
        for axis, size in self._numbers:  # noqa: SIM110 - faster than a generator
            if shape[axis] != size:
                return False
        return True

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape as dimensions; empty if it is not known as such."""
        if self.is_static or self.takes_any_shape:
            return ()
        return tuple(
            d if isinstance(d, int) else self.expressions.get(axis, SymDim.symbol(d))
            for axis, d in enumerate(self.shape)
        )

    def check_sizes(self, array: Any, sizes: Mapping[str, int]) -> None:
        """Checks the sizes of an array that other sizes determine, and the rules on sizes.

        Errors: I042 for a size that differs, I318 for a rule that does not hold.
        """
        for rule in self.rules:
            if sizes.keys() >= rule.names:
                rule.check(sizes)
        for axis, dim in self.expressions.items():
            try:
                wanted = value_at(dim, sizes)
            except (KeyError, GraphTypeError):  # a size that the data decide; a division by 0
                continue
            if array.shape[axis] != wanted:
                at = listed(f"{name} = {sizes[name]}" for name in sorted(dim.symbols))
                what = f"input {self.name!r}"
                what = what if self.is_count else f"axis {axis} of {what}"
                raise InputError(
                    "I042",
                    f"{what} is {array.shape[axis]}, but {dim} is {wanted} (at {at})",
                    hint="all inputs must agree on the named sizes",
                )


def elements(number: int) -> Array:
    """Returns an integer in the form that programs take if `is_count` is set: a vector of that many
    elements, which occupy no memory.
    """
    return np.ndarray((number,), np.bool_, _FALSE, 0, (0,))


def free_sizes(inputs: Sequence[InputSpec]) -> list[str]:
    """Returns the names of the free dimensions of inputs, in order."""
    return list(dict.fromkeys(place.name for place in places_of(inputs)))


def size_names(inputs: Sequence[InputSpec]) -> set[str]:
    """Returns the names of the free dimensions of inputs, and of their named elements."""
    return {*free_sizes(inputs), *(name for spec in inputs for name in spec.value_names)}


def bound_sizes(
    inputs: Sequence[InputSpec],
    arrays: Sequence[Any],
    places: Sequence[SizePlace] | None = None,
) -> dict[str, int]:
    """Returns the values of the free dimensions of inputs, and of named elements, by name. `places`
    are those of the inputs, if they are known.

    Errors: I042 if a size has two values.
    """
    found = shape_sizes(inputs, arrays, places)
    for spec, array in zip(inputs, arrays, strict=True):
        found.update(spec.named_values(array))
    return found


def shape_sizes(
    inputs: Sequence[InputSpec],
    arrays: Sequence[Any],
    places: Sequence[SizePlace] | None = None,
) -> dict[str, int]:
    """Returns the values of the free dimensions of inputs, by name. `places` are those of the
    inputs, if they are known.

    Errors: I042 if a size has two values.
    """
    found: dict[str, int] = {}
    for place in places_of(inputs) if places is None else places:
        size = place.size(arrays[place.argument].shape[place.axis])
        if found.setdefault(place.name, size) != size:
            name = inputs[place.argument].name
            raise InputError(
                "I042",
                f"size {place.name} is {found[place.name]} in one input and {size} in {name}",
            )
    return found


def check_sizes(
    inputs: Sequence[InputSpec],
    arrays: Sequence[Any],
    ranges: SizeRanges,
    places: Sequence[SizePlace],
) -> None:
    """Checks the sizes of checked inputs, which are at `places`: named sizes, those that other
    sizes determine, and rules.

    Errors: I317 for a size outside its range, I042 for sizes that contradict each other, I318 for a
    rule that does not hold.
    """
    for place in places if ranges else ():
        allowed = ranges.get(place.name)
        size = place.size(arrays[place.argument].shape[place.axis])
        if allowed is not None and size not in allowed:
            raise _out_of_range(inputs[place.argument].name, place.name, size, allowed)
    if any(spec.expressions or spec.rules for spec in inputs):
        sizes = shape_sizes(inputs, arrays, places)
        for spec, array in zip(inputs, arrays, strict=True):
            spec.check_sizes(array, sizes)


def places_of(inputs: Sequence[InputSpec]) -> list[SizePlace]:
    """Returns the axes of inputs that give the sizes that have names."""
    found = size_places([spec.dims for spec in inputs])
    return [place for place in found if place.name.replace(".", "_").isidentifier()]


def _out_of_range(given: str, name: str, size: int, allowed: SizeRange) -> InputError:
    if allowed.own is not None and allowed.excludes_itself(size):
        return InputError(
            "I317",
            f"input {given!r}: {name} is {size}, but the model itself has the range "
            f"{bounds_text(*allowed.own)}",
            hint=f"export the model with a range of {name} that includes {size}",
        )
    low, high = allowed.widened(size)
    most = "" if high is None else high
    return InputError(
        "I317",
        f"input {given!r}: {name} is {size}, but the model was compiled for {allowed}",
        hint=Hint(
            f"compile it with sizes={{{name!r}: ({low}, {high})}}",
            cli=f"compile it with --sizes {name}={low}:{most}",
            page=f"compile it with the sizes {name}={low}:{most}",
        ),
    )
