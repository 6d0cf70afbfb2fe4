"""Runs instructions whose sizes data decide in one native call: kernels count, the driver computes
the sizes that follow (`codegen.driver.sizes`), and the next kernels run at these sizes.

Tables and memory are prepared for counts up to a *limit* each. If a run finds a larger count, or
sizes that the kernels do not serve, it stops. It is then repeated with larger limits, or by the
instructions themselves, which also report indices out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from clew.cost.policy.sizes import COUNTED_BYTES
from clew.runtime.counted_tables import CountedBody, Limits, Shared, Source, Tables
from clew.runtime.guard import GuardSide
from clew.runtime.layout import SymbolTable
from clew.runtime.size_code import TooLarge
from clew.runtime.threads import ThreadPool
from clew.support.budgets import Budgets, current
from clew.support.shown import Shown, counted

# Once a count was too large, so many runs are not tried: the next counts are probably similar.
_RUNS_BETWEEN_TRIALS: Final = 64
_ENDLESS: Final = 1 << 62


class CountedSegment(Shown):
    """Instructions that are ready to run at given sizes of the model. Several threads may use it at
    once.
    """

    def __init__(
        self,
        body: CountedBody,
        library: SymbolTable,
        pool: ThreadPool,
        *,
        guard: GuardSide | bool = False,
        sizes: Mapping[str, int] | None = None,
        shared: Shared | None = None,
    ) -> None:
        """With `guard`, each buffer is placed between inaccessible pages (for tests; slow)."""
        self.body = body
        side = GuardSide.END if guard is True else guard or None
        known = dict(sizes or {})
        self._source = Source(body, shared or Shared(body), library, pool, side, known)
        self._tables: Tables | None = None
        # How many of the next runs are not tried.
        self._rest = 0
        # The last budgets and tables that fit together.
        self._fit: tuple[Budgets | None, Tables | None] = None, None

    def _about(self) -> str:
        return f"of {counted(len(self.body.segment.steps), 'kernel')}"

    def at(self, sizes: Mapping[str, int]) -> CountedSegment:
        """Returns the instructions at given sizes of the model."""
        own = self._source
        return CountedSegment(
            self.body,
            own.library,
            own.pool,
            guard=own.guard or False,
            sizes=sizes,
            shared=own.shared,
        )

    @property
    def owns_results(self) -> bool:
        """Whether no result shares memory with another."""
        outputs = [result.output for result in self.body.results]
        return len(set(outputs)) == len(outputs)

    def run(self, arrays: Sequence[Any]) -> list[Any] | None:
        """Returns the results; None if the instructions must run one by one."""
        if self._rest > 0:  # several threads may count it below 0
            self._rest -= 1
            return None
        budgets = current()
        tables = self._tables or self._prepare(self._source.shared.limits)
        while tables is not None:
            known, fitting = self._fit
            if known is not budgets or fitting is not tables:
                if budgets.bounds_work or tables.needed_bytes > budgets.run_bytes:
                    return None
                self._fit = budgets, tables
            found = tables.run(arrays)
            if not isinstance(found, Limits):
                return found
            tables = self._prepare(found)
        return None

    def _prepare(self, limits: Sequence[int]) -> Tables | None:
        """Returns tables for counts up to these limits; None if they take too much memory."""
        try:
            made = Tables(self._source, limits)
        except (TooLarge, KeyError, ZeroDivisionError):
            made = None
        if made is None or made.needed_bytes > COUNTED_BYTES:
            self._rest = _ENDLESS if self._tables is None else _RUNS_BETWEEN_TRIALS
            return None
        self._tables = made
        self._source.shared.limits = tuple(limits)
        return made
