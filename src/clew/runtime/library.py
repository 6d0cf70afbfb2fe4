"""Objects linked into this process, by clew itself or by LLVM."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from clew.codegen.artifact import ObjectCode
from clew.runtime.elf import Code, Unlinkable
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:
    from clew.runtime.jit import LinkedByLlvm

_LINKS_ITSELF: Final = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


class Library:
    """Linked objects. Addresses are valid while the library is alive.

    Undefined symbols are looked up in `imports` (name to address), then in this process (the C
    library's memory and math functions).

    Errors: C003 if an object is damaged, or a symbol is missing or defined twice.
    """

    def __init__(self, objects: Sequence[ObjectCode], imports: Mapping[str, int] | None = None):
        self._code = _linked(objects, imports or {}) if objects else None
        addresses = {} if self._code is None else self._code.addresses
        self._addresses = {s: addresses[s] for code in objects for s in code.symbols}

    def address(self, symbol: str) -> int:
        """Returns the address of a function."""
        return self._addresses[symbol]

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._addresses

    @property
    def symbols(self) -> tuple[str, ...]:
        """The functions that the library defines."""
        return tuple(self._addresses)


def _linked(objects: Sequence[ObjectCode], imports: Mapping[str, int]) -> Code | LinkedByLlvm:
    if _LINKS_ITSELF:
        try:
            code = Code(objects, imports)
            if all(s in code.addresses for each in objects for s in each.symbols):
                return code
        except (Unlinkable, OSError):
            pass  # LLVM may be able to, or reports the error
    with LOADING, held_interrupts():
        from clew.runtime.jit import LinkedByLlvm  # noqa: PLC0415 - it loads LLVM

    return LinkedByLlvm(objects, imports)
