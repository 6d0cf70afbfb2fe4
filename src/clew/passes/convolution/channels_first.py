"""ChannelsFirst: images with their channels last, as files of TensorFlow have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.types import TensorType
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.forms import FormRewriter
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

_RANKS: Final = (4, 5)  # three axes are also those of rows of tokens
_REDUCTION: Final = frozenset({"axes", "keepdims"})
"""The attributes of operators that reduce some axes, of which none depends on the order."""


@dataclass(frozen=True)
class ChannelsFirst(Pass):
    """Computes what lies between convolutions on images with their channels first, if these are
    transposed between layers.

    Elementwise operators, padding, concatenations and means over all pixels follow, so images are
    transposed only where a chain of these operators begins or ends.

    Before:
        %1: f32[1, 28, 28, 64] = transpose(nn.conv2d(%0, w), axes=[0, 2, 3, 1])
        %2: f32[1, 28, 28, 64] = nn.relu(add(%1, b))
        %3: f32[1, 64, 28, 28] = transpose(%2, axes=[0, 3, 1, 2])
    After:
        %3: f32[1, 64, 28, 28] = nn.relu(add(nn.conv2d(%0, w), b'))

    Preconditions: layouts are plain. Runs before the rules that match convolutions with the
    operators after them. Non-goals: chains without a transpose that puts the channels last. If all
    sizes of an image are equal, its two forms have one type, and no *same* link leads to the other.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Turner(ctx).rewrite_module(module)


def to_first(rank: int) -> tuple[int, ...]:
    """Returns the axes that put the channels of images first."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    """Returns the axes that put the channels of images last."""
    return (0, *range(2, rank), 1)


class _Turner(FormRewriter):
    """The other form of an image with its channels last has them first."""

    def has_form(self, value: Expr) -> bool:
        return isinstance(value.type, TensorType) and value.type.rank in _RANKS

    def tells(self, value: Expr) -> bool:
        size, *others = value.tensor.shape[1:]
        return size == 1 or any(size != other for other in others)

    def form_shape(self, value: Expr) -> tuple[Dim, ...]:
        shape = value.tensor.shape
        return tuple(shape[axis] for axis in to_first(len(shape)))

    def to_form(self, value: Expr, old: Expr) -> Expr:
        axes = to_first(old.tensor.rank)
        if isinstance(value, Constant):
            turned = value.tensor.with_(shape=self.form_shape(old))
            return value.derived("turned", turned, lambda x: x.transpose(axes))
        return get_op("transpose")(value, axes=axes)

    def from_form(self, value: Expr, old: Expr) -> Expr:
        return get_op("transpose")(value, axes=to_last(old.tensor.rank))

    def begins(self, old: Call) -> bool:
        return any(_turns(a, to_last) for a in old.args)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if self.ends(old):
            return get_op("identity")(self.memo[old.args[0].id])
        if _turns(old, to_last):
            image = old.args[0]
            plain = self.plain(self.memo[image.id], image, old)
            turned = rebuild(old, [plain])
            self._converted[turned.id] = plain
            return turned
        return self._reduced(old) or self._dense(old) or super().rewrite_call(old, new)

    def ends(self, old: Call) -> bool:
        """Whether a transpose puts channels first that are there already."""
        return _turns(old, to_first) and self.is_formed(self.memo[old.args[0].id])

    def formed(self, old: Call) -> Expr | None:
        assert isinstance(old.op, Op)
        if old.op.name == "pad":
            return self._padded(old)
        if old.op.name == "concatenate":
            return self._concatenated(old)
        return self._pointwise(old)

    def _padded(self, old: Call) -> Expr:
        rank, pads = old.tensor.rank, old.attrs.pads
        order = to_first(rank)
        turned = tuple(pads[axis] for axis in order) + tuple(pads[rank + axis] for axis in order)
        return Call(old.op, [self.form(old.args[0], old)], old.attrs.with_(pads=turned))

    def _concatenated(self, old: Call) -> Expr | None:
        if not all(map(self.has_form, old.args)):
            return None
        rank = old.tensor.rank
        axis = to_first(rank).index(old.attrs.axis % rank)
        return Call(old.op, [self.form(a, old) for a in old.args], old.attrs.with_(axis=axis))

    def _pointwise(self, old: Call) -> Expr | None:
        rank = old.tensor.rank
        operands = []
        for arg in old.args:
            if not isinstance(arg.type, TensorType):
                return None
            if arg.tensor.rank == rank:
                operands.append(self.form(arg, old))
            else:
                operands.append(self._broadcast(arg, rank))
        return self.over_forms(old, operands)

    def _broadcast(self, arg: Expr, rank: int) -> Expr:
        """Returns an operand of fewer axes, which broadcasts to images, in the other form."""
        value = self.memo[arg.id]
        if arg.tensor.rank == 0:
            return value
        whole = (*(1,) * (rank - arg.tensor.rank), *arg.tensor.shape)
        axes = to_first(rank)
        shape = tuple(whole[axis] for axis in axes)
        while len(shape) > 1 and shape[0] == 1:  # as imported biases are
            shape = shape[1:]
        if isinstance(value, Constant):
            turned = value.tensor.with_(shape=shape)
            sizes = turned.concrete
            fixed = (*(1,) * (rank - arg.tensor.rank), *value.tensor.concrete)
            return value.derived(
                "turned", turned, lambda x: x.reshape(fixed).transpose(axes).reshape(sizes)
            )
        moved = get_op("transpose")(get_op("reshape")(value, shape=whole), axes=axes)
        return get_op("reshape")(moved, shape=shape)

    def _reduced(self, old: Call) -> Expr | None:
        """Returns a reduction of an image in the other form over all pixels, without their axes;
        None for other calls.
        """
        if not isinstance(old.op, Op) or not _REDUCTION.issubset(old.op.signature.attributes):
            return None
        image = old.args[0]
        rank, value = image.tensor.rank, self.memo[image.id]
        pixels = tuple(range(1, rank - 1))
        axes = tuple(sorted(axis % rank for axis in old.attrs.axes))
        follows = self.is_formed(value) or _turns(image, to_last)
        if rank not in _RANKS or old.attrs.keepdims or axes != pixels or not follows:
            return None
        turned = old.attrs.with_(axes=tuple(range(2, rank)))
        return Call(old.op, [self.form(image, old)], turned)

    def _dense(self, old: Call) -> Expr | None:
        """Returns a dense layer over all elements of an image in the other form, with the inputs of
        its weights in that order; None for other calls.
        """
        if old.op_name != "nn.dense" or not isinstance(old.args[0], Call):
            return None
        flat, weight = old.args[0], self.memo[old.args[1].id]
        if flat.op_name != "reshape" or not isinstance(weight, Constant):
            return None
        image = flat.args[0]
        if not self.has_form(image) or not isinstance(image.type, TensorType):
            return None
        follows = self.is_formed(self.memo[image.id]) or _turns(image, to_last)
        batch, *sizes = image.tensor.shape
        if not follows or flat.tensor.rank != 2 or flat.tensor.shape[0] != batch:
            return None
        if not all(isinstance(size, int) for size in sizes) or weight.tensor.layout:
            return None
        inputs = 0 if old.attrs.get("weight_layout") == "KN" else 1
        whole, axes = weight.tensor.concrete, to_first(len(sizes) + 1)[1:]
        first, last = ((whole[0],), ()) if inputs else ((), (whole[1],))
        order = tuple(axis - 1 + inputs for axis in axes)
        order = (0, *order) if inputs else (*order, len(sizes))
        turned = weight.derived(
            f"turned from {sizes}",
            weight.tensor,
            lambda x: x.reshape(*first, *sizes, *last).transpose(order).reshape(whole),
        )
        value = get_op("reshape")(self.form(image, old), shape=flat.tensor.shape)
        rest = [self.plain(self.memo[a.id], a, old) for a in old.args[2:]]
        return Call(old.op, [value, turned, *rest], old.attrs)


def _turns(value: Expr, order: Callable[[int], tuple[int, ...]]) -> bool:
    """Whether a value is an image whose channels were moved as `order` says."""
    if not isinstance(value, Call) or value.op_name != "transpose":
        return False
    rank = value.tensor.rank
    return rank in _RANKS and tuple(value.attrs.axes) == order(rank)
