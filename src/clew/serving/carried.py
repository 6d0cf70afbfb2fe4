"""Carries the models of a disk cache to another folder or machine, in one file.

The file is a container (`runtime/container.py`) whose text names the machine and the version of
clew that the models are for, and the entry that each blob becomes. It holds native code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew.machine.here import identity as machine_identity
from clew.runtime.cache import INDEX, NATIVE, PART, START, Cache
from clew.runtime.code_version import code_version
from clew.runtime.container import read_container, write_container
from clew.serving.contents import starts
from clew.support.errors import CompileError
from clew.version import VERSION

_FORMAT: Final = 1
_CARRIED: Final = (NATIVE, PART, INDEX, START)
_KEY: Final = re.compile(r"[0-9a-f]{8,128}\.(native|part|index|start)")
_ORDER: Final = {suffix: number for number, suffix in enumerate(_CARRIED)}


def export_cache(cache: Cache, path: Path) -> int:
    """Writes the models in a cache to a file; returns their number.

    Errors: C050 (the file), C165 (nothing to export).
    """
    entries, code = list(cache.entries()), code_version(cache)
    named = [e.key.removesuffix(INDEX) for e in entries if e.key.endswith(INDEX)]
    indexes = {key: index for key in named if (index := cache.peek_index(key)) is not None}
    kept = {key: index for key, index in indexes.items() if index.about.get("code") == code}
    wanted = {f"{key}{INDEX}" for key in kept}
    wanted |= {part for index in kept.values() for part in index.parts}
    wanted |= {entry.key for entry, record in starts(cache, entries) if record["build"] in kept}
    wanted |= {entry.key for entry in entries if entry.key.endswith(NATIVE)}
    keys, blobs = [], []
    for key in sorted(wanted):
        file = cache.open(key)
        if file is not None:
            with file:
                keys.append(key)
                blobs.append(np.frombuffer(file.read(), np.uint8))
    if not kept:
        raise CompileError(
            "C165", "the cache holds no models", hint="compile a model first, with the cache on"
        )
    text = {
        "cache": _FORMAT,
        "clew": VERSION,
        "code": code,
        "machine": machine_identity() or "",
        "keys": keys,
    }
    write_container(path, text, blobs)
    return len(kept)


def import_cache(cache: Cache, path: Path) -> int:
    """Adds the models in a file to a cache; returns their number. Nothing is added if the file is
    damaged or foreign.

    Errors: C050 to C054 (the file), C166 (another kind of file), C167 (for another machine), C168
    (for another version of clew), C169 (no cache, or the disk does not take them).
    """
    found = read_container(path)
    text = found.text
    keys: Any = text.get("keys")
    if text.get("cache") != _FORMAT or not _are_keys(keys, len(found.blobs)):
        raise CompileError(
            "C166",
            f"{path} is not an exported cache",
            hint="clew cache export writes one; clew.load_compiled reads a saved model",
        )
    if text.get("machine") != machine_identity():
        raise CompileError(
            "C167",
            f"{path} is for machines of another kind: their CPU, caches or measured costs differ",
            hint="compile the models here; compiled.save writes models for other machines",
        )
    if text.get("code") != code_version(cache):
        raise CompileError(
            "C168",
            f"{path} was written by another version of clew ({text.get('clew')})",
            hint="export it again with the version that is installed here",
        )
    if cache.root is None:
        raise CompileError("C169", "the disk cache is switched off", hint="unset CLEW_CACHE")
    pairs = sorted(
        zip(keys, found.blobs, strict=True), key=lambda p: _ORDER[f".{p[0].partition('.')[2]}"]
    )  # an index comes after its parts
    for key, blob in pairs:
        if not cache.write(key, (blob.data,), sync=key.endswith(PART)):
            raise CompileError(
                "C169", f"{cache.root} cannot be written", hint="see the free space of the disk"
            )
    cache.grew(sum(blob.nbytes for blob in found.blobs))
    return sum(key.endswith(INDEX) for key in keys)


def _are_keys(keys: Any, count: int) -> bool:
    return (
        isinstance(keys, list)
        and len(keys) == count
        and all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys)
    )
