"""The form of operators at each stage: the origin of an operator of the last stage, pass by pass.

Descriptions are stored once: equal calls share a row of the table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from clew.build.result import Build
from clew.correlate.facts import Facts, describe_operator, single_number
from clew.ir.expr import Call, Function
from clew.trace.trace import Trace


class OperatorTable:
    """Descriptions of operator calls, stored once each."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self.rows: list[Facts] = []
        self._row: dict[Hashable, int] = {}
        self._of_node: dict[int, int] = {}

    def row(self, call: Call) -> int:
        """Returns the row with a call's description."""
        found = self._of_node.get(call.id)
        if found is None:
            key = _key(call)
            known = self._row.get(key)
            if known is None:
                known = self._row[key] = len(self.rows)
                facts = describe_operator(call, self._build)
                del facts["layers"]
                self.rows.append(facts)
            found = self._of_node[call.id] = known
        return found


def _key(call: Call) -> Hashable:
    """Returns a key of everything in a call's description."""
    op = call.title if isinstance(call.op, Function) else call.op
    return op, call.attrs, call.type, *((a.type, repr(single_number(a))) for a in call.args)


class History:
    """Follows operators of the last stage back to the import, along the trace's links."""

    def __init__(self, trace: Trace, table: OperatorTable) -> None:
        self._trace = trace
        self._table = table
        self._order: dict[int, dict[int, int]] = {}

    def of(self, call: Call) -> list[Facts]:
        """Returns the chapters of a call's history: rows of the operators it came from, each with
        the first stage at which they had this form. The last chapter is the call itself.

        An operator that was split, or merged with others, appears in all their histories.
        """
        trace = self._trace
        found: list[Facts] = []
        since, rows, current = trace.last, [self._table.row(call)], [call.id]
        for stage in range(trace.last, 0, -1):
            if trace.stages[stage].changed:
                links = trace.links(stage)
                behind = {link.old for new in current for link in links.backward(new)}
                calls = self._calls(stage - 1, behind)
                if not calls:
                    break
                before = [self._table.row(c) for c in calls]
                if before != rows:
                    found.append({"stage": since, "operators": rows})
                current, rows = [c.id for c in calls], before
            since = stage - 1
        found.append({"stage": since, "operators": rows})
        return found[::-1]

    def _calls(self, stage: int, nodes: Iterable[int]) -> list[Call]:
        """Returns the operator calls among a stage's nodes, in the graph's order."""
        known = self._trace.nodes(stage)
        order = self._order.get(id(known))
        if order is None:
            order = self._order[id(known)] = {n: at for at, n in enumerate(known)}
        calls = [n for n in (known[i] for i in nodes) if isinstance(n, Call)]
        kept = [c for c in calls if not (isinstance(c.op, Function) and c.op.is_primitive)]
        return sorted(kept, key=lambda c: order[c.id])
