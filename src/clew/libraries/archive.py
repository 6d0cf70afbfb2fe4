"""Archives of one object: static libraries.

Source: the `ar` format of System V, as GNU binutils and LLVM write it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_MAGIC: Final = b"!<arch>\n"


def archive(name: str, data: bytes, symbols: Sequence[str]) -> bytes:
    """Returns an archive of an object with this name and an index of the symbols it defines."""
    assert len(name) <= 15, "longer names need a table of names"
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    index_bytes = 4 + 4 * len(symbols) + len(names)
    first = len(_MAGIC) + 60 + index_bytes + index_bytes % 2
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *[first] * len(symbols)) + names
    return _MAGIC + _member("/", index) + _member(f"{name}/", data)


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    assert len(head) == 60, "sizes have up to ten digits"
    return head + data + b"\n" * (len(data) % 2)
