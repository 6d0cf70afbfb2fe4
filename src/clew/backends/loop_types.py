"""The types of a loop's states, from which it follows how they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clew.ir.syntax import type_text
from clew.ir.type_reader import TypeReader
from clew.ir.types import Type
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class LoopTypes:
    """The types of a loop's states before and after an iteration, in terms of the same sizes, and
    those of the values that it stacks. `first` are those of the initial states, in terms of the
    sizes outside. `sizes` names the states after these, which stay the same. `limit` is the state
    that iterations are counted to, if the condition does nothing else.
    """

    before: Sequence[Type]
    after: Sequence[Type]
    rows: Sequence[Type]
    sizes: Sequence[str] = ()
    limit: int | None = None
    first: Sequence[Type] = ()

    def to_record(self) -> dict[str, Any]:
        """Returns the types as JSON values."""
        lists = {
            "before": self.before, "after": self.after, "rows": self.rows, "first": self.first
        }  # fmt: skip
        texts = {name: list(map(type_text, types)) for name, types in lists.items()}
        return {**texts, "sizes": list(self.sizes), "limit": self.limit}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> LoopTypes:
        """Returns the types from their record after a round trip through JSON."""
        before, after, rows, first = (
            [TypeReader(text).type() for text in record.get(name, ())]
            for name in ("before", "after", "rows", "first")
        )
        sizes = tuple(map(str, record["sizes"]))
        return LoopTypes(before, after, rows, sizes, record["limit"], first)
