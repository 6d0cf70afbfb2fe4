"""The list of networks, and the cache of exported models on disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from exports import networks
from exports.entries import Entry, code_of, unique

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "exports"
_LIBRARIES = ("onnxscript", "timm", "torch", "torchvision", "transformers")
_MAKERS = ("exporting.py", "networks/libraries.py", "torchvision_ops.py", "weights.py")


@dataclass(frozen=True)
class Variant:
    """One exported model: a network, the exporter, and whether named dimensions are free."""

    entry: Entry
    exporter: str
    dynamic: bool

    def __str__(self) -> str:
        return f"{self.entry.name}.{self.exporter}{'.dynamic' if self.dynamic else ''}"

    @property
    def path(self) -> Path:
        """Where its ONNX file is or will be."""
        return _CACHE / f"{self}.onnx"


@cache
def catalog() -> dict[str, Entry]:
    """Returns all entries by name."""
    return unique(networks.entries())


def families() -> list[str]:
    """Returns the names of the families."""
    return sorted({entry.family for entry in catalog().values()})


def selected(names: list[str]) -> list[Entry]:
    """Returns the entries with these names, or in these families; all for no names.

    Raises KeyError for an unknown name.
    """
    if not names:
        return list(catalog().values())
    found: dict[str, Entry] = {}
    for name in names:
        members = [e for e in catalog().values() if name in (e.name, e.family)]
        if not members:
            raise KeyError(name)
        found.update((e.name, e) for e in members)
    return list(found.values())


def variant(text: str) -> Variant:
    """Returns the variant of a name like `detr.dynamo.dynamic`."""
    name, exporter, *rest = text.split(".")
    return Variant(catalog()[name], exporter, bool(rest))


class NotExported(Exception):
    """The exporter failed. `lasting` says whether a retry would fail, too."""

    def __init__(self, message: str, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


def path(which: Variant, export: Callable[[Variant, Path], None]) -> Path:
    """Returns the model's file; `export` writes it first if it is missing or stale."""
    note = which.path.with_suffix(".json")
    fresh = _freshness(which.entry)
    _CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(which.path.with_suffix(".lock")):
        known = json.loads(note.read_text()) if note.is_file() else {}
        if known.get("fresh") != fresh:
            which.path.unlink(missing_ok=True)
            partial = which.path.with_suffix(".partial")
            error = ""
            try:
                export(which, partial)
                os.replace(partial, which.path)
            except NotExported as failure:
                partial.unlink(missing_ok=True)
                if not failure.lasting:
                    raise
                error = str(failure)
            known = {"fresh": fresh, "error": error}
            note.write_text(json.dumps(known))
    if known["error"]:
        raise NotExported(known["error"])
    return which.path


def _freshness(entry: Entry) -> str:
    """Returns a short hash of all that a model depends on: its description and the exporters."""
    digest = hashlib.sha256(entry.description.encode())
    for maker in _MAKERS:
        digest.update(code_of((Path(__file__).parent / maker).read_text()).encode())
    for library in _LIBRARIES:
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
