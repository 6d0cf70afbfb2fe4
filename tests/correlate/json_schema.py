"""The part of JSON Schema that `graph.schema.json` uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KNOWN = frozenset(
    ("$schema", "title", "description", "$defs", "$ref", "type", "properties", "required",
     "additionalProperties", "items", "enum", "const", "anyOf", "minItems", "maxItems", "minimum")
)  # fmt: skip


def errors(
    value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    """Yields where a value departs from a schema."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from errors(value, root["$defs"][name], root, at)
    if "anyOf" in schema and all(any(errors(value, s, root, at)) for s in schema["anyOf"]):
        yield f"{at}: {value!r} is none of the alternatives"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    types = schema.get("type", ())
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, t) for t in types):
        yield f"{at}: {value!r} is no {' or '.join(types)}"
        return
    if isinstance(value, (int, float)) and value < schema.get("minimum", value):
        yield f"{at}: {value!r} is too small"
    if isinstance(value, dict):
        yield from _object(value, schema, root, at)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{at}: {len(value)} items"
        for n, item in enumerate(value):
            yield from errors(item, schema.get("items", {}), root, f"{at}[{n}]")


def _object(
    value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at}: no {name!r}"
    rest = schema.get("additionalProperties", {})
    for name, item in value.items():
        if name in known:
            yield from errors(item, known[name], root, f"{at}.{name}")
        elif rest is False:
            yield f"{at}: {name!r} is not in the schema"
        elif isinstance(rest, Mapping):
            yield from errors(item, rest, root, f"{at}.{name}")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])
