"""What identifies this machine, without LLVM: everything that `describe_host` depends on."""

from __future__ import annotations

import hashlib
import platform
import sys
from typing import Final

from clew.machine.kept import costs_file
from clew.support.files import read_bytes
from clew.support.system import system_head
from clew.support.tiles import matrix_tiles_permitted

# The lines of /proc/cpuinfo that say which CPU it is, on x86 and ARM.
_FIELDS: Final = frozenset(
    ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features",
     "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")
)  # fmt: skip
_HEAD_BYTES: Final = 8192  # of the first CPU
_CACHES: Final = (0, 2, 3)


def identity() -> str | None:
    """Returns a digest of the CPU, its caches, and the costs measured on it; None if the system
    does not describe its CPU. Machines with equal digests have equal targets.
    """
    try:
        text = system_head("/proc/cpuinfo", _HEAD_BYTES).partition("\n\n")[0]
    except OSError:
        return None
    pairs = [line.partition(":") for line in text.splitlines()]
    found = {key.strip(): value.strip() for key, _, value in pairs if key.strip() in _FIELDS}
    if "flags" not in found and "Features" not in found:
        return None
    parts = [sys.platform, platform.machine(), *(f"{k}={v}" for k, v in sorted(found.items()))]
    for level in _CACHES:
        try:
            parts.append(system_head(f"/sys/devices/system/cpu/cpu0/cache/index{level}/size", 64))
        except OSError:
            parts.append("")
    if "amx_tile" in found.get("flags", ""):
        parts.append(f"tiles {matrix_tiles_permitted()}")
    try:
        parts.append(hashlib.sha256(read_bytes(costs_file())).hexdigest())
    except FileNotFoundError:
        parts.append("")
    except OSError:
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
