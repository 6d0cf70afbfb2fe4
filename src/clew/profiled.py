"""Models whose runs can be profiled.

The room that profiles stands on compiled models, and is loaded when first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from clew.runtime.model import K, Model


class ProfiledModel(Model[K]):
    """A model that says what its runs spend their time in; `last_profile` is what it last said."""

    last_profile: Any = None

    def profile(
        self,
        *arrays: Any,
        repeats: int | None = None,
        warmup: int = 5,
        sample: bool | float = True,
        mode: str = "fused",
        roofline: bool = True,
        on_progress: Callable[[str], None] | None = None,
    ) -> Any:
        """Returns where the time of runs with these inputs goes (`clew.Profile`): kernels,
        operators, layers.

        Runs with timers and without take turns, `repeats` times (as often as a second allows, at
        least 20), after `warmup` runs. `sample` says whether, and for how many seconds, the
        instructions that fused kernels run are sampled, which tells what their operators take;
        without it that is estimated. `mode` is `fused`, `unfused` (the same model with a kernel for
        each operator) or `both`, side by side. `roofline` compares kernels with what the machine
        gives. Of a saved model there are kernels' times alone.

        Errors: I040, I042, I043 (the inputs), I110 (mode), I111 (a saved model unfused), I116
        (numbers that are none).
        """
        modes = importlib.import_module("clew.profile.modes")
        self.last_profile = modes.profile(
            self,
            arrays,
            repeats=repeats,
            warmup=warmup,
            sample=sample,
            mode=mode,
            roofline=roofline,
            on_progress=on_progress,
        )
        return self.last_profile
