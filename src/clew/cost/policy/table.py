"""The table of all thresholds."""

from __future__ import annotations

from typing import Final, NamedTuple

from clew.cost.policy import (
    caches,
    convolutions,
    elementwise,
    folding,
    fusion,
    layouts,
    ordering,
    precision,
    sizes,
    sums,
    threads,
    tiles,
)
from clew.cost.policy.facts import Facts

_SUBJECTS: Final = (
    layouts, convolutions, precision, fusion, folding,
    tiles, caches, sums, elementwise, threads, sizes, ordering,
)  # fmt: skip


class Threshold(NamedTuple):
    """A threshold: its name, its subject (the module that holds it), and its facts."""

    name: str
    subject: str
    facts: Facts


def thresholds() -> list[Threshold]:
    """Returns all thresholds, by subject."""
    return [
        Threshold(name, module.__name__.rpartition(".")[2], facts)
        for module in _SUBJECTS
        for name, facts in zip(
            (name for name in vars(module) if name.isupper()), module.threshold.facts, strict=True
        )
    ]


def subjects() -> dict[str, str]:
    """Returns the subjects, each with the first sentence of its module's docstring."""
    return {
        module.__name__.rpartition(".")[2]: (module.__doc__ or "").partition("\n")[0]
        for module in _SUBJECTS
    }
