"""CombineParallelMatmul: one matrix product in place of several on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

import numpy as np

from clew.cost.policy.fusion import PRODUCTS_TO_COMBINE
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order
from clew.ops.registry import get_op, moved_operands
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class CombineParallelMatmul(Pass):
    """Combines dense layers on the same data into one layer with concatenated weights, and slices.

    The query, key and value products of an attention become one product: the data is read once, and
    the kernel is large enough to use threads well. Biases are combined as well.

    Before:
        %q = nn.dense(%x, wq, weight_layout="KN"); %k = nn.dense(%x, wk, weight_layout="KN")
    After:
        %qk = nn.dense(%x, concatenate(wq, wk), weight_layout="KN")
        %q = slice(%qk, begin=[0], end=[64], axes=[2]); %k = slice(%qk, begin=[64], ...)

    This applies only if the operators that follow move elements (split heads, transpose): the slice
    is then free.

    Preconditions: weights and biases are constants in a plain layout; FoldConstant runs after it.
    Non-goals: convolutions; products of different data.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = REORDERED

    min_parts: int = PRODUCTS_TO_COMBINE

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Combiner(self, ctx).rewrite_module(module)


@dataclass(eq=False)
class _Part:
    """A dense layer with an optional bias add; `root` is the last of the two."""

    dense: Call
    root: Call
    bias: Constant | None

    @property
    def units(self) -> int:
        units = self.dense.tensor.shape[-1]
        assert isinstance(units, int)
        return units


@dataclass(eq=False)
class _Parallel:
    """Parts to combine, and the result once it is built."""

    parts: list[_Part]
    combined: Expr | None = field(default=None)


class _Combiner(Rewriter):
    def __init__(self, options: CombineParallelMatmul, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._by_root: dict[int, tuple[_Parallel, int]] = {}
        self._absorbed: set[int] = set()

    def enter(self, function: Function) -> None:
        users: dict[int, list[Expr]] = {}
        candidates: dict[tuple[object, ...], list[_Part]] = {}
        nodes = post_order(function.body)
        for node in nodes:
            for child in node.children:
                users.setdefault(child.id, []).append(node)
        users.setdefault(function.body.id, []).append(function)
        for node in nodes:
            part = _part(node, users)
            if part is not None:
                (data, weight), attrs = part.dense.args, part.dense.attrs
                key = (data.id, attrs.weight_layout, weight.tensor.rank, weight.tensor.dtype,
                       attrs.pairs_fit, part.bias is None)  # fmt: skip
                candidates.setdefault(key, []).append(part)
        for parts in candidates.values():
            if len(parts) >= self._options.min_parts and self._worthwhile(parts, users):
                group = _Parallel(parts)
                for place, part in enumerate(parts):
                    self._by_root[part.root.id] = group, place
                    if part.root is not part.dense:
                        self._absorbed.add(part.dense.id)

    def _worthwhile(self, parts: list[_Part], users: dict[int, list[Expr]]) -> bool:
        for part in parts:
            for user in users[part.root.id]:
                if not _moves_one(user):
                    label = user.op_name if isinstance(user, Call) else type(user).__name__
                    for other in parts:
                        self._ctx.remark(
                            other.dense,
                            f"not combined with {len(parts) - 1} layers of the same data: "
                            f"{label} follows, and would not fuse through a slice",
                        )
                    return False
        return True

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        found = self._by_root.get(old.id)
        if found is None:
            return old if old.id in self._absorbed else new
        group, place = found
        if group.combined is None:
            group.combined = self._combine(group.parts)
        begin = sum(p.units for p in group.parts[:place])
        axis = old.tensor.rank - 1
        end = begin + group.parts[place].units
        return get_op("slice")(group.combined, begin=(begin,), end=(end,), axes=(axis,))

    def _combine(self, parts: list[_Part]) -> Expr:
        """Returns the product with all weights, plus all biases."""
        first = parts[0].dense
        layers = [n for p in parts for n in dict.fromkeys((p.root, p.dense, p.dense.args[1]))]
        with self.covers(*layers):
            weights = _beside([p.dense.args[1] for p in parts], first)
            result: Expr = first.with_args((self.memo[first.args[0].id], weights))
            biases = [_vector(p) for p in parts if p.bias is not None]
            if biases:
                result = get_op("add")(result, get_op("concatenate")(*biases, axis=0))
        self._ctx.remark(first, f"combined with {len(parts) - 1} layers of the same data")
        return result


def _beside(weights: Sequence[Expr], layer: Call) -> Constant:
    """Returns the weights of several layers as one lazy constant."""
    found = [w for w in weights if isinstance(w, Constant)]
    assert len(found) == len(weights), "layers with constant weights"
    axis = layer.attrs.weight_layout.index("N")
    shape = list(found[0].tensor.concrete)
    shape[axis] = sum(w.tensor.concrete[axis] for w in found)
    type_ = found[0].tensor.with_(shape=tuple(shape))
    return Constant.lazy(type_, lambda: np.concatenate([w.data for w in found], axis=axis))


def _vector(part: _Part) -> Expr:
    """Returns a part's bias as a vector of its units."""
    assert part.bias is not None
    if part.bias.tensor.shape == (part.units,):
        return part.bias
    if part.bias.tensor.size == 1:
        return get_op("broadcast_to")(get_op("reshape")(part.bias, shape=(1,)), shape=(part.units,))
    return get_op("reshape")(part.bias, shape=(part.units,))


def _part(node: Expr, users: dict[int, list[Expr]]) -> _Part | None:
    """Returns the dense layer with constant weight, and its bias, that end at a node."""
    if not isinstance(node, Call) or node.op_name != "nn.dense":
        return None
    if not isinstance(node.args[1], Constant) or node.attrs.weight_layout not in ("NK", "KN"):
        return None
    if not isinstance(node.tensor.shape[-1], int):
        return None
    using = users.get(node.id, [])
    if len(using) == 1 and isinstance(using[0], Call) and using[0].op_name == "add":
        add = using[0]
        bias = add.args[1] if add.args[0] is node else add.args[0]
        if isinstance(bias, Constant) and add.type == node.type and _per_unit(bias, node):
            return _Part(node, add, bias)
    return _Part(node, node, None)


def _moves_one(user: Expr) -> bool:
    """Whether a call only moves the elements of its operand. A slice fuses into such a call, but
    not into arithmetic that has fused into a product.
    """
    return isinstance(user, Call) and len(user.args) == 1 and bool(moved_operands(user))


def _per_unit(bias: Constant, dense: Call) -> bool:
    shape = bias.tensor.shape
    return bias.tensor.size == 1 or (
        bias.tensor.size == dense.tensor.shape[-1] and shape[-1] == bias.tensor.size
    )
