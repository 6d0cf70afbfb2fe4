"""Operators that run on NumPy arrays between native segments, and their form in a saved model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from clew import ops
from clew.ir.dims import Dim, SymDim, is_unknown
from clew.ir.expr import ArgRef, Attrs
from clew.ir.late_sizes import settled
from clew.ir.syntax import dim_text
from clew.ir.type_reader import TypeReader
from clew.ir.types import TensorType
from clew.ops.registry import Op, ReadyCall, argument_references, get_op, has_op
from clew.support.bounds import IN_FORCE, bounds_in_force
from clew.support.budgets import Budgets, current
from clew.support.errors import CompileError, GraphTypeError
from clew.support.text_arrays import as_tensor, content

__all__ = ["HostStep", "ops"]

_NOT_MET: Final = (None, None)
_KEPT_CALLS: Final = 16
_ARRAY: Final = np.ndarray
# The types of values that are no scalars of NumPy.
_PLAIN: Final = frozenset((_ARRAY, list, dict, type(None)))
# Arguments with more elements than this are not compared with those of the previous call.
_FEW_VALUES: Final = 64


class HostStep:
    """Runs an operator's reference with fixed attributes. It is the function of a `RunHost`.

    `sizes` names the sizes that the last arguments give: those in the attributes that only the run
    knows. `bounds` is how indices out of range are treated. `most` is an upper bound, if known, of
    the size that the step makes from a count.
    """

    def __init__(
        self,
        op: Op,
        attrs: Mapping[str, Any],
        sizes: tuple[str, ...] = (),
        bounds: str = "check",
        most: Dim | None = None,
    ) -> None:
        self.op = op
        self.attrs = attrs
        self.sizes = sizes
        self.bounds = bounds
        self.most = most
        self._held = len(argument_references(attrs))
        self.collects = self.owns_results = op.traits.collects
        self.reinterprets = op.traits.reinterprets
        self.splits = op.traits.splits
        passes_on = op.traits.passes_on or self.splits or self.reinterprets
        self.is_quiet = self.only_moves = op.traits.collects or passes_on
        # Without sizes and values in the attributes, arguments with elements need no preparation.
        self._direct: Callable[..., Any] | None = None
        is_host = op.host or self.collects
        if is_host and op.is_builtin and op.reference_rule and not self._held and not sizes:
            plain = attrs.plain if isinstance(attrs, Attrs) else attrs
            self._direct = partial(op.reference_rule, **plain)
        # Earlier calls; shapes and sizes are mostly the same in each run.
        self._met: dict[Any, tuple[Budgets, ReadyCall]] = {}

    def __call__(self, *arrays: Any) -> Any:
        """Returns the operator's result, or a tuple of several."""
        if IN_FORCE.get() != self.bounds:
            with bounds_in_force(self.bounds):
                return self(*arrays)
        if self._direct is None:
            return self._prepared(arrays)
        for array in arrays:
            kind = type(array)
            if kind is _ARRAY:
                if not array.size:
                    return self._prepared(arrays)
            elif kind not in _PLAIN:
                return self._prepared(arrays)
        try:
            result = self._direct(*arrays)
        except (ValueError, IndexError):  # which the checks of types report
            return self._prepared(arrays)
        return result if type(result) in _PLAIN else as_tensor(result)

    def _prepared(self, arrays: Sequence[Any]) -> Any:
        count = len(arrays) - len(self.sizes)
        args, given = arrays[:count], tuple(map(int, arrays[count:]))
        key = self._key(args, given)
        budgets, call = self._met.get(key, _NOT_MET) if key is not None else _NOT_MET
        if call is None or budgets is not current():
            call = self.op.readied(args, self._attrs_for(given))
            if key is not None:
                if len(self._met) >= _KEPT_CALLS:
                    self._met.clear()
                self._met[key] = current(), call
        return self.op.run_ready(call, args)

    def _key(self, args: Sequence[Any], given: tuple[int, ...]) -> Any:
        """Returns the key of a call in the table of calls; None if it must not be stored."""
        key: list[Any] = [given]
        for array in args:
            if type(array) is not np.ndarray:
                return None
            key += array.shape, array.dtype
        for array in args[len(args) - self._held :] if self._held else ():
            if array.size > _FEW_VALUES:
                return None
            key.append(content(array))
        return tuple(key)

    def at(self, sizes: Mapping[str, int]) -> HostStep:
        """Returns the step at given sizes; itself if its attributes name none of them."""
        attrs = Attrs({name: settled(value, sizes) for name, value in self.attrs.items()})
        if attrs == self.attrs:
            return self
        return HostStep(self.op, attrs, self.sizes, self.bounds, self.most)

    def _attrs_for(self, given: tuple[int, ...]) -> Mapping[str, Any]:
        """Returns the attributes for these sizes."""
        if not self.sizes:
            return self.attrs
        known = dict(zip(self.sizes, given, strict=True))
        return Attrs({name: settled(value, known) for name, value in self.attrs.items()})

    def to_json(self) -> dict[str, Any]:
        """Returns the step as JSON values.

        Errors: C059 for an attribute that has no such form.
        """
        attrs = {n: _to_json(self.op, n, v, self.sizes) for n, v in self.attrs.items()}
        sizes = {"sizes": self.sizes} if self.sizes else {}
        bounds = {"bounds": self.bounds} if self.bounds != "check" else {}
        return {"operator": self.op.name, "attributes": attrs, **sizes, **bounds}

    @staticmethod
    def from_json(step: Mapping[str, Any]) -> HostStep:
        """Returns the step of JSON values from `to_json`.

        Errors: C061 if no operator of that name is registered.
        """
        name = step["operator"]
        if not has_op(name):  # a layer that is imported when it runs
            import clew.frontends  # noqa: F401, PLC0415 - it registers those of formats
        try:
            op = get_op(name)
        except GraphTypeError as error:
            raise CompileError(
                "C061",
                f"the model calls the operator {name}, which is not registered here",
                hint="import the module that registers it before loading the model",
            ) from error
        attrs = Attrs({n: _from_json(v) for n, v in step["attributes"].items()})
        return HostStep(op, attrs, tuple(step.get("sizes", ())), step.get("bounds", "check"))


def _to_json(op: Op, name: str, value: Any, sizes: Sequence[str]) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case ArgRef():
            return {"argument": value.index}
        case tuple():
            return [_to_json(op, name, item, sizes) for item in value]
        case SymDim() if not is_unknown(value) or value.symbols <= set(sizes):
            return {"size": dim_text(value)}
    raise CompileError(
        "C059",
        f"{op.name} runs between kernels, and its attribute {name}={value!r} cannot be saved",
        hint="numbers, text and tuples of them can",
    )


def _from_json(value: Any) -> Any:
    match value:
        case {"float": text}:
            return float(text)
        case {"argument": index}:
            return ArgRef(index)
        case {"size": text}:
            type_ = TypeReader(f"i64[{text}]").type()  # signs have a meaning between brackets
            assert isinstance(type_, TensorType)
            return type_.shape[0]
        case list():
            return tuple(_from_json(item) for item in value)
    return value
