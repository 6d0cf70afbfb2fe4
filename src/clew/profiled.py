"""Models whose runs can be profiled.

The room that profiles stands on compiled models, and is loaded when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from clew.runtime.model import K, Model
from clew.support.rooms import room

if TYPE_CHECKING:  # for editors; it stands above this module
    from clew.profile.report import Profile

_OPTIONS: Final = ("repeats", "warmup", "sample", "mode", "roofline", "on_progress")


class ProfiledModel(Model[K]):
    """A model that says what its runs spend their time in; `last_profile` is what it last said."""

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
        """Returns where the time of runs with these inputs, given as in a call, goes
        (`clew.Profile`): kernels, operators, layers. Without inputs they are drawn, at the sizes of
        the last run where sizes are named.

        Runs with timers and without take turns, `repeats` times (as often as a second allows, at
        least 20), after `warmup` runs. `sample` says whether, and for how many seconds, the
        instructions that fused kernels run are sampled, which tells what their operators take;
        without it that is estimated. `mode` is `fused`, `unfused` (the same model with a kernel for
        each operator) or `both`, side by side. `roofline` compares kernels with what the machine
        gives. Of a saved model there are kernels' times alone.

        Errors: those of a call; I110 (mode), I111 (a saved model unfused), I116
        (numbers that are none).
        """
        found: Profile = room("profile")(
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
