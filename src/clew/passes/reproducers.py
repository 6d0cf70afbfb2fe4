"""Folders that reproduce failures of passes: one per failure, bounded in number."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clew.support.folders import make_private, temporary_folder, why_not_ours
from clew.support.settings import settings
from clew.support.writing import write_text

_MOST: Final = 20
"""The number of folders to keep; the least recently used is removed first."""
_FOLDER: Final = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{16}")
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_]")
# Numbers that vary between runs: data-dependent sizes, node ids and addresses.
_PASSING: Final = re.compile(r"\?\d+|0x[0-9a-f]+|\d{6,}")


def keep_reproducer(name: str, files: Mapping[str, str], root: Path | None = None) -> Path:
    """Returns the folder that holds these texts, by file name. Equal failures share a folder: its
    name consists of `name` and a hash of the texts. Of the folders in `root` (by default
    `reproducers` in the folder of the disk cache), the most recently used are kept.
    """
    text = "\0".join(f"{file}\0{_PASSING.sub('?', content)}" for file, content in files.items())
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    root = root or _default_root()
    try:
        return _kept(root, f"{_OTHERS.sub('_', name)}-{key}", files)
    except OSError:  # a disk that is full or not writable
        return _kept(_own_root(), f"{_OTHERS.sub('_', name)}-{key}", files)


def _default_root() -> Path:
    current = settings()
    if not current.cache_enabled or why_not_ours(current.cache_dir):
        return _own_root()
    return current.cache_dir / "reproducers"


@functools.cache
def _own_root() -> Path:
    """Returns a folder for this process."""
    return temporary_folder("clew-reproducers-")


def _kept(root: Path, name: str, files: Mapping[str, str]) -> Path:
    make_private(root)
    folder = root / name
    if not os.path.isdir(folder):
        new = root / f"writing-{secrets.token_hex(8)}"
        new.mkdir(mode=0o700)
        try:
            for file, content in files.items():
                write_text(new / file, content)
            new.rename(folder)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(folder):  # otherwise another process was faster
                raise
    os.utime(folder)
    _prune(root)
    return folder


def _prune(root: Path) -> None:
    """Removes the least recently used folders; leaves folders with other name patterns alone."""
    found = []
    for entry in os.scandir(root):
        with contextlib.suppress(OSError):  # another process may remove it concurrently
            if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                found.append((entry.stat().st_mtime_ns, entry.path))
    for _, path in sorted(found)[:-_MOST]:
        shutil.rmtree(path, ignore_errors=True)
