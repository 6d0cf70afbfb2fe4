"""The passes' treatment of each layer: the operators removed and added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clew.ir.expr import Call, Expr
from clew.ops.registry import Op
from clew.trace.trace import Trace


def treatments(trace: Trace) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns, for each layer, the passes that changed its operators: `-nn.batch_norm`,
    `+multiply`. A pass that runs twice is `FoldConstant` and `FoldConstant 2`.

    Moving an operator to another kernel is not a change.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    before = _operators(trace, 0)
    names = run_names([record.name for record in trace.stages[1:]])
    for stage, name in enumerate(names, 1):
        if not trace.stages[stage].changed:
            continue
        after = _operators(trace, stage)
        for layer in dict.fromkeys([*before, *after]):
            old, new = before.get(layer, Counter()), after.get(layer, Counter())
            if old != new:
                found.setdefault(layer, {})[name] = (
                    *_signed("-", old - new),
                    *_signed("+", new - old),
                )
        before = after
    return found


def run_names(passes: Iterable[str]) -> list[str]:
    """Returns names for runs of passes: `FoldConstant`, `FoldConstant 2`."""
    runs: Counter[str] = Counter()
    found = []
    for name in passes:
        runs[name] += 1
        found.append(name if runs[name] == 1 else f"{name} {runs[name]}")
    return found


def _operators(trace: Trace, stage: int) -> dict[str, Counter[str]]:
    """Returns how often each operator serves each layer at a stage."""
    found: dict[str, Counter[str]] = {}
    for node in _calls(trace.nodes(stage).values()):
        for layer in node.span.layers:
            found.setdefault(layer, Counter())[node.op_name] += 1
    return found


def _calls(nodes: Iterable[object]) -> Iterable[Call]:
    return (
        n for n in nodes if isinstance(n, Expr) and isinstance(n, Call) and isinstance(n.op, Op)
    )


def _signed(sign: str, counts: Counter[str]) -> list[str]:
    return [f"{sign}{name}" for name in sorted(counts.elements())]
