"""Reads the JSON of an exported program into torch's own classes (`torch._export.serde.schema`).

torch takes the values as they are: names become Python code of the graph, operators are looked up
as attributes of modules, sizes are evaluated. Here each value must have the declared type, and each
text is checked against its use in torch. Unneeded parts are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from torch._export.serde import schema
from torch._export.serde.union import _Union

from clew.frontends.torch.file.expressions import SYMBOL, SizeReader
from clew.frontends.torch.file.operators import check_operator
from clew.frontends.torch.file.sizes import check_results, check_size
from clew.support.budgets import current, exceeded
from clew.support.errors import ModelError

T = TypeVar("T")
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NOT_IN_PATHS: Final = re.compile(r"""["'\\\x00-\x1f\x7f]""")
_DEVICE: Final = re.compile(r"[a-z0-9]{1,16}")
_KEPT_METADATA: Final = ("stack_trace", "nn_module_stack")
_DEEPEST_VALUE: Final = 256
_LONGEST_GUARD: Final = 10_000
_INT_64: Final = range(-(1 << 63), 1 << 63)
_FLOATS: Final = ("Infinity", "-Infinity", "NaN")


class PickledError(Exception):
    """A part of a file that only Python's pickle reads; the text says which."""


class Reader:
    """Reads values of one file."""

    def __init__(self) -> None:
        self._sizes = SizeReader()
        self._nodes = 0
        self._graphs = 0

    def read(self, kind: type[T], value: Any) -> T:
        """Returns a JSON value as an object of a class of torch's schema.

        Errors: ValueError; PickledError; ForeignError; M006, M007, M009 and M030 for values that
        exceed the budgets.
        """
        found: T = self._read(kind, value, 0)
        return found

    def _read(self, kind: Any, value: Any, depth: int) -> Any:
        if depth > _DEEPEST_VALUE:
            raise ValueError("its values are nested too deeply")
        origin, given = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return None if value is None else self._read(given[0], value, depth)
        if origin is list and isinstance(value, list):
            return [self._read(given[0], each, depth + 1) for each in value]
        if origin is dict and isinstance(value, dict):
            return {_text(k): self._read(given[1], each, depth + 1) for k, each in value.items()}
        if isinstance(kind, type) and isinstance(value, dict):
            if issubclass(kind, _Union):
                return self._union(kind, value, depth)
            if dataclasses.is_dataclass(kind):
                return self._object(kind, value, depth)
        return _plain(kind, value)

    def _union(self, kind: Any, value: Mapping[str, Any], depth: int) -> Any:
        fields = _fields(kind)
        if len(value) != 1 or next(iter(value)) not in fields:
            raise ValueError(f"a {kind.__name__} is not one of its kinds")
        ((name, given),) = value.items()
        made = self._checked(kind, name, self._read(fields[name], given, depth + 1))
        return kind.create(**{name: made})

    def _object(self, kind: Any, value: Mapping[str, Any], depth: int) -> Any:
        self._begin(kind)
        fields, made = _fields(kind), {}
        for field in dataclasses.fields(kind):
            if (kind, field.name) in _LEFT_OUT:
                made[field.name] = _LEFT_OUT[kind, field.name]()
            elif field.name in value:
                read = self._read(fields[field.name], value[field.name], depth + 1)
                made[field.name] = self._checked(kind, field.name, read)
            elif field.default is dataclasses.MISSING and (
                field.default_factory is dataclasses.MISSING
            ):
                raise ValueError(f"a {kind.__name__} lacks {field.name!r}")
        found = kind(**made)
        if kind is schema.Graph:
            self._graphs -= 1
            check_results(found)
        elif kind is schema.TensorMeta:
            check_size(found)
        return found

    def _begin(self, kind: Any) -> None:
        """Counts nodes and nested graphs. Errors: M007, M009."""
        budgets = current()
        if kind is schema.Node:
            self._nodes += 1
            if self._nodes > budgets.nodes:
                raise exceeded(ModelError, "M009", "nodes", self._nodes, "nodes", budgets.nodes)
        if kind is schema.Graph:
            self._graphs += 1
            if self._graphs > budgets.nesting:
                raise exceeded(
                    ModelError, "M007", "nested graphs", self._graphs, "nesting", budgets.nesting
                )

    def _checked(self, kind: Any, field: str, value: Any) -> Any:
        if (kind, field) == (schema.SymExpr, "expr_str"):
            return self._sizes.read(value)
        check = _CHECKS.get((kind, field))
        if check is None:
            if _holds_text(value) and (kind, field) not in _DATA:
                raise ValueError(f"{kind.__name__} has a text {field!r}, which clew does not know")
            return value
        return check(value)


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """Returns the types of a class's fields."""
    return typing.get_type_hints(kind, globalns=vars(schema))


def _plain(kind: Any, value: Any) -> Any:
    """Returns a number, a truth value or a text. Errors: ValueError for another type."""
    if kind is str and isinstance(value, str):
        return _text(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is float and isinstance(value, str) and value in _FLOATS:
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if kind is float:
            return float(value)
        if isinstance(value, int) and value in _INT_64:
            if kind is int:
                return value
            if isinstance(kind, type) and issubclass(kind, IntEnum):
                return kind(value)
    raise ValueError(f"it has a {type(value).__name__} in place of {_name_of(kind)}")


def _name_of(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _text(text: str) -> str:
    """Returns a text. Errors: ValueError if it is no Unicode, as half a surrogate pair is none."""
    if not text.isascii():
        text.encode()
    return text


def _name(text: str) -> str:
    """Returns a name that becomes a variable of torch's Python code. Errors: ValueError; M030."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is not a name")
    return _short(text)


def _name_or_none(text: str | None) -> str | None:
    return _name(text) if text else text


def _short(text: str) -> str:
    most = current().name_chars
    if len(text) > most:
        raise exceeded(ModelError, "M030", "characters of a name", len(text), "name_chars", most)
    return text


def _path(text: str) -> str:
    """Returns the path of a tensor in a module, which torch's Python code has in quotes."""
    if _NOT_IN_PATHS.search(text):
        raise ValueError(f"{text[:100]!r} is not the path of a tensor")
    return _short(text)


def _names(found: dict[str, Any]) -> dict[str, Any]:
    for name in found:
        _name(name)
    return found


def _operator(name: str) -> str:
    check_operator(name)
    return name


def _device(kind: str) -> str:
    if not _DEVICE.fullmatch(kind):
        raise ValueError(f"{kind[:100]!r} is not a device")
    return kind


def _axes(found: list[Any]) -> list[Any]:
    most = current().rank
    if len(found) > most:
        raise exceeded(ModelError, "M006", "axes of a tensor", len(found), "rank", most)
    return found


def _metadata(found: dict[str, str]) -> dict[str, str]:
    """Returns a node's place in the user's code."""
    kept: dict[str, str] = {name: found[name] for name in _KEPT_METADATA if name in found}
    _short(kept.get("nn_module_stack", ""))
    return kept


def _ranges(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the ranges of symbols; torch derives those of expressions."""
    return {name: range_ for name, range_ in found.items() if SYMBOL.fullmatch(name)}


def _guards(found: list[str]) -> list[str]:
    for text in found:
        if len(text) > _LONGEST_GUARD:
            raise ValueError(f"a guard has {len(text)} characters")
    return found


def _holds_text(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(isinstance(each, str) for each in value)
    return isinstance(value, str)


def _objects(found: Any) -> Any:
    if found:
        raise PickledError("an object of C++")
    return found


_PATHS: Final = (
    (schema.InputToParameterSpec, "parameter_name"),
    (schema.InputToBufferSpec, "buffer_name"),
    (schema.InputToTensorConstantSpec, "tensor_constant_name"),
    (schema.BufferMutationSpec, "buffer_name"),
    (schema.ParameterMutationSpec, "parameter_name"),
    (schema.GradientToParameterSpec, "parameter_name"),
    (schema.ModuleCallEntry, "fqn"),
)
_CHECKS: Final[Mapping[tuple[Any, str], Callable[[Any], Any]]] = {
    **dict.fromkeys(_PATHS, _path),
    (schema.TensorArgument, "name"): _name,
    (schema.TokenArgument, "name"): _name,
    (schema.SymIntArgument, "as_name"): _name,
    (schema.SymFloatArgument, "as_name"): _name,
    (schema.SymBoolArgument, "as_name"): _name,
    (schema.GraphArgument, "name"): _name,
    (schema.NamedArgument, "name"): _name_or_none,
    (schema.InputToConstantInputSpec, "name"): _name_or_none,
    (schema.GradientToUserInputSpec, "user_input_name"): _name,
    (schema.UserInputMutationSpec, "user_input_name"): _name,
    (schema.Node, "name"): _name_or_none,
    (schema.Node, "target"): _operator,
    (schema.Node, "metadata"): _metadata,
    (schema.Argument, "as_operator"): _operator,
    (schema.Argument, "as_custom_obj"): _objects,
    (schema.InputSpec, "custom_obj"): _objects,
    (schema.Device, "type"): _device,
    (schema.TensorMeta, "sizes"): _axes,
    (schema.TensorMeta, "strides"): _axes,
    (schema.Graph, "tensor_values"): _names,
    (schema.Graph, "sym_int_values"): _names,
    (schema.Graph, "sym_bool_values"): _names,
    (schema.Graph, "sym_float_values"): _names,
    (schema.Graph, "custom_obj_values"): _objects,
    (schema.ExportedProgram, "range_constraints"): _ranges,
    (schema.ExportedProgram, "guards_code"): _guards,
}
# Texts that stay data: torch passes them on, compares them, or looks them up in a table of its own.
_DATA: Final = frozenset(
    (
        (schema.Argument, "as_string"),
        (schema.Argument, "as_strings"),
        (schema.Argument, "as_string_to_argument"),
        (schema.ConstantValue, "as_string"),
        (schema.ModuleCallSignature, "in_spec"),
        (schema.ModuleCallSignature, "out_spec"),
        (schema.ModuleCallSignature, "forward_arg_names"),
        (schema.ExportedProgram, "verifiers"),
        (schema.ExportedProgram, "torch_version"),
        (schema.ExportedProgram, "opset_version"),
        (schema.PayloadMeta, "path_name"),
        (schema.PayloadConfig, "config"),
    )
)
# What torch would put beside the graph, and clew never reads.
_LEFT_OUT: Final[Mapping[tuple[Any, str], Callable[[], Any]]] = {
    (schema.GraphModule, "metadata"): dict,
    (schema.GraphModule, "treespec_namedtuple_fields"): dict,
    (schema.ModuleCallSignature, "inputs"): list,
    (schema.ModuleCallSignature, "outputs"): list,
}
