"""ShareConstants: constants that share memory with equal ones of another build."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from clew.cost.policy.folding import SHARED_CONSTANT_BYTES
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.shared_arrays import same_bytes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ShareConstants(Pass):
    """Replaces constants with equal arrays from `known`, so that several builds of a model share
    memory for its weights.

    Before: `%1 = nn.dense(%0, w)`, where `w` is a copy of a known array
    After:  `%1 = nn.dense(%0, w)`, where `w` is the known array

    Preconditions: weights are folded and packed (FoldConstant). Non-goals: sharing parts of
    arrays.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    known: Sequence[Array] = field(default=(), repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """Empty, since text (of a reproducer, for example) cannot hold arrays."""
        return {}

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Sharer(self.known).rewrite_module(module)


class _Sharer(Rewriter):
    def __init__(self, known: Sequence[Array]) -> None:
        super().__init__()
        self._known: dict[tuple[tuple[int, ...], np.dtype[Any]], list[Array]] = defaultdict(list)
        for array in known:
            self._known[array.shape, array.dtype].append(array)

    def rewrite_constant(self, old: Constant) -> Expr:
        if old.is_splat or old.tensor.size_bytes < SHARED_CONSTANT_BYTES:
            return old
        data = old.data
        for array in self._known.get((data.shape, data.dtype), ()):
            if array is not data and same_bytes(array, data):
                return Constant(array, name=old.name, layout=old.tensor.layout)
        return old
