"""Which links are followed below a model's folder: none, or those of a model hub's snapshot.

A hub keeps each file once, and its revisions as folders of links to these:

```
models--org--name/blobs/HASH
models--org--name/snapshots/REVISION/model.onnx.data -> ../../blobs/HASH
```

With `snapshot` such a link is followed: exactly one, from the model's snapshot into the `blobs`
folder of the same repository, to a regular file there. All folders on the way are opened without
following links, so whatever is exchanged meanwhile, nothing outside the repository is opened.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clew.support.errors import InputError, ModelError
from clew.support.files import folder_below, open_below

LINKS: Final = ("none", "snapshot")
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"

_default = LINKS[0]
_in_force: ContextVar[str | None] = ContextVar("links", default=None)


def current_links() -> str:
    """Returns which links are followed in this thread, or in the process."""
    return _in_force.get() or _default


def set_default_links(links: str) -> None:
    """Makes a choice that of the process, wherever no other is given.

    Errors: I340.
    """
    global _default
    _default = _checked(links)


@contextmanager
def following(links: str | None) -> Iterator[None]:
    """Follows these links inside; `None` changes nothing.

    Errors: I340 for a word that is not in `LINKS`.
    """
    if links is None:
        yield
        return
    token = _in_force.set(_checked(links))
    try:
        yield
    finally:
        _in_force.reset(token)


def _checked(links: str) -> str:
    if links not in LINKS:
        raise InputError("I340", f"links is {links!r}", hint=f"one of {', '.join(LINKS)}")
    return links


@dataclass(frozen=True)
class Place:
    """Where a file lies: its path below a folder. Each step there is opened without following
    links; the folder's own path may have some.
    """

    folder: Path
    parts: tuple[str, ...]

    def opened(self) -> int:
        """Returns the file's descriptor.

        Errors: OSError, also where a step is a link.
        """
        return open_below(self.folder, self.parts)


@dataclass(frozen=True)
class Repository:
    """A repository in a hub's cache, and the model's folder in it (`snapshots/REVISION/...`)."""

    root: Path
    inside: tuple[str, ...]

    def place(self, parts: Sequence[str]) -> Place:
        """Returns where a file is that the model names: itself, or the content it is a link to.

        Errors: OSError for a link that does not lead into the repository's `blobs`, or a folder
        that is a link.
        """
        there = (*self.inside, *parts)
        folder = folder_below(self.root, there[:-1])
        try:
            target = os.readlink(there[-1], dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:  # it says: not a link
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
    """Returns the repository that a model's file belongs to, by where its folder really is.

    Errors: M045 where that is no snapshot of a model hub.
    """
    folder = model.parent.resolve()
    parts = folder.parts
    for at in range(len(parts) - 2, 0, -1):
        root = Path(*parts[:at])
        if parts[at] == _SNAPSHOTS and (root / _BLOBS).is_dir():
            return Repository(root, parts[at:])
    raise ModelError(
        "M045",
        f"{str(model)!r} does not lie in a snapshot of a model hub, whose links are to be followed",
        hint="a snapshot is REPOSITORY/snapshots/REVISION, beside REPOSITORY/blobs",
    )
