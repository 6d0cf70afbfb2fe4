"""FoldStructure: reads sequences and optionals whose parts are known where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, is_native, leaves
from clew.ir.values import known_value
from clew.ir.visit import post_order
from clew.ops.data.structure import folded
from clew.passes.base import Pass, PassContext


@dataclass(frozen=True)
class FoldStructure(Pass):
    """Replaces operators on sequences and optionals by what they give, where that is known before
    the run: an element by itself, joined elements by a concatenation, a split of a known size by
    slices. Importers do so as far as they know sizes; this is for what came to be known since.

    Before: `%2 = sequence.construct(%0, %1)`, `%4 = sequence.at(%2, const 1)`, `%5 = nn.relu(%4)`
    After:  `%5 = nn.relu(%1)`

    Preconditions: none. Non-goals: loops over sequences (importers write them out).
    """

    opt_level: ClassVar[int] = 0

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        if all(map(_is_plain, post_order(functions, into_functions=True))):
            return module
        return _Folder().rewrite_module(module)


def _is_plain(node: Expr) -> bool:
    """Whether a node's value is known to be of tensors that kernels can hold."""
    return not isinstance(node, Call) or all(
        isinstance(t, TensorType) and is_native(t) for t in leaves(node.type)
    )


class _Folder(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        with self.covers(old, *(a for a in old.args if isinstance(a, Call))):
            return folded(new, known_value)
