"""A user's choices for a kernel, as text: `matmul: rows=6 vectors=2; elementwise: vectors=2`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from clew.support.errors import ScheduleError, TextError

_WISH: Final = re.compile(r"(\w+)\s*(?::\s*(.*))?")


@dataclass(frozen=True)
class Request:
    """Rules to use, each with values for some of its choices. If several match the same stages, the
    first one schedules them.
    """

    wishes: tuple[tuple[str, Mapping[str, str]], ...] = ()

    @staticmethod
    def parse(text: str) -> Request:
        """Parses a request: `rule: choice=value ...`, several separated by semicolons or newlines.

        Errors: P021 if `text` does not have this form.
        """
        wishes: list[tuple[str, Mapping[str, str]]] = []
        for part in filter(None, (p.strip() for p in re.split(r"[;\n]", text))):
            found = _WISH.fullmatch(part)
            words = (found[2] or "").replace(",", " ").split() if found else []
            pairs = [word.partition("=") for word in words]
            if found is None or not all(name and value for name, _, value in pairs):
                raise TextError(
                    "P021",
                    f"{part[:80]!r} does not have the form `rule: choice=value ...`",
                    hint="write a rule and its choices, as in matmul: rows=6 vectors=2",
                )
            wishes.append((found[1], {name: value for name, _, value in pairs}))
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
        for rule, _ in self.wishes:
            if rule not in known:
                raise ScheduleError(
                    "S061", f"there is no schedule rule {rule!r}", hint=f"rules: {', '.join(known)}"
                )

    def __str__(self) -> str:
        return "; ".join(
            f"{rule}: {' '.join(f'{k}={v}' for k, v in values.items())}" if values else rule
            for rule, values in self.wishes
        )


NO_REQUEST: Final = Request()
