"""Tunable parts of a model, as plain data that machines exchange."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from clew.schedules import Request
from clew.schedules.request import Wish
from clew.support.errors import ClewError


@dataclass(frozen=True)
class Knob:
    """A choice of a rule at a root of a kernel."""

    rule: str
    root: str
    name: str
    default: int
    options: tuple[int, ...]


@dataclass(frozen=True)
class Tunable:
    """A kernel with choices. Kernels with one structure are one, wherever they are used.

    `subject` is its structural hash, `uses` the names of its uses, and `places` their positions in
    the program. `default` is the text of the choices made without records. `ns` is its time in a
    call, of all its uses, and `facts` are numbers about its work. `headroom` is the share of its
    time that it would save at the machine's roof.
    """

    subject: str
    uses: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    default: str
    knobs: tuple[Knob, ...]
    ns: float
    facts: Mapping[str, float] = field(default_factory=dict)
    headroom: float = 0.3

    @property
    def name(self) -> str:
        """The name of its first use."""
        return self.uses[0]

    @property
    def size(self) -> int:
        """The number of sets of choices."""
        count = 1
        for knob in self.knobs:
            count *= len(knob.options)
        return count

    def neighbors(self, choices: str) -> Iterator[str]:
        """Yields all choices that differ from the given ones in one place."""
        for knob in self.knobs:
            now = setting(choices, knob)
            for option in knob.options:
                if option != now:
                    yield changed(choices, knob, option)

    def all(self) -> Iterator[str]:
        """Yields all sets of choices."""
        for values in itertools.product(*(knob.options for knob in self.knobs)):
            yield self.with_values(list(values))

    def fits(self, choices: str) -> bool:
        """Whether choices are of the rules of this kernel, with options that they have."""
        try:
            wishes = {(w.rule, w.root): w.changes for w in Request.parse(choices).wishes}
        except ClewError:
            return False
        default = {(w.rule, w.root): w.changes for w in Request.parse(self.default).wishes}
        options = {(k.rule, k.root, k.name): {str(o) for o in k.options} for k in self.knobs}
        return wishes.keys() == default.keys() and all(
            changes.keys() == default[place].keys()
            and all(
                value in options.get((*place, name), {default[place][name]})
                for name, value in changes.items()
            )
            for place, changes in wishes.items()
        )

    def values(self, choices: str) -> list[int]:
        """Returns the value of each knob."""
        return [setting(choices, knob) for knob in self.knobs]

    def with_values(self, values: list[int]) -> str:
        """Returns the choices with these values of the knobs."""
        choices = self.default
        for knob, value in zip(self.knobs, values, strict=True):
            choices = changed(choices, knob, value)
        return choices


def setting(choices: str, knob: Knob) -> int:
    """Returns the value of a knob in choices; its default if they do not name it."""
    for wish in Request.parse(choices).wishes:
        if (wish.rule, wish.root) == (knob.rule, knob.root):
            return int(wish.changes.get(knob.name, knob.default))
    return knob.default


def changed(choices: str, knob: Knob, option: int) -> str:
    """Returns choices with another value of a knob."""
    wishes = [
        Wish(w.rule, {**w.changes, knob.name: str(option)}, w.root)
        if (w.rule, w.root) == (knob.rule, knob.root)
        else w
        for w in Request.parse(choices).wishes
    ]
    return str(Request(tuple(wishes)))


def difference(choices: str, default: str) -> str:
    """Returns how choices differ from the default ones, as text: `rows 12→6, vectors 2→4`."""
    before = {
        (w.rule, w.root, name): value
        for w in Request.parse(default).wishes
        for name, value in w.changes.items()
    }
    words = []
    for wish in Request.parse(choices).wishes:
        for name, value in wish.changes.items():
            was = before.get((wish.rule, wish.root, name))
            if was is None:
                words.append(f"{wish.rule}: {name} {value}")
            elif was != value:
                words.append(f"{name} {was}→{value}")
    return ", ".join(words) or "the default choices"
