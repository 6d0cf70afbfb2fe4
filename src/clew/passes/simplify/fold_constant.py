"""FoldConstant: computes expressions of constants at compile time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from clew.cost.policy.folding import (
    GROWTH_WORTH_STORING,
    LEAST_WIDENED_BYTES,
    MOST_GROWN_ELEMENTS,
    MOST_WIDENED_BYTES,
    OPERATIONS_WORTH_STORING,
    SHARED_CONSTANT_BYTES,
)
from clew.cost.work import flops_of
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Call, Constant, Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.types import HOST_DTYPES, TensorType, bits, leaves, to_numpy
from clew.ir.visit import post_order
from clew.ops.registry import Op, argument_references, moved_operands, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.bind_constants import ConstantBinder
from clew.patterns.exactness import EVALUATED, Exactness
from clew.support.arrays import aligned_copy
from clew.support.budgets import current
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.shared_arrays import shared
from clew.support.text_arrays import is_text, text_bytes
from clew.te.analysis import Kind
from clew.te.facts import moved_by

# No operator takes noticeable time for this few elements.
_FREE_OPERATIONS: Final = 1 << 28
# Fewer operations per element are no sum or product (Winograd's transform counts 127).
_LINEAR: Final = 128


@dataclass(frozen=True)
class FoldConstant(Pass):
    """Replaces operators whose arguments are all constants by their values.

    Values come from `op.run_reference`. A splat remains one stored element through elementwise
    operators and data movement. Intermediate results are freed at once, so that peak memory is the
    original weights plus their folded form.

    Before: `%3 = transpose(weight, axes=[1, 0])`, `%4 = nn.dense(%1, %3)`
    After:  `%4 = nn.dense(%1, weight')`

    `max_growth_elems` is the largest size of a result that has more than twice the elements of its
    arguments (`broadcast_to`, `full`, `arange`, `tile`): larger ones are cheaper to compute than to
    store. Text counts by its bytes. Expensive results, such as the transform of a convolution's
    weights, are stored anyway.

    Weights stored in at most 8 bits are widened here as well, which makes runs fastest. If all of
    these in a function would grow by more than `max_widened_bytes` in total, the large ones remain
    narrow, and each run widens them one after the other. On microcontrollers, what computes with
    other values than constants gets the narrow weights in any case: flash is scarce, and kernels
    widen them as they read them.

    Sizes that are read off a shape are constants if they are known, even if others are not.

    A constant passed to a branch, or passed through a loop unchanged, is a constant inside: weights
    in a loop are packed at compile time like any others.

    An out-of-range index among constants is an error (I320). In a branch or loop, which may never
    execute, it is left to the run.

    Preconditions: none. Non-goals: branches whose condition is constant (SimplifyExpr).
    """

    exactness: ClassVar[Exactness] = EVALUATED

    max_growth_elems: int = MOST_GROWN_ELEMENTS
    max_widened_bytes: int = MOST_WIDENED_BYTES

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Folder(self, ctx, module.main).rewrite_module(module)


class _Folder(ConstantBinder):
    of_function = ("_keeps_narrow", "_always_runs")

    def __init__(self, options: FoldConstant, ctx: PassContext, main: Function) -> None:
        super().__init__()
        self._main = main
        self._always_runs = False
        self._options = options
        self._ctx = ctx
        self._uses: dict[int, int] = {}
        self._keeps_narrow = False
        # Casts of narrow weights, by their values.
        self._narrow: dict[int, Call] = {}
        self._is_scarce = ctx.target is not None and ctx.target.is_microcontroller
        # The remaining budget of operations for sums and products: folding prepares weights, it
        # does not run the model.
        self._operations_left = current().folded_operations

    def enter(self, function: Function) -> None:
        self._always_runs = function is self._main
        nodes = (function, *post_order(function.body))
        widened = {
            id(n.args[0]): _widened_bytes(n) for n in nodes if isinstance(n, Call) and n.args
        }
        self._keeps_narrow = sum(widened.values()) > self._options.max_widened_bytes
        for node in nodes:
            for child in node.children:
                self._uses[child.id] = self._uses.get(child.id, 0) + 1
        super().enter(function)

    def rewrite_constant(self, old: Constant) -> Expr:
        if old.is_splat or old.is_lazy or old.data.size == 0 or not _all_equal(old.data):
            return old
        return Constant(
            np.broadcast_to(old.data.reshape(-1)[0], old.data.shape),
            name=old.name,
            layout=old.tensor.layout,
        )

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        sizes = _sizes_read(new)
        if sizes is not None and all(isinstance(d, int) for d in sizes):
            return Constant(np.asarray(sizes, np.int64))
        folded = self._folded(old, new)
        if folded is None:
            return self._with_narrow(old, new)
        if self._is_scarce and isinstance(folded, Constant) and _more_bytes(new):
            with self.covers(old, *old.args):  # a call made here has an origin
                self._narrow[folded.id] = new if new is old else new.with_args(new.args)
        self._release(old)
        return folded

    def _folded(self, old: Call, new: Call) -> Expr | None:
        """Returns the value of a call; None if it is left to the run."""
        if not isinstance(new.op, Op) or not all(isinstance(a, Constant) for a in new.args):
            return None
        new = new.op.resolve(new)
        assert isinstance(new.op, Op)
        args: Sequence[Constant] = new.args  # type: ignore[assignment]
        if not self._foldable(old, new, args):
            return None
        with self.covers(old, *old.args):
            return self._fold(old, new, args)

    def _with_narrow(self, old: Call, new: Call) -> Call:
        """Returns a call with casts of narrow weights instead of the widened ones."""
        args = [self._narrow.get(a.id, a) for a in new.args]
        if all(a is b for a, b in zip(args, new.args, strict=True)):
            return new
        if all(a is b for a, b in zip(args, old.args, strict=True)):
            return old
        return Call(new.op, args, new.attrs)

    def _foldable(self, old: Call, new: Call, args: Sequence[Constant]) -> bool:
        assert isinstance(new.op, Op)
        if new.op.reference_rule is None and new.op.compute is None:
            return False
        if new.op.host and not args:  # an operator without inputs may return random values
            return False
        if not all(isinstance(t, TensorType) for t in leaves(new.type)):
            return False  # constants are always tensors
        if any(_is_symbolic(value) for value in new.attrs.values()):
            return False
        if not isinstance(new.type, TensorType) or not new.type.is_static or _is_move(new):
            return True
        if self._keeps_narrow and _widened_bytes(new):
            self._ctx.remark(old, f"not folded: {new.args[0].tensor.dtype} takes less memory")
            return False
        stored = sum(1 if a.is_splat else math.prod(a.tensor.concrete) for a in args)
        read = sum(math.prod(a.tensor.concrete) for a in args)
        size = new.type.size
        assert isinstance(size, int)
        most = self._options.max_growth_elems
        if new.type.size_bytes > current().run_bytes:
            most = 0  # left to the run, which may reject it
        grows = size > max(most, 2 * stored)
        if not grows and size * max(read, 1) < _FREE_OPERATIONS:
            return True
        assert isinstance(new.op, Op)
        flops = new.op.derived(flops_of, [a.tensor for a in args], new.attrs)
        count = flops if isinstance(flops, int) else 0
        if not self._affordable(old, count, size + read):
            return False
        worth_storing = (
            most
            and count >= OPERATIONS_WORTH_STORING * size
            and size <= GROWTH_WORTH_STORING * stored
        )
        if grows and not worth_storing and not _stays_splat(self._ctx, new, args):
            self._ctx.remark(old, f"not folded: it would store {size} elements for {stored}")
            return False
        return True

    def _affordable(self, old: Call, count: int, moved: int) -> bool:
        """Whether `count` operations are within the budget. A count proportional to the elements
        that the call reads and writes (`moved`) always is.
        """
        if count <= _LINEAR * moved:
            return True
        if count > self._operations_left:
            self._ctx.remark(old, f"not folded: its {count} operations are left to the run")
            return False
        self._operations_left -= count
        return True

    def _fold(self, old: Call, new: Call, args: Sequence[Constant]) -> Expr | None:
        assert isinstance(new.op, Op)
        splat = _fold_splat(self._ctx, new, args)
        if splat is not None:
            return splat
        try:
            with np.errstate(all="ignore"):
                value = new.op.run_reference([a.data for a in args], new.attrs)
        except IndexError as error:
            if self._always_runs and getattr(error, "code", "") == "I320":
                raise
            self._ctx.remark(old, f"not folded: {error}")
            return None
        if self._repeats_texts(value if isinstance(value, tuple) else (value,), args):
            self._ctx.remark(old, "not folded: it would store the same texts many times")
            return None
        if isinstance(value, tuple):
            types = getattr(new.type, "fields", (None,) * len(value))
            return Tuple([_constant(v, t) for v, t in zip(value, types, strict=True)])
        return _constant(value, new.type)

    def _repeats_texts(self, values: Sequence[Any], args: Sequence[Constant]) -> bool:
        """Whether results have far more text than the arguments. In memory, places may share a
        text, but not in a file.
        """
        made = sum(text_bytes(value) for value in values if is_text(value))
        if made <= self._options.max_growth_elems:
            return False
        return made > 2 * sum(text_bytes(a.data) for a in args if is_text(a.data))

    def _release(self, old: Call) -> None:
        """Frees folded arguments that have no other use."""
        for arg in old.args:
            self._uses[arg.id] -= 1
            if not self._uses[arg.id] and isinstance(arg, Call):
                self.memo.pop(arg.id, None)


def _sizes_read(call: Call) -> Sequence[Dim] | None:
    """Returns the sizes that a call reads off a shape: all of them, or a slice."""
    if call.op_name == "shape_of":
        return call.args[0].tensor.shape
    if call.op_name != "slice" or not isinstance(call.args[0], Call):
        return None
    if argument_references(call.attrs):
        return None
    ends = (*call.attrs.begin, *call.attrs.end, *call.attrs.strides)
    if len(ends) != 3 or not all(isinstance(n, int) for n in ends) or ends[2] < 1:
        return None
    whole = _sizes_read(call.args[0])
    return None if whole is None else whole[slice(*ends)]


def _widened_bytes(call: Call) -> int:
    """Returns how many more bytes a large stored parameter takes in the dtype it is cast to."""
    more = _more_bytes(call)
    return more if more > LEAST_WIDENED_BYTES else 0


def _more_bytes(call: Call) -> int:
    """Returns how many more bytes a stored parameter takes in the dtype it is cast to."""
    if call.op_name != "cast" or not isinstance(call.args[0], Constant) or call.args[0].is_splat:
        return 0
    stored = call.args[0].tensor
    if bits(stored.dtype) > 8 or stored.dtype == "bool":
        return 0
    return max(0, call.tensor.size_bytes - stored.size_bytes)


def _all_equal(data: np.ndarray[Any, Any]) -> bool:
    """Whether all elements have the same bytes (so -0.0 differs from 0.0, and NaN equals NaN)."""
    if data.dtype.kind in "Oc":
        return False
    first = data.flat[0].tobytes()
    if any(e.tobytes() != first for e in data.flat[1:9]):
        return False
    elements = np.ascontiguousarray(data).reshape(-1).view(f"u{data.itemsize}")
    return bool((elements == elements[0]).all())


def _is_symbolic(value: Any) -> bool:
    """Whether an attribute's value depends on a symbolic size."""
    if isinstance(value, tuple):
        return any(_is_symbolic(v) for v in value)
    return isinstance(value, SymDim)


def _constant(value: Any, type_: Any) -> Constant:
    """Returns a computed value as a constant: contiguous, with the type's dtype and layout."""
    if not isinstance(type_, TensorType):
        return Constant(value)
    array = np.asarray(value, dtype=to_numpy(type_.dtype))
    if type_.dtype in HOST_DTYPES:
        return Constant(array)
    if array.size > 1 and array.ndim and not any(array.strides):
        return Constant(array, layout=type_.layout)
    if array.size > 1 and _all_equal(array):
        return Constant(np.broadcast_to(array.reshape(-1)[0], array.shape), layout=type_.layout)
    # Aligned, so that the runtime uses it without a copy.
    array = aligned_copy(array)
    if array.nbytes >= SHARED_CONSTANT_BYTES:
        array = shared(array)
    return Constant(array, layout=type_.layout)


def _is_move(call: Call) -> bool:
    """Whether a call on a splat returns a splat of the same value."""
    if len(call.args) != 1 or not isinstance(call.args[0], Constant):
        return False
    if not call.args[0].is_splat or call.args[0].data.size == 0 or runs_on_host(call):
        return False
    assert isinstance(call.op, Op)
    if moved_operands(call):
        return True
    moved = call.op.derived(moved_by, [call.args[0].tensor], call.attrs)
    value = call.args[0].splat_value
    return moved is not None and all(
        other == value and math.copysign(1, other) == math.copysign(1, value)
        for other in moved.values
    )


def _stays_splat(ctx: PassContext, call: Call, args: Sequence[Constant]) -> bool:
    if call.op_name == "full":
        return True
    return (
        bool(args)
        and all(a.is_splat and a.tensor.size for a in args)
        and ctx.kind(call) in (Kind.ELEMENTWISE, Kind.BROADCAST)
        and _gives_one(call, args)
    )


def _gives_one(call: Call, args: Sequence[Constant]) -> bool:
    """Whether one-element arguments would give a one-element result: no attribute holds sizes."""
    try:
        made = Call(call.op, [Constant(_one(a)) for a in args], call.attrs).type
    except GraphTypeError:
        return False
    return isinstance(made, TensorType) and made.size == 1


def _one(splat: Constant) -> np.ndarray[Any, Any]:
    data: np.ndarray[Any, Any] = splat.data
    return data.reshape(-1)[:1].reshape((1,) * data.ndim)


def _fold_splat(ctx: PassContext, call: Call, args: Sequence[Constant]) -> Constant | None:
    """Returns the value of a call whose result is a splat, computed on one element."""
    if not isinstance(call.type, TensorType) or not call.type.is_static or call.type.size == 0:
        return None
    if _is_move(call):
        return Constant.splat(args[0].splat_value, call.type)
    if not _stays_splat(ctx, call, args) or call.type.size == 1:
        return None
    if call.op_name == "full":
        return Constant.splat(call.attrs.value, call.type)
    assert isinstance(call.op, Op)
    with np.errstate(all="ignore"):
        value = np.asarray(call.op.run_reference([_one(a) for a in args], call.attrs))
    return Constant.splat(value.reshape(-1)[0].item(), call.type)
