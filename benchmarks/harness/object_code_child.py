"""Compiles models in a separate process and prints hashes of their kernels, one JSON line a build.

`python -m harness.object_code_child`, with the clew to compile with on the path. Each line of
standard input is a build: `{"model", "target", "precision", "shapes"}`, where `shapes` is null to
leave sizes free.
"""

import hashlib
import io
import json
import sys
from typing import Any

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

import clew


def hashes_of(
    model: str, target: str, precision: str, shapes: dict[str, Any] | None
) -> dict[str, str]:
    """Returns the hash of each kernel's object code, or the error for a build that fails. It gives
    no other options, because older versions must take them.
    """
    given: dict[str, Any] = {} if shapes is None else {"inputs": shapes}
    try:
        made = clew.compile(model, target=target, precision=precision, **given)
        return {k.name: hash_of(k.object_code) for k in made.kernels}
    except clew.ClewError as error:
        return {"error": str(error).splitlines()[0]}


def hash_of(object_code: bytes) -> str:
    """Returns the hash of the loaded sections of an ELF object: code and constants. Symbols are
    excluded, since they contain the kernel's key.
    """
    digest = hashlib.sha256()
    for section in ELFFile(io.BytesIO(object_code)).iter_sections():
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC:
            digest.update(section.data())
    return digest.hexdigest()[:16]


def main() -> None:
    """Answers builds until standard input closes."""
    for line in sys.stdin:
        print(json.dumps(hashes_of(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
