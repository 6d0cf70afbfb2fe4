"""FoldEmpty: replaces values without elements by constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from clew.ir.expr import Call, Constant, Expr, Tuple, TupleGetItem
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType, TupleType, Type, empty_array, is_empty, leaves
from clew.ir.visit import post_order
from clew.ops.registry import Op, get_op, only_checks
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass

_SIZED: Final = "sized"


@dataclass(frozen=True)
class FoldEmpty(Pass):
    """Replaces values without elements by constants: results of calls, and operands of calls.

    An empty batch, a text without tokens, or a detector that finds nothing produces such values.
    Later passes and schedule rules divide by sizes; after this pass they need no case for 0. Parts
    without elements are removed from concatenations. Nonempty results of empty operands (the sum
    over an empty axis, a padded image of no pixels) are left to FoldConstant or to a kernel. Calls
    that check indices stay, on the host, and `sized` orders the readers of their results after
    them: an index out of range is an error even if it selects nothing.

    Before: `%1: f32[0, 8] = nn.dense(%x, w)`, `%2: f32[3, 8] = concatenate(%1, %y, axis=0)`
    After:  `%2` is `%y`

    Preconditions: none; data-dependent sizes are left alone, and so are the values (`sized`) that
    tell them. Non-goals: results of branches and loops, which stay (their readers read constants).
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        functions = [function for _, function in module]
        nodes = post_order(functions, into_functions=True)
        values = (n for n in nodes if not isinstance(n, Constant))
        types = (t for n in values for t in leaves(n.type) if isinstance(t, TensorType))
        if not any(0 in t.shape for t in types):
            return module
        return _Folder().rewrite_module(module)


class _Folder(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        parts, is_sized = leaves(new.type), new.op_name == _SIZED
        checked = [c for c in new.children if _checks(c)]
        if parts and all(map(is_empty, parts)) and not is_sized:
            if only_checks(new):
                return new
            return self._constants(new.type, [c for c in new.children if _checks(c, few=False)])
        kept = checked if is_sized else []
        read = [_constant(c.type) if _is_read(c) and c not in kept else c for c in new.children]
        call = rebuild(new, read)
        assert isinstance(call, Call)
        if is_sized:
            return call
        return _after(checked, _joined(call) if call.op_name == "concatenate" else call)

    def _constants(self, type_: Type, checked: Sequence[Expr]) -> Expr:
        if isinstance(type_, TupleType):
            return Tuple([self._constants(t, checked) for t in type_.fields])
        return _after(checked, _constant(type_))


def _checks(arg: Expr, few: bool = True) -> bool:
    """Whether an argument has no elements, but its computation checks indices. Unless `few`, it may
    have elements, such as the position of an element in a list.
    """
    if isinstance(arg, TupleGetItem):
        arg = arg.value
    if not isinstance(arg, Call):
        return False
    if not all(map(is_empty, leaves(arg.type))):
        types = [a.type for a in arg.args if isinstance(a.type, TensorType)]
        if few or not isinstance(arg.op, Op) or len(types) < len(arg.args):
            return False
        return arg.op.checks_indices(types, arg.attrs)
    if arg.op_name == _SIZED:
        return any(_checks(a, few=False) for a in arg.args[:-1])
    return only_checks(arg)


def _after(checked: Sequence[Expr], value: Expr) -> Expr:
    """Returns a value that a run computes after the values `checked`."""
    return Call(get_op(_SIZED), [*checked, value]) if checked else value


def _is_read(arg: Expr) -> bool:
    """Whether an argument has no elements but would be computed by a run."""
    is_sized = isinstance(arg, Call) and arg.op_name == _SIZED
    return not isinstance(arg, Constant) and not is_sized and is_empty(arg.type)


def _constant(type_: Type) -> Constant:
    assert isinstance(type_, TensorType)
    return Constant(empty_array(type_), layout=type_.layout)


def _joined(call: Call) -> Expr:
    """Returns a concatenation without its empty parts, whose other sizes may be unknown."""
    kept = [a for a in call.args if 0 not in a.tensor.shape]
    if not kept or len(kept) == len(call.args) or not isinstance(call.op, Op):
        return call
    return kept[0] if len(kept) == 1 and kept[0].type == call.type else call.with_args(kept)
