"""Stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clew.build.lowering import operator_calls
from clew.compiled import CompiledModel
from clew.te.analysis import bytes_of, flops_of


@dataclass(frozen=True)
class OperatorShare:
    """Stand-in."""

    position: int
    op: str
    layers: tuple[str, ...]
    samples: float
    measured: float | None
    by_flops: float
    by_bytes: float


@dataclass(frozen=True)
class LineShare:
    """Stand-in."""

    line: int
    text: str
    samples: float
    share: float


@dataclass(frozen=True)
class Split:
    """Stand-in."""

    kernel: str
    samples: int
    operators: tuple[OperatorShare, ...]
    lines: tuple[LineShare, ...]
    error: float


def split_kernels(
    compiled: CompiledModel,
    arrays: Sequence[Any],
    *,
    seconds: float = 1.0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> dict[int, Split]:
    """Stand-in."""
    return estimated_splits(compiled)


def estimated_splits(compiled: CompiledModel) -> dict[int, Split]:
    """Stand-in."""
    found = {}
    order = compiled.build.layer_order
    for use in compiled.build.uses:
        calls = operator_calls(use.call.op)
        flops, moved = [], []
        for call in calls:
            made = call.op.compute_tensors([a.type for a in call.args], call.attrs)
            made = made if isinstance(made, tuple) else (made,)
            flops.append(flops_of(made))
            moved.append(bytes_of(made))
        shares = [
            OperatorShare(
                n,
                c.op_name,
                tuple(sorted(c.span.layers, key=lambda la: order.get(la, 1 << 30))),
                0.0,
                1.0 if len(calls) == 1 else None,
                flops[n] / sum(flops) if sum(flops) else 1 / len(calls),
                moved[n] / sum(moved) if sum(moved) else 1 / len(calls),
            )
            for n, c in enumerate(calls)
        ]
        found[use.call.id] = Split(use.name, 0, tuple(shares), (), 0.0)
    return found
