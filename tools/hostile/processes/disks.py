"""Full disks, and caches that cannot be."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import shutil
import signal
from pathlib import Path
from unittest import mock

from clew.runtime.cache import default_cache
from hostile.corpus import network
from hostile.processes.setting import case, compiled, right


@case()
def a_disk_that_takes_no_byte(folder: Path) -> None:
    """Files are limited to 0 bytes: writes beyond that fail with EFBIG."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    right()
    assert default_cache().stats().entries == 0


@case()
def a_disk_that_is_full_after_some_bytes(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in (1, 100, 1000, 4096, 9000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        right()
        left = [p for p in folder.rglob("*") if p.name.startswith(("writing-", ".clew-"))]
        assert not left, left
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    right()


@case()
def no_space_left(folder: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch("os.replace", side_effect=full):
        right()
    with mock.patch("clew.runtime.cache.create_in", side_effect=full):
        right()


@case("C050")
def saving_to_a_full_disk(folder: Path) -> None:
    built = compiled(network(), threads=1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
    try:
        built.save(folder / "m.clew")
    finally:
        assert not list(folder.glob("*.clew"))
        assert not list(folder.glob(".clew-*"))


@case("C050")
def saving_over_a_folder(folder: Path) -> None:
    (folder / "m.clew").mkdir()
    compiled(network(), threads=1).save(folder / "m.clew")


@case()
def caches_that_cannot_be(folder: Path) -> None:
    (folder / "file").write_bytes(b"")
    for place in ("/proc/clew", "/sys/clew", str(folder / "file" / "cache"), "/dev/null/x"):
        os.environ["CLEW_CACHE_DIR"] = place
        right()


@case()
def a_cache_that_is_a_link_in_a_circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    os.environ["CLEW_CACHE_DIR"] = str(folder / "a")
    right()


@case()
def no_home(folder: Path) -> None:
    for name in ("CLEW_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    with mock.patch.object(pwd, "getpwuid", side_effect=KeyError("no such user")):
        right()


@case()
def a_home_that_does_not_exist(folder: Path) -> None:
    os.environ.pop("CLEW_CACHE_DIR")
    os.environ.pop("XDG_CACHE_HOME", None)
    os.environ["HOME"] = "/proc/no/home"
    right()


@case()
def a_cache_removed_meanwhile(folder: Path) -> None:
    right()
    shutil.rmtree(folder / "cache")
    right()
    default_cache().clear()
    right()
