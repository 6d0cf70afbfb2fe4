"""New files of a language model's folder out of good ones: by their JSON values, and blindly.

A mutant follows from its bytes and the random state alone.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hostile.mutants import FLOATS, INTS, TEXTS, blind

_BLIND: Final = 0.2
_LENGTH: Final = struct.Struct("<Q")
_ODD: Final[tuple[Any, ...]] = (
    None, True, [], {}, [[]], [None], {"a": 1}, [10**9] * 3, "\ud800", "a" * 5000, 2**64,
    *INTS, *FLOATS, *TEXTS,
)  # fmt: skip


def mutant(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Returns a file's bytes changed; `others` are files to take parts from."""
    if draw.random() < _BLIND:
        return blind(data, draw.choice(others), draw)
    if data.startswith(b"{"):
        return _json(_changed(json.loads(data), draw))
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    table = _json(_changed(json.loads(data[_LENGTH.size : end]), draw))
    length = len(table)
    if draw.random() < 0.1:
        length = draw.choice((length - 1, length + 1, *INTS)) % (1 << 64)
    return _LENGTH.pack(length) + table + data[end:]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _changed(value: Any, draw: random.Random) -> Any:
    """Returns a JSON value with some inner values replaced, removed, or copied elsewhere."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        places = list(fields(value))
        if not places or draw.random() < 0.02:
            return draw.choice(_ODD)
        owner, key = draw.choice(places)
        old = owner[key]
        match draw.randrange(8):
            case 0 | 1 if type(old) is int:
                owner[key] = draw.choice((old - 1, old + 1, 2 * old, old // 2, -old))
            case 0 | 1 | 2 | 3:
                owner[key] = draw.choice(_ODD)
            case 4:
                del owner[key]
            case 5 | 6:
                other, at = draw.choice(places)
                owner[key] = json.loads(json.dumps(other[at]))
            case _ if isinstance(owner, dict):
                owner[draw.choice(("__metadata__", "type", *TEXTS))] = old
            case _:
                owner.append(draw.choice((old, *_ODD)))
    return value


def fields(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields owner and key of every value in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from fields(inner)
