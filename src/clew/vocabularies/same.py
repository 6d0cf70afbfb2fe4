"""Pairs of operators with the same meaning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal, TypeAlias, TypeVar

from clew.support.dataclass import dataclass

Direction: TypeAlias = Literal["both", "read", "written"]


@dataclass(frozen=True)
class Same:
    """An operator of clew that equals a foreign one with the same inputs in the same order.

    `attributes` maps names of clew's attributes to foreign ones. An attribute mapped to "" has no
    counterpart, because none of its values changes the meaning. Those that are not mapped must have
    their defaults. A pair that is
    only `read` or `written` has a rule of its own in the other direction, or no counterpart there.
    """

    op: str
    foreign: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    direction: Direction = "both"

    @property
    def mapped(self) -> dict[str, str]:
        """The attributes with a foreign name."""
        return {own: foreign for own, foreign in self.attributes.items() if foreign}


S = TypeVar("S", bound=Same)


def alike(*names: str) -> dict[str, str]:
    """Returns a mapping of attributes that have the same name in both vocabularies."""
    return {name: name for name in names}


def read(table: Iterable[S]) -> Iterator[S]:
    """Yields the pairs by which foreign operators are imported."""
    return (pair for pair in table if pair.direction != "written")


def written(table: Iterable[S]) -> Iterator[S]:
    """Yields the pairs by which operators of clew are exported, or run by others."""
    return (pair for pair in table if pair.direction != "read")
