"""The options of a build."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import field
from typing import Any

from clew.backends.backend import Backend
from clew.backends.compile_options import DEFAULTS, CompileOptions
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.runtime.guard import GuardSide
from clew.support.budgets import Budgets
from clew.support.dataclass import dataclass
from clew.support.size_ranges import SizeRanges


@dataclass(frozen=True)
class Options:
    """The options of a build: those of `clew.compile` (`asked`), resolved. `placement` is the
    measured placement that chose the regions.
    """

    target: Target
    threads: int
    opt_level: int
    passes: tuple[Pass, ...]
    schedules: tuple[ScheduleFor, ...] = ()
    required: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    instruments: tuple[Any, ...] = ()
    trace: bool = True
    guard: bool | GuardSide = False
    on_progress: Callable[[str], None] = field(default=lambda text: None)
    budgets: Budgets | None = None
    bounds: str = "check"
    backends: tuple[Backend, ...] = ()
    fallback: bool = False
    sizes: SizeRanges = field(default_factory=SizeRanges)
    specialize: bool = True
    placement: Any = None
    asked: CompileOptions = DEFAULTS

    @property
    def has_user_code(self) -> bool:
        """Whether the options contain a user's passes or schedules, whose code has no version."""
        return bool(self.schedules) or not all(p.is_builtin for p in self.passes)

    def digest(self) -> str | None:
        """Returns a hash that is equal in every process for options that give the same build of the
        same model. Unlike that of `asked`, it knows the passes with their records of tuning, and
        what the target and the backends are on this machine.

        It is None if a stored build must not be used: with a user's code, with instruments, guards
        and budgets, which a finished build does not serve, and with `fallback`, which decides by
        what failed.
        """
        if self.guard or self.instruments or self.has_user_code or self.budgets or self.fallback:
            return None
        parts = (
            self.target.key,
            str(self.opt_level),
            self.bounds,
            str(self.sizes),
            *map(str, self.passes),
            "required",
            *self.required,
            "disabled",
            *self.disabled,
        )
        text = "|".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=20).hexdigest()
