"""UnrollLoops: unrolls loops whose sizes depend on the iteration number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Function, Tuple, While
from clew.ir.module import Module
from clew.ir.rewrite import building_for
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.specialize import Specializer
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class UnrollLoops(Pass):
    """Unrolls loops of few iterations whose bodies have sizes that depend on the iteration number,
    such as slices from one offset to the next: the kernels of each iteration then have known sizes.

    Before: `%1 = while(...) trips=4`, in its body `slice(%x, begin=[offsets[i]], ...)`
    After:  four slices of constant bounds and what the body does with each, then `concatenate`

    It also unrolls loops that append a tensor to a sequence in each iteration; FoldStructure turns
    that into a concatenation. `most` bounds the operators that a loop may become: more would take
    longer to compile than they save. Preconditions: sizes are known (Specialize). Non-goals: loops
    that a value ends; loops whose sizes depend on other values or do not change: these run as
    loops.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    most: int = 4096

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        nodes = post_order(functions, into_functions=True)
        if not any(isinstance(n, While) and _may_unroll(n, n.trips, self.most) for n in nodes):
            return module
        return _Unroller(self.most).rewrite_module(module)


class _Unroller(Specializer):
    def __init__(self, most: int) -> None:
        super().__init__({}, {}, {})
        self._most = most

    def without_loop(self, node: While, trips: Dim | None) -> Expr | None:
        if not _may_unroll(node, trips, self._most):
            return super().without_loop(node, trips)
        outside = self.sizes.copy()
        try:
            return self._unrolled(node, trips, outside)
        finally:
            self.sizes = outside  # those of the body are others in each iteration

    def _unrolled(self, node: While, trips: Dim | None, outside: Mapping[str, Dim]) -> Expr | None:
        """Returns what a loop becomes; None if it stays. `outside` has the sizes known there."""
        most = self._most // len(post_order(node.body.body))
        state = [self._visited(i) for i in node.init]
        iterations: list[Tuple] = []
        with building_for(node):
            while going := self._goes_on(node, state, len(iterations), trips):
                counter = Constant(np.asarray(len(iterations), np.int64))
                self.sizes = dict(outside)
                result = self.inlined(node.body, [counter, *state])
                assert isinstance(result, Tuple)
                if not iterations and not all(_is_settled(n.type) for n in post_order(result)):
                    return None  # other values decide sizes as well
                if len(iterations) == most or (
                    iterations and _stacks(iterations[0], node) != _stacks(result, node)
                ):
                    return None
                iterations.append(result)
                state = list(result.fields[: len(state)])
            if going is None or (node.scans and not iterations):
                return None
            stacks = zip(*(result.fields[len(state) :] for result in iterations), strict=True)
            return Tuple([*state, *map(_stacked, stacks)])

    def _goes_on(
        self, node: While, state: Sequence[Expr], iteration: int, trips: Dim | None
    ) -> bool | None:
        """Whether a loop has another iteration; None if only a run determines it."""
        if isinstance(trips, int):
            return iteration < trips
        counter = Constant(np.asarray(iteration, np.int64))
        going = self.inlined(node.cond, [counter, *state])
        return bool(going.data.reshape(-1)[0]) if isinstance(going, Constant) else None


def _may_unroll(node: While, trips: Dim | None, most: int) -> bool:
    body = post_order(node.body.body)
    least = 1 if trips is None else trips
    if not isinstance(least, int) or not 0 < least * len(body) <= most:
        return False
    inside = (n.type for n in body if not isinstance(n, Function))
    return not all(isinstance(t, TensorType) and t.is_static for i in inside for t in leaves(i))


def _is_settled(type_: Type) -> bool:
    """Whether all sizes of a value's tensors are numbers; a sequence may have any length."""
    return all(not isinstance(t, TensorType) or t.is_static for t in leaves(type_))


def _stacks(iteration: Tuple, node: While) -> list[Type]:
    return [value.type for value in iteration.fields[len(node.init) :]]


def _stacked(values: Sequence[Expr]) -> Expr:
    """Returns tensors of one type one after another along a new axis."""
    rows = [get_op("reshape")(v, shape=(1, *v.tensor.shape)) for v in values]
    return get_op("concatenate")(*rows, axis=0) if len(rows) > 1 else rows[0]
