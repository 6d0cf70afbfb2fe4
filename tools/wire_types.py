"""Writes `frontend/src/wire.ts` from `clew.explorer.schema` and the routes; `--check` compares.

python tools/wire_types.py [--check]
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clew.explorer import schema
from clew.explorer.routes import ROUTES

TARGET = Path(__file__).resolve().parents[1] / "frontend" / "src" / "wire.ts"
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def type_script(hint: Any) -> str:
    """Returns a Python type as TypeScript writes it."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint.__name__
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        inner = type_script(given[0])
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if origin is dict:
        return f"Record<{type_script(given[0])}, {type_script(given[1])}>"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_script, given))
    if origin is typing.Literal:
        return " | ".join(f'"{value}"' for value in given)
    raise TypeError(f"no TypeScript for {hint!r}")


def _declarations() -> Iterator[str]:
    for name, value in vars(schema).items():
        if not dataclasses.is_dataclass(value) or not isinstance(value, type):
            continue
        about = inspect.getdoc(value) or ""
        yield "/**"
        yield from (f" * {line}".rstrip() for line in about.splitlines())
        yield " */"
        yield f"export interface {name} {{"
        hints = typing.get_type_hints(value)
        yield from (
            f"  readonly {f.name}: {type_script(hints[f.name])};" for f in dataclasses.fields(value)
        )
        yield "}"
        yield ""


def _routes() -> Iterator[str]:
    yield "/** What each route answers, by its first word. */"
    yield "export interface Answers {"
    for route in ROUTES:
        yield f"  /** `{route.path.replace(':int', '').replace(':path', '')}`: {route.about} */"
        yield f"  readonly {route.name}: {route.answer.__name__};"
    yield "}"


def text() -> str:
    """Returns the file."""
    head = [
        "// Written by tools/wire_types.py from src/clew/explorer/schema.py: do not edit.",
        "// It is as long as that schema, which is one format.",
        "",
        f"export const VERSION = {schema.VERSION};",
        "",
    ]
    return "\n".join([*head, *_declarations(), *_routes()]) + "\n"


def main() -> int:
    """Writes the file, or checks that it is up to date."""
    if "--check" in sys.argv[1:]:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text())
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
