"""Versions: of clew, and of what generated code depends on, which keys the cache."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
# The folders whose code decides what a function compiles to.
_DECIDING: Final = ("build", "codegen", "cost", "loop", "machine", "ops", "schedules", "te")


@cache
def codegen_version() -> str:
    """Returns a string that differs wherever the same function may give other native code."""
    return _digest(_DECIDING)


@cache
def package_version() -> str:
    """Returns a string that differs wherever the same model may be compiled to another program."""
    return _digest(("",))


def _digest(folders: tuple[str, ...]) -> str:
    """Returns a digest of sizes and times of source files: an edit never meets a stale object."""
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which `import clew` does without

    root = Path(__file__).parent
    digest = hashlib.blake2b(VERSION.encode(), digest_size=8)
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*.py")):
        status = path.stat()
        name = path.relative_to(root)
        digest.update(f"{name}|{status.st_size}|{status.st_mtime_ns}".encode())
    return digest.hexdigest()
