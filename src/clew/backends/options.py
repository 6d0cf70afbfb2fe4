"""The options of a build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clew.backends.backend import Backend
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.runtime.guard import GuardSide
from clew.support.budgets import Budgets
from clew.support.size_ranges import SizeRanges


@dataclass(frozen=True)
class Options:
    """The options of a build. `placement` is the measured placement that chose the regions."""

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

    @property
    def has_user_code(self) -> bool:
        """Whether the options contain a user's passes or schedules, whose code has no version."""
        return bool(self.schedules) or not all(p.is_builtin for p in self.passes)
