"""Tables of outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opinfo.entries import Task
from opinfo.outcomes import GOOD, KINDS, WORST, Outcome


@dataclass
class Entry:
    """The outcomes of an entry."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    exported: bool = False

    @property
    def is_core(self) -> bool:
        """Whether torch can export it, and core ATen can express it."""
        return self.exported and not self.others

    @property
    def passes(self) -> bool:
        """Whether all samples agree that torch exports, and there are such."""
        return self.exported and all(k in GOOD for c in self.counts.values() for k in c)

    @property
    def worst(self) -> bool:
        """Whether a value is wrong, or clew failed without an error of its own."""
        return any(k in WORST for c in self.counts.values() for k in c)

    def as_json(self) -> dict[str, Any]:
        """Returns the entry as plain data."""
        return {
            "passes": self.passes,
            "core": self.is_core,
            "dtypes": {d: dict(c) for d, c in sorted(self.counts.items())},
            "reasons": {d: r for d, r in sorted(self.reasons.items()) if r},
            "others": sorted(self.others),
        }


def by_entry(results: Iterable[tuple[Task, list[Outcome]]]) -> dict[str, Entry]:
    """Returns outcomes by entry."""
    found: dict[str, Entry] = {}
    for task, outcomes in results:
        entry = found.setdefault(task.entry, Entry())
        entry.counts[task.dtype] = Counter(o.kind for o in outcomes)
        reasons = entry.reasons.setdefault(task.dtype, {})
        for one in outcomes:
            entry.others.update(one.others)
            entry.exported |= one.exported
            if one.kind not in ("agrees", "random"):
                reasons.setdefault(one.kind, one.reason)
    return dict(sorted(found.items()))


def table(entries: Mapping[str, Entry], every: bool) -> list[str]:
    """Returns a line for each entry and dtype: of those that do not agree, or of all."""
    lines = []
    for name, entry in entries.items():
        for dtype, counts in sorted(entry.counts.items()):
            bad = [k for k in counts if k not in GOOD]
            if bad or every:
                words = " ".join(f"{k} {counts[k]}" for k in KINDS if counts[k])
                lines.append(f"{name} {dtype}: {words}")
                reasons = entry.reasons[dtype]
                lines += [f"    {k}: {reasons[k]}" for k in KINDS if k in reasons and k in bad]
    return lines


def summary(entries: Mapping[str, Entry]) -> list[str]:
    """Returns the counts."""
    every = list(entries.values())
    core = [e for e in every if e.is_core]
    counts = Counter[str]()
    for entry in every:
        for one in entry.counts.values():
            counts += one
    good = sum(e.passes for e in core)
    share = 100 * good / len(core) if core else 0.0
    return [
        f"{len(every)} entries, {sum(counts.values())} samples: "
        + ", ".join(f"{counts[k]} {k}" for k in KINDS if counts[k]),
        f"{sum(e.passes for e in every)} entries agree in all dtypes; "
        f"{sum(e.worst for e in every)} have a wrong value, a crash or a bug",
        f"{len(core)} entries that core ATen can express: {good} agree ({share:.1f} %)",
        f"{sum(not e.exported for e in every)} entries that torch cannot export",
    ]
