"""Messages between server and worker processes: a head (a JSON object) and a body (bytes), each
preceded by its length. Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any, Final, TypeAlias

Head: TypeAlias = dict[str, Any]

_LENGTHS: Final = struct.Struct("<II")
_HEAD_BYTES: Final = 4 << 20
_BODY_BYTES: Final = 1 << 30


def packed(head: Head, body: bytes = b"") -> bytes:
    """Returns a message as bytes."""
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > _HEAD_BYTES or len(body) > _BODY_BYTES:
        raise ValueError("the message is too long")
    return _LENGTHS.pack(len(text), len(body)) + text + body


def received(connection: socket.socket) -> tuple[Head, bytes] | None:
    """Returns the next message, or None if the other side has closed the connection."""
    try:
        lengths = _read(connection, _LENGTHS.size)
        if lengths is None:
            return None
        head, body = _lengths(lengths)
        text, data = _read(connection, head), _read(connection, body)
    except OSError:
        return None
    return None if text is None or data is None else (_head(text), data)


async def received_async(reader: asyncio.StreamReader) -> tuple[Head, bytes] | None:
    """Returns the next message, or None if the other side has closed the connection or sent a
    malformed message.
    """
    try:
        head, body = _lengths(await reader.readexactly(_LENGTHS.size))
        text = await reader.readexactly(head)
        return _head(text), await reader.readexactly(body)
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return None


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(1 << 20, count - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)


def _lengths(data: bytes) -> tuple[int, int]:
    head, body = _LENGTHS.unpack(data)
    if head > _HEAD_BYTES or body > _BODY_BYTES:
        raise ValueError("the message is too long")
    return head, body


def _head(text: bytes) -> Head:
    head = json.loads(text)
    if not isinstance(head, dict):
        raise ValueError("the message has no head")
    return head
