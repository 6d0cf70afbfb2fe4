"""Caches and compiled models that others could have changed: native code that must not run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from clew.runtime.cache import default_cache
from hostile.catalog import model, node, value
from hostile.processes.setting import case, compiled, right

_STRANGER = 12345


def of_zeros(op: str) -> float:
    """Returns an operator's result for 0, compiled as by users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = compiled(model([node(op, ["x"], ["y"])], inputs=[value("x", [64])]), threads=1)
        return float(built(np.zeros(64, np.float32))[0])


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def poisoned(cache: Path) -> None:
    """Makes a cache in which the build and kernels of Sin are those of Cos: `Sin(0)` is 1."""
    assert of_zeros("Cos") == 1
    cosines = {p.stat().st_size: p for p in cache.glob("??/*") if p.read_bytes()[1:5] == b"CLEW"}
    before = set(cache.glob("??/*"))
    assert of_zeros("Sin") == 0
    (cosine,) = cosines.values()
    made = [p for p in set(cache.glob("??/*")) - before if p.read_bytes()[1:5] == b"CLEW"]
    assert made
    for path in made:
        path.write_bytes(cosine.read_bytes())


@case()
def the_poison_works(folder: Path) -> None:
    """The code that the other cases reject does run if it is the user's own."""
    poisoned(folder / "cache")
    assert of_zeros("Sin") == 1


def of_a_group(cache: Path) -> None:
    """As older versions made caches under the umask 002."""
    for path in (cache, *cache.glob("??")):
        path.chmod(0o775)


def for_everybody(cache: Path) -> None:
    cache.chmod(0o777)


def with_folders_of_a_group(cache: Path) -> None:
    for path in cache.glob("??"):
        path.chmod(0o775)


def with_entries_of_a_group(cache: Path) -> None:
    for path in cache.glob("??/*"):
        path.chmod(0o664)


def below_a_folder_of_everybodys(cache: Path) -> None:
    cache.parent.chmod(0o777)


def of_a_stranger(cache: Path) -> None:
    given_away([cache])


def with_folders_of_a_stranger(cache: Path) -> None:
    given_away(cache.glob("??"))


def with_entries_of_a_stranger(cache: Path) -> None:
    given_away(cache.glob("??/*"))


def given_away(paths: Iterator[Path] | list[Path]) -> None:
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, _STRANGER, _STRANGER)
    else:  # only root may give files away; to a stranger, these are a stranger's
        os.geteuid = lambda: _STRANGER


def _register(make: Callable[[Path], None]) -> None:
    def attack(folder: Path) -> None:
        folder.chmod(0o755)
        poisoned(folder / "cache")
        make(folder / "cache")
        assert of_zeros("Sin") == 0
        assert of_zeros("Sin") == 0
        right()

    attack.__name__ = f"a_cache_{make.__name__}"
    case()(attack)


for _make in (
    of_a_group, for_everybody, with_folders_of_a_group, with_entries_of_a_group,
    below_a_folder_of_everybodys, of_a_stranger, with_folders_of_a_stranger,
    with_entries_of_a_stranger,
):  # fmt: skip
    _register(_make)


@case()
def a_cache_is_closed_whatever_the_umask(folder: Path) -> None:
    with umask(0):
        right()
        assert of_zeros("Sin") == 0
    root = folder / "cache"
    modes = {p.relative_to(root): p.stat().st_mode & 0o777 for p in (root, *root.rglob("*"))}
    assert len(modes) > 5
    assert all(m == (0o700 if (root / p).is_dir() else 0o600) for p, m in modes.items()), modes


@case()
def reproducers_and_temporary_folders_are_closed(folder: Path) -> None:
    from clew.codegen.objects import _keep  # noqa: PLC0415
    from clew.support.folders import temporary_folder  # noqa: PLC0415

    with umask(0):
        made = temporary_folder("clew-", folder)
        kept = _keep("a module")
    assert made.stat().st_mode & 0o777 == 0o700
    assert kept.parent == folder / "cache"
    assert kept.stat().st_mode & 0o777 == 0o600
    (folder / "cache").chmod(0o777)
    kept = _keep("another module")
    assert kept.parent != folder / "cache"
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert kept.read_text() == "another module"
    kept.unlink()
    kept.parent.rmdir()
    assert default_cache().root == folder / "cache"  # closed, and so used again
