"""FoldStructure: resolves reads of sequences and optionals whose elements are known."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, is_native, leaves
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops.data.structure import folded
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class FoldStructure(Pass):
    """Replaces operators on sequences and optionals by their results where these are known before
    the run: an element, a concatenation for joined elements, slices for a split of known size.
    Importers do the same with the sizes they know; this pass uses sizes that became known since.

    Before: `%2 = sequence.construct(%0, %1)`, `%4 = sequence.at(%2, const 1)`, `%5 = nn.relu(%4)`
    After:  `%5 = nn.relu(%1)`

    Preconditions: none. Non-goals: loops over sequences (importers unroll them).
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        if all(map(_is_plain, post_order(functions, into_functions=True))):
            return module
        return _Folder().rewrite_module(module)


def _is_plain(node: Expr) -> bool:
    """Whether a node's value consists only of tensors that kernels can hold."""
    return not isinstance(node, Call) or all(
        isinstance(t, TensorType) and is_native(t) for t in leaves(node.type)
    )


class _Folder(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        with self.covers(old, *(a for a in old.args if isinstance(a, Call))):
            return folded(new, known_value)
