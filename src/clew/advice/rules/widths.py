"""Channel counts that are not a multiple of the vector's lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.channels import Cut, Group, groups_of, recut
from clew.advice.graphs import together
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of

_FEW: Final = 0.25  # of the channels, that may be dropped


@register_advice
class Widths(AdviceRule):
    """Layers compute whole vectors of channels. A width slightly above a multiple of the lanes
    costs as much as the next multiple: fewer channels are faster, and more channels are free. Both
    changes require training.
    """

    name: ClassVar[str] = "widths"
    title: ClassVar[str] = "channel counts that are not a multiple of the vector's lanes"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields two candidates for each such width in the model: fewer channels, and more."""
        lanes = subject.target.vector_lanes("f32")
        by_width: dict[int, list[Group]] = {}
        for group in groups_of(subject):
            if group.extent % lanes and group.extent > lanes:
                by_width.setdefault(group.extent, []).append(group)
        for width, groups in by_width.items():
            fewer, more = width - width % lanes, width + lanes - width % lanes
            layers = layers_of([c for g in groups for c in g.products])
            if (width - fewer) / width <= _FEW:
                yield Candidate(
                    self.name,
                    f"{fewer} instead of {width} channels in {_counted(groups)}",
                    f"{width} channels fill {width / lanes:.3g} vectors of {lanes}, and take the "
                    f"time of {more}",
                    "change the width in the model's source, and train it again",
                    layers,
                    "retraining",
                    "retraining",
                    Change(
                        together(recut(self.name, subject, g, _first(fewer), _first(fewer))
                                 for g in groups)
                    ),
                )  # fmt: skip
            yield Candidate(
                self.name,
                f"{more} instead of {width} channels in {_counted(groups)}, at no cost",
                f"{width} channels take the time of {more}: vectors have {lanes} lanes",
                "change the width in the model's source, and train it again",
                layers,
                "retraining",
                "retraining",
                Change(
                    together(recut(self.name, subject, g, _padded(more), _padded(more))
                             for g in groups)
                ),
                share=_FEW * (more - width) / width,
                capacity=more / width - 1.0,
            )  # fmt: skip


def _counted(groups: list[Group]) -> str:
    return f"{len(groups)} layers" if len(groups) > 1 else "a layer"


def _first(count: int) -> Cut:
    def cut(values: Array, axis: int) -> Array:
        found: Array = np.take(values, np.arange(count), axis)
        return found

    return cut


def _padded(count: int) -> Cut:
    def cut(values: Array, axis: int) -> Array:
        found: Array = np.take(values, np.arange(count) % values.shape[axis], axis)
        return found

    return cut
