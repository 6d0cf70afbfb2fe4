"""The zoo's catalog and its cache on disk."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from zoo import (
    detector,
    encoder,
    exported,
    free,
    handmade,
    light,
    quantized,
    signals,
    unseen,
    workloads,
)
from zoo.entries import Array, Entry

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "models"
_EXPORTERS = ("onnx", "onnxscript", "torch", "transformers")


@cache
def _catalog() -> dict[str, Entry]:
    builders = (light, exported, handmade, encoder, detector, free, workloads, signals, unseen)
    entries = [entry for builder in builders for entry in builder.entries()]
    entries += quantized.entries({entry.name: entry for entry in entries})
    catalog = {entry.name: entry for entry in entries}
    assert len(catalog) == len(entries), "two models share a name"
    return catalog


def names(group: str | None = None) -> list[str]:
    """Returns the names of all models, or of those in `group` (see `groups`)."""
    assert group is None or group in groups(), f"no group {group}, only {groups()}"
    return [e.name for e in _catalog().values() if group is None or group in e.groups]


def groups() -> list[str]:
    """Returns the names of the groups: `quick` for tests, `full` for real sizes, and by origin."""
    return sorted({group for entry in _catalog().values() for group in entry.groups})


def dims(name: str) -> dict[str, int]:
    """Returns the symbolic dimensions of a model's inputs, each with the size drawn by default."""
    return dict(_catalog()[name].dims)


def inputs(name: str, seed: int = 0, **sizes: int) -> dict[str, Array]:
    """Returns realistic inputs by name; `sizes` sets symbolic dimensions, as in `batch=2`."""
    return dict(_catalog()[name].draw(np.random.default_rng(seed), sizes))


def path(name: str) -> Path:
    """Returns the model's ONNX file, built first if it is missing or stale."""
    entry = _catalog()[name]
    file = _CACHE / _freshness(entry.sources, entry.libraries) / f"{name}.onnx"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_suffix(".lock")):
        if not file.is_file():
            partial = file.with_suffix(".partial")
            entry.build(partial)
            os.replace(partial, file)
            for stale in set(_CACHE.glob(f"*/{name}.onnx")) - {file}:
                stale.unlink()
    return file


@cache
def _freshness(sources: tuple[Path, ...], libraries: tuple[str, ...]) -> str:
    """Returns a short hash of a model's dependencies: its builder's sources and the exporters."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    for library in (*_EXPORTERS, *libraries):
        try:
            digest.update(f"{library} {metadata.version(library)}".encode())
        except metadata.PackageNotFoundError:
            digest.update(f"{library} none".encode())
    return digest.hexdigest()[:12]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
