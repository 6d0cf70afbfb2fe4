"""The formats that clew reads: its own, and those of installed packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from clew.frontends.checkpoint.format import Checkpoint
from clew.frontends.format import Format
from clew.frontends.gguf.format import Gguf
from clew.frontends.names import display
from clew.frontends.onnx.format import Onnx
from clew.frontends.pt2 import ExportedProgram
from clew.frontends.text import Text
from clew.frontends.tflite.format import Tflite
from clew.support.errors import ClewWarning, InputError, warn
from clew.support.kinds import KINDS, Kind, holding
from clew.support.plugins import loaded
from clew.support.recognize import (
    Head,
    folder_names,
    head_in_memory,
    head_inside,
    head_of,
    kind_of_folder,
    kind_of_head,
)

OWN: Final[tuple[Format, ...]] = (
    Onnx(),
    ExportedProgram(),
    Tflite(),
    Checkpoint(),
    Gguf(),
    Text(),
)
_MOST_LAYERS: Final = 3  # of archives in each other that are looked into
GROUP: Final = "clew.formats"
"""The entry point group of packages that add formats: instances of `Format`."""


@cache
def _added() -> tuple[Format, ...]:
    """Returns the formats of packages. One that cannot be loaded is left out with a warning, since
    files of other formats do not need it.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - few files need them

    found: list[Format] = []
    for entry in entry_points(group=GROUP):
        try:
            found.append(loaded(entry, f"the format {entry.name}", _checked))
        except InputError as error:
            warn(ClewWarning(error.code, error.message, hint=error.hint))
    return tuple(found)


def _checked(given: object) -> Format:
    if not isinstance(given, Format):
        raise TypeError(f"{given!r} is no instance of Format")
    return given


def all_formats() -> Iterator[Format]:
    """Yields the formats. Those of packages are loaded when all of clew's own have passed."""
    yield from OWN
    yield from _added()


def by_suffix(path: str | os.PathLike[str]) -> Format | None:
    """Returns the format with a file's suffix, None if there is none."""
    suffix = Path(path).suffix.lower()
    return next((f for f in all_formats() if f.suffix == suffix), None) if suffix else None


def by_name(name: str) -> Format:
    """Returns the format with a name."""
    return next(each for each in all_formats() if each.name == name)


def format_of(path: str | os.PathLike[str]) -> Format | None:
    """Returns the format of a file by its bytes, or else by its suffix; None if neither tells."""
    found = recognized(path)
    return found if isinstance(found, Format) else by_suffix(path)


def cutting(path: str | os.PathLike[str]) -> Format:
    """Returns the format to cut and list a file with: its own, or else the one that reads bytes."""
    found = format_of(path)
    return found if found is not None and found.cuts else for_bytes()


def cut_formats() -> list[Format]:
    """Returns the formats whose files can be cut."""
    return [each for each in all_formats() if each.cuts]


def uploaded_suffixes() -> list[str]:
    """Returns the suffixes of files that the explorer takes as uploads."""
    return [each.suffix for each in all_formats() if each.uploads]


def for_bytes() -> Format:
    """Returns the format that reads bytes which nothing recognizes."""
    return next(each for each in all_formats() if each.reads_bytes)


def recognized(path: str | os.PathLike[str]) -> Format | Kind | None:
    """Returns what a file or folder is by its bytes alone: a format, or a kind that clew does not
    read; None if they do not tell, or if it cannot be read.
    """
    try:
        names = folder_names(path)
        if names is not None:
            return _of_folder(names)
        with head_of(path) as head:
            return _of_head(head)
    except (OSError, ValueError):
        return None


def recognized_in_memory(data: bytes) -> Format | Kind | None:
    """Returns what bytes are that a file might hold; None if they do not tell."""
    return _of_head(head_in_memory(data))


def _of_head(head: Head, depth: int = 0) -> Format | Kind | None:
    found = next((f for f in all_formats() if f.recognizes(head)), None)
    if found is not None:
        return found
    kind = kind_of_head(head)
    if kind is KINDS["zip"]:
        return _of_zip(head)
    inner = head_inside(head) if kind is not None and depth < _MOST_LAYERS else None
    held = None if inner is None else _of_head(inner, depth + 1)
    if kind is None or held is None:
        return kind
    return holding(kind, held.what, held.advice if isinstance(held, Kind) else "")


def _of_zip(head: Head) -> Kind:
    """Returns the kind of an archive, by the suffixes of its files. Only those of formats with an
    engine count: texts are in many archives.
    """
    formats = [each for each in all_formats() if each.engine]
    for name in head.members:
        found = next((each for each in formats if name.endswith(each.suffix)), None)
        if found is not None:
            return holding(KINDS["zip"], f"{found.what}, {display(name[1:])}", "")
    return KINDS["zip"]


def _of_folder(names: list[str]) -> Format | Kind:
    found = kind_of_folder(names)
    if found not in (KINDS["folder"], KINDS["hub_folder"]):
        return found
    for each in all_formats():
        if each.recognizes_folder(names):
            return each
        if each.folder is not None and any(name.endswith(each.suffix) for name in names):
            return each.folder
    return found
