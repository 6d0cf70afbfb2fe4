"""Steps of saved models that run between native segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.backends.host.steps import HostStep
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING


def step_from_json(step: Mapping[str, Any], pool: Any, template: Any) -> Any:
    """Returns the function that runs a saved step: an operator, or a kernel with data-dependent
    shapes. `template` is the kernel's program for all sizes, if it has one.

    Errors: C061 (see `HostStep.from_json`).
    """
    if "kernel" in step:
        with LOADING, held_interrupts():  # it imports the compiler
            from clew.build.specialized import saved_kernel  # noqa: PLC0415

        return saved_kernel(step, pool, template)
    return HostStep.from_json(step)
