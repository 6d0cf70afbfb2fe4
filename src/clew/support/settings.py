"""Settings from the environment; the only file that reads it.

| variable | meaning | default |
|---|---|---|
| `CLEW_CACHE_DIR` | folder of the disk cache | the platform's cache folder |
| `CLEW_CACHE_SIZE` | limit of its size, such as `500M` | 4 GiB, at most 1/20 of the disk |
| `CLEW_CACHE` | `0` switches the disk cache off | on |
| `CLEW_THREADS` | threads of a compiled model by default | the CPUs this process may use |
| `CLEW_HUGE_PAGES` | `0` keeps weights in file pages shared by processes | on |
| `CLEW_COMPILE_JOBS` | processes for code generation | the CPUs this process may use |
| `CLEW_TUNING` | the database of `clew tune` | `clew/tuning.db` in the user's data folder |
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.system import system_text


@dataclass(frozen=True)
class Settings:
    """The environment's settings, read once per call."""

    cache_dir: Path
    cache_enabled: bool
    cache_bytes: int | None
    threads: int
    compile_jobs: int
    huge_pages: bool
    tuning: Path


# A container's CPU limit: microseconds of CPU time per microseconds of wall-clock time.
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus() -> int:
    """Returns the number of CPUs this process may use: those it may run on, or its container's CPU
    limit (cgroup v2) if that is lower.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    try:
        quota, period = system_text(_CPU_QUOTA).split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        raise InputError(
            "I001",
            f"{variable} is {text!r}, expected a positive integer",
            hint=f"unset {variable} or set it to a number such as {default}",
        )
    return int(text)


_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_size(text: str) -> int | None:
    """Returns a number of bytes written as `500M` or `2G`; None for other texts."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    return int(number) * _UNITS[unit] if unit in _UNITS and number.isdecimal() else None


def _size(variable: str) -> int | None:
    text = os.environ.get(variable)
    found = None if text is None else read_size(text)
    if text is not None and found is None:
        raise InputError(
            "I001",
            f"{variable} is {text!r}, expected a size",
            hint=f"unset {variable} or set it to a size such as 500M or 2G",
        )
    return found


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name, such as in a container
        return Path("/nonexistent")


def requested_threads() -> int | None:
    """Returns the number of threads that the environment sets; None if it sets none.

    Errors: I001 if the variable does not hold a positive integer.
    """
    return settings().threads if "CLEW_THREADS" in os.environ else None


def settings() -> Settings:
    """Returns the settings in force.

    Errors: I001 if a variable does not hold a positive integer.
    """
    cache = os.environ.get("CLEW_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    home = Path(base) if base else _home() / ".cache"
    tuning = os.environ.get("CLEW_TUNING")
    shared = os.environ.get("XDG_DATA_HOME")
    data = Path(shared) if shared else _home() / ".local" / "share"
    return Settings(
        cache_dir=Path(cache) if cache else home / "clew",
        cache_bytes=_size("CLEW_CACHE_SIZE"),
        cache_enabled=os.environ.get("CLEW_CACHE", "1") != "0",
        threads=_count("CLEW_THREADS", usable_cpus()),
        compile_jobs=_count("CLEW_COMPILE_JOBS", usable_cpus()),
        huge_pages=os.environ.get("CLEW_HUGE_PAGES", "1") != "0",
        tuning=Path(tuning) if tuning else data / "clew" / "tuning.db",
    )
