"""The page's files: those in the bundle's folder at startup, and no others."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clew.support.files import read_bytes

FOLDER: Final = Path(__file__).parents[1] / "static"
INDEX: Final = "index.html"
HOW_TO_BUILD: Final = "run python tools/build_explorer.py, or reinstall clew"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class File:
    """A file of the bundle."""

    path: Path
    media_type: str

    def read(self) -> bytes | None:
        """Returns its bytes; None if it is gone or has become a link."""
        try:
            return read_bytes(self.path, links=False)
        except OSError:
            return None


class Bundle:
    """The files under a folder, by their paths in it, without links."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, File] = {}
        for path in sorted(folder.rglob("*")) if os.path.isdir(folder) else ():
            if stat.S_ISREG(path.lstat().st_mode) and path.suffix in _TYPES:
                name = path.relative_to(folder).as_posix()
                self._files[name] = File(path, _TYPES[path.suffix])

    @property
    def is_built(self) -> bool:
        """Whether the page has been built."""
        return INDEX in self._files

    def get(self, name: str) -> File | None:
        """Returns a file by its path in the bundle. The path is looked up, never opened."""
        return self._files.get(name)
