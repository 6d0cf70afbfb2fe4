"""Versions of clew and of the code that generates native code; both are parts of cache keys."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

VERSION: Final = "0.2.0"
# The folders whose code determines a function's native code. `ir` is one of them, because its
# dimensions become the extents, strides and bounds of loops.
DECIDING: Final = (
    "backends", "build", "codegen", "cost", "ir", "loop", "machine", "ops", "schedules", "te",
)  # fmt: skip


@cache
def codegen_version() -> str:
    """Returns a string that changes with any code that affects a function's native code."""
    return _digest(DECIDING)


@cache
def package_version() -> str:
    """Returns a string that changes with any code that affects a model's program."""
    return _digest(("",))


def _digest(folders: tuple[str, ...]) -> str:
    """Returns a digest of the sizes and times of source files, so an edit invalidates cached
    objects.
    """
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which `import clew` does without

    root = Path(__file__).parent
    digest = hashlib.blake2b(VERSION.encode(), digest_size=8)
    for path in sorted(p for folder in folders for p in (root / folder).rglob("*.py")):
        status = path.stat()
        name = path.relative_to(root)
        digest.update(f"{name}|{status.st_size}|{status.st_mtime_ns}".encode())
    return digest.hexdigest()
