"""Ready-made instruments: objects that are called before and after each pass."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from clew.ir.module import Module
from clew.ir.printer import print_module


@dataclass
class PrintIR:
    """Prints the module after each pass that changed it, or only after those in `only`."""

    only: frozenset[str] = frozenset()
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _before: Module | None = field(default=None, repr=False)

    def before_pass(self, name: str, module: Module) -> None:
        """Keeps the module, so that only changes are printed."""
        self._before = module

    def after_pass(self, name: str, module: Module) -> None:
        """Prints the module."""
        if name in self.only or (not self.only and module is not self._before):
            print(f"// after {name}\n{print_module(module)}", file=self.stream)


@dataclass
class Timing:
    """Times each pass; `seconds` maps names to the total, `table()` lists them."""

    seconds: dict[str, float] = field(default_factory=dict)
    _start: float = 0.0

    def before_pass(self, name: str, module: Module) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after_pass(self, name: str, module: Module) -> None:
        """Stops the clock; verification between passes counts toward the pass before it."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start

    def table(self) -> str:
        """Returns one line per pass, slowest first, in milliseconds."""
        rows = sorted(self.seconds.items(), key=lambda row: -row[1])
        return "\n".join(f"{seconds * 1e3:9.2f} ms  {name}" for name, seconds in rows)
