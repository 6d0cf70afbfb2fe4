"""Models whose runs can be profiled; the profiler is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clew.serving.model import K, Model
from clew.serving.served import B
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:
    from clew.profile.report import Profile

_OPTIONS: Final = ("repeats", "warmup", "sample", "mode", "roofline", "on_progress")


class ProfiledModel(Model[K, B]):
    """A model with the method `profile`; `last_profile` is its last result."""

    last_profile: Profile | None = None

    def profile(
        self,
        /,
        *inputs: Any,
        repeats: int | None = None,
        warmup: int = 5,
        sample: bool | float = True,
        mode: str = "fused",
        roofline: bool = True,
        on_progress: Callable[[str], None] | None = None,
        **named: Any,
    ) -> Profile:
        """Returns where the time of runs with these inputs goes (`clew.Profile`): kernels,
        operators, layers. Inputs are given as in a call. Without inputs, random ones are used;
        symbolic sizes are those of the last run.

        Timed and plain runs alternate, `repeats` times (default: as many as fit in one second, at
        least 20), after `warmup` runs. `sample` says whether, and for how many seconds, to sample
        the instructions of fused kernels, which gives the time of their operators; without
        sampling, operators' times are estimated. `mode` is `fused`, `unfused` (the same model with
        one kernel per operator) or `both`, side by side. `roofline` compares kernels with the
        limits of the machine. A saved model has only kernel times.

        Errors: those of a call; I110 (mode), I111 (a saved model unfused), I116 (invalid numbers).
        """
        with LOADING, held_interrupts():
            from clew.profile.modes import profile  # noqa: PLC0415

        found = profile(
            self,
            self._given_or_drawn(inputs, named, _OPTIONS),
            repeats=repeats,
            warmup=warmup,
            sample=sample,
            mode=mode,
            roofline=roofline,
            on_progress=on_progress,
        )
        self.last_profile = found
        return found
