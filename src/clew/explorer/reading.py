"""JSON from outside, checked strictly against the schema: no unknown keys, no conversions."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from clew.support.errors import InputError

_MOST_ITEMS: Final = 10_000
_MOST_CHARACTERS: Final = 100_000
_LARGEST: Final = 1 << 53
_SHOWN: Final = 60


def parsed(data: bytes) -> Any:
    """Returns the value of a JSON text.

    Errors: I210 for text that is not JSON, is nested too deeply, or has a key twice.
    """
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _Twice) else "it is not JSON"
        raise _refused("the body", reason) from None


def read_object(fields: Mapping[str, Any], value: Any, where: str) -> dict[str, Any]:
    """Returns the fields of a JSON object, each read as its type; any may be missing.

    Errors: I210.
    """
    if not isinstance(value, dict):
        raise _refused(where, f"expected an object, not {_shown(value)}")
    unknown = [name for name in value if name not in fields]
    if unknown:
        known = ", ".join(fields) or "none"
        raise _refused(where, f"unknown key {_shown(unknown[0])}; the keys are {known}")
    return {name: read(fields[name], v, f"{where}.{name}") for name, v in value.items()}


def read(hint: Any, value: Any, where: str = "the body") -> Any:
    """Returns a JSON value as a type of the schema; `where` names it in messages.

    Errors: I210.
    """
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(given, value, where)
    if origin is typing.Literal:
        if any(type(value) is type(choice) and value == choice for choice in given):
            return value
        raise _refused(where, f"expected one of {', '.join(map(str, given))}, not {_shown(value)}")
    if origin is list:
        items = _sized(list, value, where)
        return [read(given[0], item, f"{where}[{n}]") for n, item in enumerate(items)]
    if origin is dict:
        entries = _sized(dict, value, where)
        return {
            read(given[0], key, where): read(given[1], item, f"{where}[{_shown(key)}]")
            for key, item in entries.items()
        }
    return _scalar(hint, value, where)


def _union(given: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in given:
        return None
    kinds = [kind for kind in given if kind is not type(None)]
    for kind in kinds[:-1]:
        try:
            return read(kind, value, where)
        except InputError:
            continue
    return read(kinds[-1], value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) is int:
        value = float(value)
    if hint not in (bool, int, float, str) or type(value) is not hint:
        raise _refused(where, f"expected {hint.__name__}, not {_shown(value)}")
    if hint is str and len(value) > _MOST_CHARACTERS:
        raise _refused(where, f"more than {_MOST_CHARACTERS} characters")
    if hint is int and abs(value) > _LARGEST:
        raise _refused(where, "the number is too large")
    return value


def _sized(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, kind):
        raise _refused(where, f"expected {kind.__name__}, not {_shown(value)}")
    if len(value) > _MOST_ITEMS:  # type: ignore[arg-type]
        raise _refused(where, f"more than {_MOST_ITEMS} items")
    return value


def _dataclass(hint: type, value: Any, where: str) -> Any:
    found = read_object(_fields(hint), value, where)
    missing = [
        f.name
        for f in dataclasses.fields(hint)
        if f.name not in found
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise _refused(where, f"{missing[0]} is missing")
    return hint(**found)


@cache
def _fields(hint: type) -> dict[str, Any]:
    return typing.get_type_hints(hint)


class _Twice(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Twice("a key is given twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refused(where: str, reason: str) -> InputError:
    return InputError("I210", f"malformed request: {where}: {reason}")
