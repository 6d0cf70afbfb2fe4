"""Stages: the module after every pass, its links to the stage before, its time, and remarks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property
from clew.support.shown import Shown, counted
from clew.trace.lineage import Lineage, recording


@dataclass(frozen=True, slots=True)
class Remark:
    """A reason for doing or not doing something: `text` by `pass_name`, about the node
    `node_id`.
    """

    node_id: int
    pass_name: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Ids of the nodes that a stage added, removed and kept, compared with the previous stage."""

    added: frozenset[int]
    removed: frozenset[int]
    kept: frozenset[int]


@dataclass(frozen=True, eq=False, repr=False)
class StageRecord(Shown):
    """The module after a pass. `lineage` is `None` for the first stage and with the trace off.

    `seconds` is the pass's own time, without verification. `node_ids` lists the nodes of a module.
    """

    name: str
    module: Any
    lineage: Lineage | None
    seconds: float
    remarks: tuple[Remark, ...]
    before: StageRecord | None = field(repr=False, default=None)
    node_ids: Callable[[Any], frozenset[int]] = field(repr=False, default=lambda _: frozenset())

    def _about(self) -> str:
        return f"{self.name}, {self.seconds * 1e3:.3g} ms, {counted(len(self.remarks), 'remark')}"

    @cached_property
    def nodes(self) -> frozenset[int]:
        """Ids of all nodes of the stage."""
        return self.node_ids(self.module)

    @cached_property
    def same(self) -> dict[int, int]:
        """For nodes of the previous stage, by id, the node of this stage that computes the same
        value.

        Kept nodes map to themselves and are not listed.
        """
        recorded = self.lineage.same if self.lineage is not None else {}
        return {old: new for old, new in recorded.items() if new in self.nodes}

    @property
    def changed(self) -> bool:
        """Whether the module differs from that of the previous stage."""
        return self.before is None or self.before.module is not self.module

    @cached_property
    def difference(self) -> Difference:
        """The changes since the previous stage; the first stage added everything."""
        if self.before is None:
            return Difference(self.nodes, frozenset(), frozenset())
        if not self.changed:
            return Difference(frozenset(), frozenset(), self.nodes)
        before = self.before.nodes
        return Difference(self.nodes - before, before - self.nodes, self.nodes & before)


class StageLog:
    """Collects stage records; with `enabled=False`, without lineage."""

    def __init__(self, node_ids: Callable[[Any], frozenset[int]], *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.records: list[StageRecord] = []
        self._node_ids = node_ids
        self._lineage: Lineage | None = None
        self._seconds = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records and times the work done in the block; `add` then makes it a stage."""
        self._lineage = Lineage() if self.enabled else None
        start = time.perf_counter()
        try:
            with recording(self._lineage):
                yield
        finally:
            self._seconds = time.perf_counter() - start

    def add(self, name: str, module: Any, remarks: Sequence[Remark] = ()) -> StageRecord:
        """Creates, stores and returns the record of a finished stage."""
        before = self.records[-1] if self.records else None
        record = StageRecord(
            name, module, self._lineage, self._seconds, tuple(remarks), before, self._node_ids
        )
        self.records.append(record)
        self._lineage, self._seconds = None, 0.0
        return record
