"""EliminateCommonSubexpr: computes equal values once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from clew.cost.policy.folding import MERGED_CONSTANT_ELEMENTS
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.text_arrays import content


@dataclass(frozen=True)
class EliminateCommonSubexpr(Pass):
    """Merges calls of an operator with equal attributes and the same arguments, and equal
    constants.

    Constants of at most `max_constant_elems` elements are compared by value, larger ones by
    identity of their memory. Values are merged within one function.

    Before: `%2 = exp(%1)`, `%3 = exp(%1)`, `%4 = add(%2, %3)`
    After:  `%2 = exp(%1)`, `%4 = add(%2, %2)`

    Preconditions: none. Non-goals: host operators without inputs (they may draw random numbers),
    and values equal only up to reassociation.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = EXACT

    max_constant_elems: int = MERGED_CONSTANT_ELEMENTS

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Merger(self.max_constant_elems).rewrite_module(module)


class _Merger(Rewriter):
    """A separate merger rewrites each function's body, so that values stay within their
    function.
    """

    def __init__(self, max_constant_elems: int) -> None:
        super().__init__()
        self._max = max_constant_elems
        self._known: dict[Hashable, Expr] = {}
        self._entered = False

    def rewrite_module(self, module: Module) -> Module:
        changed = {name: _Merger(self._max).rewrite_function(f) for name, f in module}
        return module.with_functions(changed)

    def rewrite_function(self, function: Function) -> Function:
        if self._entered:
            return _Merger(self._max).rewrite_function(function)
        self._entered = True
        return super().rewrite_function(function)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op) or (new.op.host and not new.args):
            return new
        args = tuple(a.id for a in new.args)
        if len(args) == 2 and new.op.commutes(getattr(new.args[0].type, "dtype", "")):
            args = (min(args), max(args))
        return self._known.setdefault((new.op.name, new.attrs, args), new)

    def rewrite_tuple_get_item(self, old: TupleGetItem, new: TupleGetItem) -> Expr:
        if isinstance(new.value, Tuple):
            return new.value.fields[new.index]
        return self._known.setdefault(("get", new.index, new.value.id), new)

    def rewrite_constant(self, old: Constant) -> Expr:
        if old.is_lazy:  # computing its data for a comparison would cost more than it saves
            return old
        data = old.data
        if data.size <= self._max or old.is_splat:
            key: Hashable = content(data.reshape(-1)[:1] if old.is_splat else data)
        else:
            key = (data.ctypes.data, data.strides)
        return self._known.setdefault(("constant", old.type, key), old)
