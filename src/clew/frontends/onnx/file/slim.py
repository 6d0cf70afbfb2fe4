"""Reads a model file without its large parameters, each of which is read into an aligned array on
demand.

protobuf copies a file's bytes into its messages, and once more out of them. Parameters are most of
a model's file, so this module walks the file first and cuts their bytes out of the input to
protobuf. A file with an unusual layout is parsed by protobuf as a whole. Source: protobuf encoding
(tags, varints, length-delimited fields), onnx.proto's field numbers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from clew.frontends.file_parts import FilePart, ModelFile
from clew.support.dataclass import dataclass

# Field numbers of ModelProto.graph, GraphProto.initializer and TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEADER_BYTES: Final = 20
_LEAST_BYTES: Final = 4096


class _Irregular(Exception):
    """The file has an unexpected layout; protobuf parses it instead."""


@dataclass
class Slim:
    """A model's bytes without its large parameters, and the locations of these, by position among
    the initializers.
    """

    data: bytes
    raw: dict[int, FilePart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: its number, wire type, and places in the file."""

    number: int
    wire: int
    start: int
    payload: int
    end: int


def read_slim(file: int, size_bytes: int, shown: str) -> Slim:
    """Returns the content of an open file, which errors call `shown`."""
    try:
        return _Walk(file, size_bytes, shown).run()
    except _Irregular:
        return Slim(_exactly(file, 0, size_bytes))


def _exactly(file: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        piece = os.pread(file, end - start, start)
        if not piece:
            break  # truncated meanwhile: protobuf reports it
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


class _Walk:
    def __init__(self, file: int, size_bytes: int, shown: str) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._parameters = ModelFile(file, shown)

    def run(self) -> Slim:
        graphs = [f for f in self._fields(0, self._size_bytes) if f.number == _GRAPH]
        if len(graphs) != 1 or graphs[0].wire != _BYTES:
            raise _Irregular
        (graph,) = graphs
        slim = Slim(b"")
        body = self._graph(graph, slim)
        if not slim.raw:
            raise _Irregular
        before = _exactly(self._file, 0, graph.start)
        after = _exactly(self._file, graph.end, self._size_bytes)
        slim.data = b"".join([before, _delimited(_GRAPH, body), after])
        return slim

    def _graph(self, graph: _Field, slim: Slim) -> bytes:
        pieces: list[bytes] = []
        copied, count = graph.payload, 0
        for tensor in self._fields(graph.payload, graph.end):
            if tensor.number != _INITIALIZER:
                continue
            raw = self._raw_data(tensor)
            if raw is not None:
                pieces.append(_exactly(self._file, copied, tensor.start))
                head = _exactly(self._file, tensor.payload, raw.start)
                tail = _exactly(self._file, raw.end, tensor.end)
                pieces.append(_delimited(_INITIALIZER, head + tail))
                copied = tensor.end
                slim.raw[count] = FilePart(self._parameters, raw.payload, raw.end - raw.payload)
            count += 1
        pieces.append(_exactly(self._file, copied, graph.end))
        return b"".join(pieces)

    def _raw_data(self, tensor: _Field) -> _Field | None:
        """Returns a tensor's raw bytes if they are large enough to cut out."""
        if tensor.wire != _BYTES:
            raise _Irregular
        if tensor.end - tensor.payload < _LEAST_BYTES:
            return None
        found = [f for f in self._fields(tensor.payload, tensor.end) if f.number == _RAW_DATA]
        if len(found) > 1 or any(f.wire != _BYTES for f in found):
            raise _Irregular
        return found[0] if found and found[0].end - found[0].payload >= _LEAST_BYTES else None

    def _fields(self, start: int, end: int) -> Iterator[_Field]:
        while start < end:
            header = os.pread(self._file, _HEADER_BYTES, start)
            tag, used = _varint(header, 0)
            wire, payload = tag & 7, start + used
            if wire == _VARINT:
                _, after = _varint(header, used)
                stop = start + after
            elif wire == _BYTES:
                length, after = _varint(header, used)
                payload = start + after
                stop = payload + length
            elif wire in (_FIXED64, _FIXED32):
                stop = payload + (8 if wire == _FIXED64 else 4)
            else:
                raise _Irregular
            if stop > end:
                raise _Irregular
            yield _Field(tag >> 3, wire, start, payload, stop)
            start = stop


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and the position after it."""
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
        shift += 7
    raise _Irregular


def _delimited(number: int, payload: bytes) -> bytes:
    """Returns a length-delimited field."""
    header = bytearray([number << 3 | _BYTES])
    length = len(payload)
    while length >= 128:
        header.append(length & 127 | 128)
        length >>= 7
    header.append(length)
    return bytes(header) + payload
