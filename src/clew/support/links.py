"""Which links below a model's folder are followed: none, or those of a model hub's snapshot.

A hub stores each file once; its revisions are folders of links to these files:

```
models--org--name/blobs/HASH
models--org--name/snapshots/REVISION/model.onnx.data -> ../../blobs/HASH
```

With `snapshot`, clew follows exactly one such link, from the model's snapshot into the `blobs`
folder of the same repository, to a regular file there. All folders on the path are opened without
following links, so nothing outside the repository is opened even if something is replaced
meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from clew.support.dataclass import dataclass
from clew.support.errors import InputError, ModelError
from clew.support.files import folder_below, open_below
from clew.support.scoped import scoped

LINKS: Final = ("none", "snapshot")
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"

_default = LINKS[0]
_in_force: ContextVar[str | None] = ContextVar("links", default=None)


def current_links() -> str:
    """Returns which links this thread follows, by default those of the process."""
    return _in_force.get() or _default


def set_default_links(links: str) -> None:
    """Sets which links the process follows by default.

    Errors: I340.
    """
    global _default
    _default = check_links(links)


def following(links: str | None) -> AbstractContextManager[None]:
    """Sets which links are followed inside the block; `None` changes nothing.

    Errors: I340 for a word not in `LINKS`.
    """
    return nullcontext() if links is None else scoped(_in_force, check_links(links))


def check_links(links: str) -> str:
    """Returns the word for the links to follow.

    Errors: I340 for a word not in `LINKS`.
    """
    if links not in LINKS:
        raise InputError("I340", f"links is {links!r}", hint=f"one of {', '.join(LINKS)}")
    return links


@dataclass(frozen=True)
class Place:
    """The place of a file: a path below a folder. Each component of the path is opened without
    following links; the folder's own path may contain some.
    """

    folder: Path
    parts: tuple[str, ...]

    def opened(self) -> int:
        """Returns the file's descriptor.

        Errors: OSError, also if a component is a link.
        """
        return open_below(self.folder, self.parts)


@dataclass(frozen=True)
class Repository:
    """A repository in a hub's cache, and the model's folder in it (`snapshots/REVISION/...`)."""

    root: Path
    inside: tuple[str, ...]

    def place(self, parts: Sequence[str]) -> Place:
        """Returns the place of a file that the model names: the file itself, or the content it
        links to.

        Errors: OSError if a link does not lead into the repository's `blobs`, or a folder is a
        link.
        """
        there = (*self.inside, *parts)
        folder = folder_below(self.root, there[:-1])
        try:
            target = os.readlink(there[-1], dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: not a link
                raise
            return Place(self.root, there)
        finally:
            os.close(folder)
        root = str(self.root)
        head, name = os.path.split(os.path.normpath(os.path.join(root, *there[:-1], target)))
        if head != os.path.join(root, _BLOBS) or target.endswith("/"):
            raise OSError(errno.ELOOP, "the link does not lead into the repository's blobs")
        return Place(self.root, (_BLOBS, name))


def repository_of(model: Path) -> Repository:
    """Returns the repository of a model file, from the real path of its folder.

    Errors: M045 if the folder is not in a snapshot of a model hub.
    """
    folder = model.parent.resolve()
    parts = folder.parts
    for at in range(len(parts) - 2, 0, -1):
        root = Path(*parts[:at])
        if parts[at] == _SNAPSHOTS and os.path.isdir(root / _BLOBS):
            return Repository(root, parts[at:])
    raise ModelError(
        "M045",
        f"{str(model)!r} is not in a snapshot of a model hub, so its links are not followed",
        hint="a snapshot is REPOSITORY/snapshots/REVISION, next to REPOSITORY/blobs",
    )
