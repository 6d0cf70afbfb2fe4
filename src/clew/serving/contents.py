"""The models in the disk cache, for listings."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from clew.runtime.cache import INDEX, PART, START, Cache, Entry, Index


class StoredModel(NamedTuple):
    """A model in the cache: the files and options that it was compiled from, as far as they are
    known. `own_bytes` is the size of what no other model shares, and `used` the local time of its
    last use.
    """

    key: str
    names: tuple[str, ...]
    options: tuple[Mapping[str, str], ...]
    target: str
    kernels: int
    size_bytes: int
    own_bytes: int
    used: str


def stored_models(cache: Cache) -> list[StoredModel]:
    """Returns the models in the cache, the most recently used first."""
    entries = list(cache.entries())
    sizes = {e.key: e.size_bytes for e in entries if e.key.endswith(PART)}
    indexes = [(e, index) for e in entries if (index := _index(cache, e)) is not None]
    uses = Counter(part for _, index in indexes for part in index.parts)
    told: dict[str, list[tuple[Entry, dict[str, Any]]]] = {}
    for entry, start in starts(cache, entries):
        told.setdefault(str(start["build"]), []).append((entry, start.get("about", {})))
    found = []
    for entry, index in indexes:
        key = entry.key.removesuffix(INDEX)
        used_s = max([entry.used_s, *(e.used_s for e, _ in told.get(key, ()))])
        abouts = [about for _, about in told.get(key, ())]
        parts = [p for p in index.parts if p in sizes]
        found.append(
            (
                used_s,
                StoredModel(
                    key,
                    tuple(dict.fromkeys(str(about.get("model", "")) for about in abouts)),
                    tuple(_options(about) for about in abouts),
                    str(index.about.get("target", "")),
                    int(index.about.get("kernels", 0)),
                    entry.size_bytes + sum(sizes[p] for p in parts),
                    entry.size_bytes + sum(sizes[p] for p in parts if uses[p] == 1),
                    time.strftime("%Y-%m-%d %H:%M", time.localtime(used_s)),
                ),
            )
        )
    return [model for _, model in sorted(found, key=lambda each: -each[0])]


def _options(about: Mapping[str, Any]) -> dict[str, str]:
    found = about.get("options")
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def starts(cache: Cache, entries: list[Entry]) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Yields the starts among entries with their records."""
    for entry in entries:
        if entry.key.endswith(START):
            data = cache.peek(entry.key)
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(data or b"null")
                if isinstance(record, dict) and "build" in record:
                    yield entry, record


def _index(cache: Cache, entry: Entry) -> Index | None:
    return cache.peek_index(entry.key.removesuffix(INDEX)) if entry.key.endswith(INDEX) else None
