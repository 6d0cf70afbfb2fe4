"""Facts by which machines are alike: measurements on one then hold for the others."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from clew.codegen.objects import toolchain
from clew.machine.target import Target, host
from clew.support.files import read_bytes
from clew.support.settings import usable_cpus
from clew.version import DECIDING, VERSION


@functools.cache
def source_version() -> str:
    """Returns clew's version, with a digest of the code that determines native code. Equal
    installations have the same one.
    """
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(p for folder in DECIDING for p in (root / folder).rglob("*.py")):
        data = read_bytes(path)
        digest.update(f"{path.relative_to(root).as_posix()}|{len(data)}|".encode())
        digest.update(data)
    return f"{VERSION}+{digest.hexdigest()}"


def machine_facts() -> dict[str, Any]:
    """Returns the description of this machine, its number of CPUs, and the versions of clew and of
    the compiler for native code, as JSON values.
    """
    target = host()
    return {
        "machine": target.identity,
        "cpus": usable_cpus(),
        "clew": source_version(),
        "toolchain": toolchain(),
        "target": target.to_record(),
    }


def target_of_facts(facts: dict[str, Any]) -> Target:
    """Returns the target that `machine_facts` describes."""
    return Target.of_record(facts["target"])
