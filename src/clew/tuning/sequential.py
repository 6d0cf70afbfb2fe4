"""A sequential test of two programs measured in turns: it stops as soon as the answer is sure.

In each turn, both run one after the other. The test counts in how many turns the new one took less
than `1 - margin` of the old one's time. If the new one's median is not that much lower, this
happens in at most half of the turns. With W such turns of N, the ratio of the Beta(1/2, 1/2)
mixture's likelihood to that of 1/2 exceeds 1/level with a probability of at most `level`, however
often one looks (Ville's inequality). No assumption about the distribution of times is needed, which
have outliers on any machine that does other work as well.

Source: Ville, Étude critique de la notion de collectif, 1939; Robbins, Statistical methods related
to the law of the iterated logarithm, 1970.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Verdict = Literal["won", "lost", "undecided"]
_HALF: Final = 0.5


@dataclass(frozen=True)
class Demand:
    """The requirements of a test: the least gain, as a share of the old time and in nanoseconds
    (stamps are not finer), the probability of a wrong win and of a wrong loss, and the largest
    number of turns. After that many, the answer is `undecided`. It is given sooner to a program
    that has won less than two thirds of `patience` turns or more: if it gains, then so little that
    many turns would be needed to show it.
    """

    margin: float = 0.01
    margin_ns: float = 20.0
    level: float = 0.01
    level_of_loss: float = 0.2
    most: int = 60
    patience: int = 12


def evidence(wins: int, turns: int) -> float:
    """Returns the logarithm of the ratio of likelihoods: how much better than an even chance some
    other chance explains `wins` of `turns`.
    """
    losses = turns - wins
    mixture = (
        math.lgamma(wins + _HALF)
        + math.lgamma(losses + _HALF)
        - math.lgamma(turns + 1.0)
        - 2.0 * math.lgamma(_HALF)
    )
    return mixture + turns * math.log(2.0)


@dataclass
class Comparison:
    """The turns of one comparison so far: nanoseconds of the new one and of the old one."""

    demand: Demand
    new_ns: list[float] = field(default_factory=list)
    old_ns: list[float] = field(default_factory=list)

    def add(self, new_ns: float, old_ns: float) -> None:
        """Adds a turn."""
        self.new_ns.append(new_ns)
        self.old_ns.append(old_ns)

    @property
    def turns(self) -> int:
        """The number of turns."""
        return len(self.new_ns)

    @property
    def verdict(self) -> Verdict | None:
        """The answer; None as long as it is open."""
        demand = self.demand
        pairs = zip(self.new_ns, self.old_ns, strict=True)
        wins = sum(new < (1.0 - demand.margin) * old - demand.margin_ns for new, old in pairs)
        found = evidence(wins, self.turns)
        if 2 * wins > self.turns and found >= -math.log(demand.level):
            return "won"
        if 2 * wins < self.turns and found >= -math.log(demand.level_of_loss):
            return "lost"
        hopeless = self.turns >= demand.patience and 3 * wins < 2 * self.turns
        return "undecided" if hopeless or self.turns >= demand.most else None

    @property
    def ratio(self) -> float:
        """The median ratio of the new time to the old one."""
        return quantile([n / o for n, o in zip(self.new_ns, self.old_ns, strict=True)], 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value that a share of `values` does not exceed, interpolated; NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
