"""The choices of a rule: named numbers with a few options each, and settings that select one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError

_FEW: Final = 16
_WORDS: Final = {"no": 0, "false": 0, "off": 0, "yes": 1, "true": 1, "on": 1}


@dataclass(frozen=True)
class Choice:
    """One number that a rule leaves open: a tile size, a count, or 0 and 1 for no and yes.

    `options` are the values that a search tries, in ascending order. `default` is the option that
    the rule computes for the kernel and target.
    """

    name: str
    default: int
    options: tuple[int, ...]
    meaning: str

    def __str__(self) -> str:
        return f"{self.name}={self.default} of {', '.join(map(str, self.options))}: {self.meaning}"


def flag(name: str, default: bool, meaning: str) -> Choice:
    """Returns a choice between no and yes."""
    return Choice(name, int(default), (0, 1), meaning)


def tile_size(name: str, default: int, most: int, meaning: str, unit: int = 1) -> Choice:
    """Returns a choice of a tile size up to `most`. The options are all multiples of `unit` if
    `most` is small; otherwise powers of two times `unit`, the default and `most`.
    """
    options = {default, most}
    if most <= _FEW:
        options.update(range(unit, most + 1, unit))
    while unit <= most:
        options.add(unit)
        unit *= 2
    return Choice(name, default, tuple(sorted(o for o in options if o >= 1)), meaning)


class Settings(Mapping[str, int]):
    """A value for each choice of a space, as `rows=6 vectors=2`."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._values.items())

    def __repr__(self) -> str:
        return f"<Settings {self}>"


@dataclass(frozen=True)
class Space:
    """The choices of a rule for one kernel."""

    choices: tuple[Choice, ...] = ()

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    @property
    def default(self) -> Settings:
        """The default of each choice."""
        return Settings({c.name: c.default for c in self.choices})

    def settings(self, rule: str, changes: Mapping[str, int | str]) -> Settings:
        """Returns the defaults with some values changed. `rule` names the rule in errors.

        Errors: S062 if a name is not a choice; S063 if a value is not an option.
        """
        known = {c.name: c for c in self.choices}
        values = dict(self.default)
        for name, given in changes.items():
            choice = known.get(name)
            if choice is None:
                raise ScheduleError(
                    "S062",
                    f"the rule {rule} has no choice {name!r} for this kernel",
                    hint=f"choices: {', '.join(known) or 'none'}",
                )
            values[name] = _value(rule, choice, given)
        return Settings(values)

    def neighbors(self) -> Iterable[Settings]:
        """Returns all settings that differ from the default in exactly one choice."""
        for choice in self.choices:
            for option in choice.options:
                if option != choice.default:
                    yield Settings({**self.default, choice.name: option})


def _value(rule: str, choice: Choice, given: int | str) -> int:
    text = str(given).strip().lower()
    value = _WORDS.get(text) if choice.options == (0, 1) else None
    if value is None:
        try:
            value = int(text)
        except ValueError:
            value = None
    if value not in choice.options:
        raise ScheduleError(
            "S063",
            f"{choice.name}={given} is not an option of the rule {rule}",
            hint=f"options ({choice.meaning}): {', '.join(map(str, choice.options))}",
        )
    return value
