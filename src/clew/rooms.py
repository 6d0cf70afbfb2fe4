"""Registers functions that lower modules call in higher ones (`clew.support.rooms`).

This module is above all of clew except the command line. `import clew` imports this module, but the
modules it names are imported on their first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clew.support.rooms import give


def _conversions() -> Callable[..., Any]:
    from clew.correlate.conversions import conversions_of  # noqa: PLC0415

    return conversions_of


def _executor_graph() -> Callable[..., Any]:
    from clew.correlate.document import executor_graph  # noqa: PLC0415

    return executor_graph


def _explore() -> Callable[..., Any]:
    from clew.explorer.serving import explore  # noqa: PLC0415

    return explore


def _kernel_html() -> Callable[..., Any]:
    from clew.explorer.notebook import kernel_html  # noqa: PLC0415

    return kernel_html


def _model_html() -> Callable[..., Any]:
    from clew.explorer.notebook import model_html  # noqa: PLC0415

    return model_html


def _placement() -> Callable[..., Any]:
    from clew.placement.placing import placed_for_compile  # noqa: PLC0415

    return placed_for_compile


def _profile() -> Callable[..., Any]:
    from clew.profile.modes import profile  # noqa: PLC0415

    return profile


def _report() -> Callable[..., Any]:
    from clew.explorer.report import report  # noqa: PLC0415

    return report


def _saved_loop() -> Callable[..., Any]:
    from clew.backends.cpu.joined_loop import saved_loop  # noqa: PLC0415

    return saved_loop


def _saved_regions() -> Callable[..., Any]:
    from clew.backends.regions import RegionReader  # noqa: PLC0415

    return RegionReader


def _saved_step() -> Callable[..., Any]:
    from clew.build.saved_steps import step_from_json  # noqa: PLC0415

    return step_from_json


def _tap() -> Callable[..., Any]:
    from clew.tap import tap  # noqa: PLC0415

    return tap


give(
    {
        "conversions": _conversions,
        "executor_graph": _executor_graph,
        "explore": _explore,
        "kernel_html": _kernel_html,
        "model_html": _model_html,
        "placement": _placement,
        "profile": _profile,
        "report": _report,
        "saved_loop": _saved_loop,
        "saved_regions": _saved_regions,
        "saved_step": _saved_step,
        "tap": _tap,
    }
)
