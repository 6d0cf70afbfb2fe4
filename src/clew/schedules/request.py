"""A user's choices for a kernel, as text: `matmul: rows=6 vectors=2; elementwise: vectors=2`.

A rule may name the root that it is for: `elementwise@relu: vectors=2`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError, TextError

_WISH: Final = re.compile(r"(\w+)(?:@([\w.@]+))?\s*(?::\s*(.*))?")


class Wish(NamedTuple):
    """A rule, values for some of its choices, and the root to use it for; "" for all."""

    rule: str
    changes: Mapping[str, str]
    root: str = ""

    def __str__(self) -> str:
        name = f"{self.rule}@{self.root}" if self.root else self.rule
        pairs = " ".join(f"{choice}={value}" for choice, value in self.changes.items())
        return f"{name}: {pairs}" if pairs else name


@dataclass(frozen=True)
class Request:
    """Rules to use, each with values for some of its choices. If several match the same stages, the
    first one schedules them.
    """

    wishes: tuple[Wish, ...] = ()

    @staticmethod
    def parse(text: str) -> Request:
        """Parses a request: `rule: choice=value ...` or `rule@root: ...`, several separated by
        semicolons or newlines.

        Errors: P021 if `text` does not have this form.
        """
        wishes: list[Wish] = []
        for part in filter(None, (p.strip() for p in re.split(r"[;\n]", text))):
            found = _WISH.fullmatch(part)
            words = (found[3] or "").replace(",", " ").split() if found else []
            pairs = [word.partition("=") for word in words]
            if found is None or not all(name and value for name, _, value in pairs):
                raise TextError(
                    "P021",
                    f"{part[:80]!r} does not have the form `rule: choice=value ...`",
                    hint="write a rule and its choices, as in matmul: rows=6 vectors=2",
                )
            changes = {name: value for name, _, value in pairs}
            wishes.append(Wish(found[1], changes, found[2] or ""))
        if not wishes:
            raise TextError(
                "P021",
                "the text names no rule",
                hint="write a rule and its choices, as in matmul: rows=6 vectors=2",
            )
        return Request(tuple(wishes))

    def check(self, known: Collection[str]) -> None:
        """Checks that the rules exist.

        Errors: S061.
        """
        for wish in self.wishes:
            if wish.rule not in known:
                raise ScheduleError(
                    "S061",
                    f"there is no schedule rule {wish.rule!r}",
                    hint=f"rules: {', '.join(known)}",
                )

    def __str__(self) -> str:
        return "; ".join(map(str, self.wishes))


NO_REQUEST: Final = Request()
