"""WidenHalves: arithmetic of models in f16 and bf16 is computed in f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, replaces
from clew.ir.types import NARROW_FLOATS, TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op, get_op
from clew.ops.traits import NO_TRAITS
from clew.passes.base import Pass, PassContext
from clew.passes.precision.stored_rounded import (
    factors,
    has_dtype,
    in_dtype,
    is_stored,
    stored_in_both,
    stored_rounded,
)
from clew.patterns.exactness import Exactness
from clew.support.errors import GraphTypeError

_WIDE: Final = "f32"


class WidenHalves(Pass):
    """Computes values of `f16` and `bf16` in f32. They are rounded where products read them, where
    they leave a function, and where the model converts to the narrow dtype itself: not after every
    operator.

    Operands of products stay narrow, and are stored rounded. Other users of an operand of a
    convolution read the rounded form, too; an operand of a dense layer is stored in f32 as well for
    them, as `ConvertPrecision` does. On targets without instructions for products of the dtype,
    convolutions are computed in f32, and dense layers read data in f32; their weights stay narrow,
    since reading them takes most of the time if there are few rows. Attention reads operands in f32
    on all targets, except keys and values that lie in a cache, which stay narrow. Sums of products,
    and the values computed from them, are f32. Residual sums that feed no product directly are also
    stored in f32. Operators that only move elements keep the dtype of these elements.

    Before:
        %2: f16[...] = nn.relu(%1); %3: f16[...] = nn.conv2d(%2, w); %4: f16[...] = add(%3, b)
    After:
        %5: f16[...] = cast(nn.relu(cast(%1, dtype="f32")), dtype="f16")
        %6: f32[...] = nn.conv2d(%5, w, out_dtype="f32"); %7 = cast(add(%6, b'), dtype="f16")

    Preconditions: layouts are plain. Non-goals: operators on the host, and results of branches and
    of iterations, are rounded as the model says.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = Exactness(
        "f32 and f64", "f16 and bf16 are rounded where they are stored, not after each operator"
    )

    def run(self, module: Module, ctx: PassContext) -> Module:
        nodes = post_order([function for _, function in module], into_functions=True)
        if not any(has_dtype(node, dtype) for node in nodes for dtype in NARROW_FLOATS):
            return module
        return _Widener(ctx.target).rewrite_module(module)


class _Widener(Rewriter):
    """The memo maps a narrow value to a narrow one; `_wide` holds the f32 value that this rounds,
    if users may read it.
    """

    def __init__(self, target: Target | None) -> None:
        super().__init__()
        self._target = target
        self._rounded: set[int] = set()
        self._both: set[int] = set()  # values stored rounded and in f32
        self._wide: dict[int, Expr] = {}

    def enter(self, function: Function) -> None:
        """Finds the operands of products, which are stored rounded."""
        calls = [n for n in post_order(function.body) if isinstance(n, Call)]
        read = [(call, call.args[n]) for call in calls for n in self._narrow_operands(call)]
        convolved = [
            arg for call, arg in read if isinstance(call.op, Op) and call.op.traits.convolves
        ]
        for dtype in NARROW_FLOATS:
            rounded = stored_rounded(function, [arg for _, arg in read], dtype)
            self._rounded |= rounded
            self._both |= stored_in_both(function, rounded, convolved, dtype, self._reads_wide)

    def _reads_wide(self, node: Expr) -> bool:
        """Whether a node may read its operands in f32."""
        if not isinstance(node, Call) or not _computes(node) or self._narrow_operands(node):
            return False
        return node.op_name == "cast" or not (node.id in self._rounded and _selects(node))

    def rebuilt(self, node: Expr, children: Sequence[Expr]) -> Expr:
        if not isinstance(node, Call) or not _computes(node) or self._only_moves(node, children):
            return super().rebuilt(node, children)
        kept = self._narrow_operands(node)
        pairs = enumerate(children)
        args = [child if n in kept else self._widened(child) for n, child in pairs]
        if node.op_name == "cast" and has_dtype(args[0], node.attrs.dtype):
            return args[0]
        try:
            if kept:
                return Call(node.op, args, node.attrs.with_(out_dtype=_WIDE))
            return super().rebuilt(node, args)
        except GraphTypeError:  # it is defined for the narrow dtype alone
            return super().rebuilt(node, children)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if isinstance(new.type, TupleType) and new.type != old.type:
            assert isinstance(old.type, TupleType)
            fields = [TupleGetItem(new, n) for n in range(len(new.type.fields))]
            pairs = zip(fields, old.type.fields, strict=True)
            return Tuple([self._narrowed(field, kind) for field, kind in pairs])
        result = self._narrowed(new, old.type)
        if old.id in self._rounded - self._both:
            self._wide.pop(result.id, None)
        return result

    def _narrowed(self, value: Expr, wanted: Type) -> Expr:
        """Returns a value in the narrow dtype of the model."""
        if not isinstance(wanted, TensorType) or has_dtype(value, wanted.dtype):
            return value
        narrow: Expr = get_op("cast")(value, dtype=wanted.dtype)
        self._wide[narrow.id] = value
        replaces(narrow, value)  # unless something reads it, it is removed
        return narrow

    def _widened(self, value: Expr) -> Expr:
        """Returns a value in f32. Every user gets a separate cast, which then fuses into it."""
        if not any(has_dtype(value, dtype) for dtype in NARROW_FLOATS):
            return value
        if isinstance(value, Constant) and value.id not in self._wide:
            with self.covers(value):
                self._wide[value.id] = in_dtype(value, _WIDE)
        found = self._wide.get(value.id)
        return in_dtype(value, _WIDE) if found is None else found

    def _narrow_operands(self, call: Call) -> Sequence[int]:
        """Returns the positions of the operands of a product that it reads in the narrow dtype."""
        traits = call.op.traits if isinstance(call.op, Op) else NO_TRAITS
        attends = call.op_name == "nn.attention"
        operands = call.args[1 if attends else 0 : factors(call)]
        dtype = next((d for d in NARROW_FLOATS if all(has_dtype(a, d) for a in operands)), "")
        if attends and dtype:
            return [n for n in (1, 2) if is_stored(call.args[1]) and is_stored(call.args[2])]
        if not traits.product or not dtype:
            return ()
        if traits.product == "values" or self._has_products(dtype):
            return range(len(operands))
        return () if traits.is_convolution else (1,)

    def _has_products(self, dtype: str) -> bool:
        """Whether the target has instructions for products of a dtype."""
        target = self._target
        return target is not None and (
            any(unit.data == dtype for unit in target.dot_units)
            or target.tile_shape(dtype, dtype) is not None
        )

    def _only_moves(self, call: Call, children: Sequence[Expr]) -> bool:
        """Whether a call moves elements of which some are stored narrow."""
        if call.op_name == "cast" or not _selects(call):
            return False
        halves = [c for c in children if any(has_dtype(c, dtype) for dtype in NARROW_FLOATS)]
        return call.id in self._rounded or not all(c.id in self._wide for c in halves)


def _computes(call: Call) -> bool:
    """Whether a kernel computes a call, and from values, not from their bits."""
    op = call.op
    return isinstance(op, Op) and op.is_computed(call.attrs) and not op.traits.reads_bits


def _selects(call: Call) -> bool:
    """Whether the elements of the results are elements of operands, or constants."""
    assert isinstance(call.op, Op)
    types = [a.tensor for a in call.args]
    moved, _ = call.op.moved_and_written(types, call.attrs)
    return bool(moved) or call.op.selects(types, call.attrs)
