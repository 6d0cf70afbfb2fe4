"""The smallest parts of the text form: names, dimensions, types, attribute values, spans.

Names that are not identifiers are quoted, so any string survives. Square brackets matter: inside
them `//` is a division, elsewhere it starts a span comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from clew.ir.dim_text import DIVISIONS, operand_text, operation_text
from clew.ir.dims import Atom, Dim, SymDim
from clew.ir.expr import ArgRef
from clew.ir.types import (
    FunctionType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
)
from clew.support.caches import bounded_cache
from clew.trace.span import Source, Span

_CACHE_BYTES: Final = 1 << 22
BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
BARE_SYMBOL: Final = re.compile(r"(\?[0-9]+|[A-Za-z_][A-Za-z0-9_.]*)\Z")
BARE_LAYER: Final = re.compile(r"[A-Za-z0-9_./-]+\Z")
# Words that start the right-hand side of a statement; operators with such names are quoted.
KEYWORDS: Final = frozenset({"const", "fn", "if", "let", "var", "while"})
# Words that are values of attributes; symbols with such names are quoted.
VALUES: Final = frozenset({"true", "false", "none", "nan", "inf", "dim", "opaque", "min", "max"})


def quote(text: str, mark: str = '"') -> str:
    """Returns the string in quotes, always on one line."""
    quoted = json.dumps(text, ensure_ascii=not text.isprintable())
    if mark == '"':
        return quoted
    return mark + quoted[1:-1].replace(mark, f"\\u{ord(mark):04x}") + mark


def unquote(text: str) -> str:
    """Returns the string from the result of `quote`. Raises `ValueError` for a bad escape."""
    return str(json.loads('"' + text[1:-1] + '"'))


def name_text(name: str) -> str:
    """Returns the text of the name of an operator, variable, function or attribute."""
    return name if BARE.match(name) and name not in KEYWORDS else quote(name)


def symbol_text(name: str) -> str:
    """Returns the text of a symbolic size's name."""
    return name if BARE_SYMBOL.match(name) and name not in VALUES else quote(name, "`")


def dim_text(dim: Dim) -> str:
    """Returns the text of a dimension, as between square brackets."""
    if not isinstance(dim, SymDim):
        return str(dim)
    parts = []
    for monomial, coefficient in dim.terms:
        factors = [_atom_text(a) if p == 1 else f"{_atom_text(a)}^{p}" for a, p in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append("*".join(factors))
    text = parts[0]
    for part in parts[1:]:
        text += f" - {part[1:]}" if part.startswith("-") else f" + {part}"
    return text


def _atom_text(atom: Atom) -> str:
    if not atom.op:
        return symbol_text(atom.name)
    if atom.op in DIVISIONS:
        texts = [operand_text(arg, dim_text(arg)) for arg in atom.args]
        return f"({operation_text(atom.op, texts)})"
    return operation_text(atom.op, [dim_text(arg) for arg in atom.args])


@bounded_cache(_CACHE_BYTES)
def type_text(type_: Type) -> str:
    """Returns the text of a type: `f32[batch, 64]:NC16c`, `(f32[2], i64[])`,
    `fn(f32[2]) -> f32[2]`.
    """
    match type_:
        case TensorType(shape, dtype, layout):
            suffix = f":{name_text(layout)}" if layout else ""
            return f"{dtype}[{', '.join(map(dim_text, shape))}]{suffix}"
        case UnrankedType(dtype):
            return f"{dtype}[*]"
        case TupleType(fields):
            return tuple_text([type_text(f) for f in fields])
        case FunctionType(params, result):
            return f"fn({', '.join(map(type_text, params))}) -> {type_text(result)}"
        case SequenceType(element, empty):
            return f"seq<{type_text(element)}{', empty' if empty else ''}>"
        case OptionalType(element):
            return f"optional<{type_text(element)}>"
        case MapType(key, value):
            return f"map<{key}, {type_text(value)}>"
    raise AssertionError(type_)


def tuple_text(items: list[str]) -> str:
    """Returns items in parentheses; one item has a comma after it, as in Python."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def value_text(value: Any, *, bracketed: bool = False) -> str:
    """Returns the text of an attribute's value; `opaque(...)`, which does not parse, if it has
    none.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case None:
            return "none"
        case str():
            return quote(value)
        case tuple():
            return f"[{', '.join([value_text(v, bracketed=True) for v in value])}]"
        case SymDim():
            return dim_text(value) if bracketed else f"dim[{dim_text(value)}]"
        case ArgRef():
            return f"arg[{value.index}]"
    return f"opaque({quote(repr(value))})"


def attrs_text(attrs: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Returns `name=value` pairs, except those equal to their defaults."""
    pairs = []
    for name, value in attrs.items():
        text = value_text(value)
        if name not in defaults or value_text(_frozen(defaults[name])) != text:
            pairs.append(f"{name_text(name)}={text}")
    return ", ".join(pairs)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


@bounded_cache(_CACHE_BYTES)
def span_text(span: Span, frontend: str) -> str:
    """Returns the text of a span's sources, without the frontend of those of `frontend`."""
    return ", ".join([_source_text(s, frontend) for s in span.sources])


def _source_text(source: Source, frontend: str) -> str:
    kind = "" if source.kind == "layer" else f"{name_text(source.kind)} "
    op = f":{name_text(source.op)}" if source.op else ""
    reader = "" if source.frontend == frontend else f"@{name_text(source.frontend)}"
    output = "" if source.output is None else f"#{source.output}"
    layer = source.layer if BARE_LAYER.match(source.layer) else quote(source.layer)
    return f"{kind}{layer}{op}{reader}{output}"
