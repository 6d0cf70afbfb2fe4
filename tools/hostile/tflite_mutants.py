"""New TFLite files out of good ones: by the positions that link their tables, and by what the
tables hold.

A mutant follows from its bytes and the random state alone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import numpy as np

from clew.frontends.tflite.file import options, schema
from clew.frontends.tflite.file.flatbuffer import Buffer, Damaged, Field, Schema
from hostile.mutants import FLOATS, INTS, TEXTS, blind
from tflite_files import written

Record = dict[str, Any]

_SCHEMA: Final = Schema({**schema.RECORDS, **options.RECORDS}, {**schema.UNIONS, **options.UNIONS})
_WIDTHS: Final = {
    "bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8,
}  # fmt: skip
_STRUCTURE: Final = ("u16", "u32", "i32")
_BLIND: Final = 0.15
_LINKS: Final = 0.5


def mutant(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Returns a file's bytes changed; `others` are files to take parts from."""
    way = draw.random()
    if way < _BLIND:
        return blind(data, draw.choice(others), draw)
    if way < _BLIND + _LINKS:
        return _relinked(data, draw)
    try:
        model, other = tables(data), tables(draw.choice(others))
        for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
            draw.choice(_CHANGES)(model, other, draw)
        changed = written("Model", model)
    except (Damaged, AssertionError, TypeError, ValueError, RecursionError, struct.error):
        return _relinked(data, draw)  # what cannot be written
    return _relinked(changed, draw) if draw.random() < 0.05 else changed


# --- by positions ---------------------------------------------------------------------------------


class _Positions(Buffer):
    """Notes where each number of a table, a reference or a vector's length lies."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, _SCHEMA)
        self.found: dict[tuple[int, str], None] = {}

    def _scalar(self, kind: str, at: int) -> Any:
        self.found[at, kind] = None
        return super()._scalar(kind, at)


@lru_cache(maxsize=64)
def _positions(data: bytes) -> list[tuple[int, str]]:
    reader = _Positions(data)
    with suppress(Damaged):
        reader.read("Model")
    return list(reader.found) or [(0, "u32")]


def _relinked(data: bytes, draw: random.Random) -> bytes:
    """Returns a file with some references, tables of slots, lengths and numbers changed."""
    made, places = bytearray(data), _positions(data)
    links = [each for each in places if each[1] in _STRUCTURE]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, kind = draw.choice(links if draw.random() < 0.7 else places)
        if kind == "f32":
            made[at : at + 4] = struct.pack("<f", np.float32(min(draw.choice(FLOATS), 3e38)))
            continue
        width = _WIDTHS[kind]
        old = int.from_bytes(made[at : at + width], "little")
        target = draw.choice(places)[0]
        number = draw.choice(
            (
                old + draw.choice((-8, -4, -2, -1, 1, 2, 4, 8)), target - at, at - target,
                len(data) - at, len(data) - at - 4, draw.choice(INTS), draw.choice(INTS),
                int.from_bytes(data[target : target + width], "little"),
            )
        )  # fmt: skip
        made[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(made)


# --- by what tables hold --------------------------------------------------------------------------


def tables(data: bytes) -> Record:
    """Returns a file as `tflite_files.written` takes it. Errors: Damaged."""
    return _plain(Buffer(data, _SCHEMA).read("Model"), "Model")


def _plain(values: Record, record: str) -> Record:
    made: Record = {}
    for field in _SCHEMA.fields(record):
        value = values[field.name]
        if field.form == "<":
            kind = values[f"{field.name}_type"]
            names = _SCHEMA.unions[field.type]
            if value is not None and 0 < kind < len(names):
                made[field.name] = (names[kind], _plain(value, names[kind]))
        elif field.form == "[":
            inner = field.type not in _WIDTHS and field.type not in ("f32", "str")
            if len(value):
                made[field.name] = [_plain(v, field.type) for v in value] if inner else list(value)
        elif field.type in _WIDTHS or field.type == "f32":
            made[field.name] = value
        elif value is not None and value != "":
            made[field.name] = value if field.type == "str" else _plain(value, field.type)
    for field in _SCHEMA.fields(record):
        if field.form == "<":
            made.pop(f"{field.name}_type", None)
    return made


def _walk(values: Record, record: str) -> Iterator[tuple[Record, str]]:
    """Yields each record with its kind."""
    yield values, record
    for field in _SCHEMA.fields(record):
        value = values.get(field.name)
        if isinstance(value, tuple):
            yield from _walk(value[1], value[0])
        elif isinstance(value, dict):
            yield from _walk(value, field.type)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                yield from _walk(each, field.type)


def _number(kind: str, draw: random.Random) -> Any:
    if kind == "f32":
        return float(np.float32(max(min(draw.choice(FLOATS), 3e38), -3e38)))
    if kind == "bool":
        return draw.random() < 0.5
    bits = 8 * _WIDTHS[kind]
    number = draw.choice(INTS) % (1 << bits)
    return number - (1 << bits) if kind[0] == "i" and number >> (bits - 1) else number


def _value(field: Field, model: Record, draw: random.Random) -> Any:
    """Returns a value for a field: drawn, or of the same kind from a model."""
    if field.form == "<":
        name = draw.choice(_SCHEMA.unions[field.type][1:])
        return name, {
            inner.name: _value(inner, model, draw)
            for inner in _SCHEMA.fields(name)
            if draw.random() < 0.5 and not _is_kind(inner, name)
        }
    if field.form == "[":
        element = Field(field.name, field.slot, "", field.type, None)
        return [_value(element, model, draw) for _ in range(draw.choice((0, 1, 2, 3, 5)))]
    if field.type in _WIDTHS or field.type == "f32":
        return _number(field.type, draw)
    if field.type == "str":
        return draw.choice(TEXTS)
    same = [values for values, record in _walk(model, "Model") if record == field.type]
    if same and draw.random() < 0.7:
        return dict(draw.choice(same))
    return {
        inner.name: _value(inner, model, draw)
        for inner in _SCHEMA.fields(field.type)
        if draw.random() < 0.4 and not _is_kind(inner, field.type)
    }


def _is_kind(field: Field, record: str) -> bool:
    """Whether a field says which record a union is, which follows from the union."""
    unions = [each.name for each in _SCHEMA.fields(record) if each.form == "<"]
    return any(field.name == f"{name}_type" for name in unions)


def _any_field(model: Record, other: Record, draw: random.Random) -> None:
    values, record = draw.choice(list(_walk(model, "Model")))
    fields = [each for each in _SCHEMA.fields(record) if not _is_kind(each, record)]
    if fields:
        _change(values, draw.choice(fields), other, draw)


def _change(values: Record, field: Field, other: Record, draw: random.Random) -> None:
    """Changes a field: an element of a vector, or all of it."""
    given = values.get(field.name)
    if isinstance(given, list) and given and draw.random() < 0.8:
        given = values[field.name] = list(given)
        place = draw.randrange(len(given))
        match draw.randrange(5):
            case 0:
                del given[place]
            case 1:
                given.insert(place, given[draw.randrange(len(given))])
            case 2:
                given[place] = given[draw.randrange(len(given))]
            case _:
                given[place] = _value(
                    Field(field.name, field.slot, "", field.type, None), other, draw
                )
    elif given is not None and draw.random() < 0.2:
        del values[field.name]
    else:
        values[field.name] = _value(field, other, draw)


def _chosen(record: str, *names: str) -> Callable[[Record, Record, random.Random], None]:
    """Returns a change of one of the named fields (or any) in one of the records of a kind."""

    def change(model: Record, other: Record, draw: random.Random) -> None:
        found = [values for values, kind in _walk(model, "Model") if kind == record]
        if not found:
            _any_field(model, other, draw)
            return
        name = draw.choice(names)
        field = next(each for each in _SCHEMA.fields(record) if each.name == name)
        _change(draw.choice(found), field, other, draw)

    return change


def _operator(model: Record, other: Record, draw: random.Random) -> None:
    """Another operator in the place of one."""
    codes = model.get("operator_codes") or [{}]
    code = draw.choice(codes)
    number = draw.randrange(len(options.OPERATORS) + 2)
    code |= {"builtin_code": number, "deprecated_builtin_code": min(number, 127)}


def _rewire(model: Record, other: Record, draw: random.Random) -> None:
    """Another tensor as an operand or a result."""
    graph = draw.choice(model.get("subgraphs") or [{}])
    operators = graph.get("operators")
    if not operators:
        return
    owner = draw.choice((graph, *(draw.choice(operators) for _ in range(4))))
    name = draw.choice(("inputs", "inputs", "outputs"))
    places = list(owner.get(name, []))
    tensor = draw.randrange(-1, len(graph.get("tensors", [])) + 1)
    match draw.randrange(4):
        case 0:
            places.append(tensor)
        case 1 if places:
            del places[draw.randrange(len(places))]
        case _ if places:
            places[draw.randrange(len(places))] = tensor
    owner[name] = places


def _elements(model: Record, other: Record, draw: random.Random) -> None:
    """Changes the bytes of a constant, above all of those that say sizes and places."""
    buffers = [each for each in model.get("buffers", []) if each.get("data")]
    if not buffers:
        return
    small = [each for each in buffers if len(each["data"]) <= 64] or buffers
    buffer = draw.choice(small if draw.random() < 0.8 else buffers)
    data = bytearray(buffer["data"])
    width = draw.choice((1, 4, 4, 8))
    match draw.randrange(4):
        case 0:
            del data[draw.randrange(len(data)) :]
        case 1:
            data += data[: draw.randrange(1, len(data) + 1)]
        case _:
            at = draw.randrange(max(len(data) // width, 1)) * width
            number = draw.choice(INTS) % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
    buffer["data"] = list(data)


def _outside(model: Record, other: Record, draw: random.Random) -> None:
    """Puts a buffer elsewhere in the file, or beyond it."""
    buffer = draw.choice(model.get("buffers") or [{}])
    buffer |= {
        "offset": draw.choice((0, 1, 2, 16, 100, 2**31, 2**63, 2**64 - 1)),
        "size": draw.choice((0, 1, 4, 64, 2**31, 2**63, 2**64 - 1)),
    }


_Change = Callable[[Record, Record, random.Random], None]
_CHANGES: Final[tuple[_Change, ...]] = (
    _any_field, _any_field, _operator, _operator, _rewire, _rewire, _elements, _elements,
    _elements, _outside,
    _chosen("Tensor", "shape", "shape_signature"),
    _chosen("Tensor", "type", "buffer", "is_variable", "sparsity", "quantization", "name"),
    _chosen("QuantizationParameters", "scale", "zero_point", "quantized_dimension", "details"),
    _chosen("SparsityParameters", "traversal_order", "block_map", "dim_metadata"),
    _chosen("DimensionMetadata", "format", "dense_size", "array_segments", "array_indices"),
    _chosen("Operator", "builtin_options", "builtin_options2", "opcode_index", "inputs"),
    _chosen("SubGraph", "inputs", "outputs", "tensors", "operators"),
    _chosen("Model", "version", "buffers", "subgraphs", "operator_codes", "signature_defs"),
)  # fmt: skip
