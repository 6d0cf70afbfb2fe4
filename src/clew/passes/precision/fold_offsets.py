"""FoldOffsets: merges a bias, rounding terms and a zero point into one constant."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import users
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.integer_bounds import IntegerBounds
from clew.passes.precision.integer_operands import SUM, Array, known_values
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass

_FRACTION: Final = 31  # bits of a factor's fraction
_MOST: Final = 1 << 30  # bound of a sum and of its bias
_MOST_OFFSET: Final = 1 << 61  # bound of the constant without the bias: the total fits in 64 bits
_MOST_TOTAL: Final = 1 << 62  # bound of the constant with the bias
_NONE: Final = np.array(0, object)


@dataclass(frozen=True)
class FoldOffsets(Pass):
    """Turns a fixed-point product into one multiplication, one addition and one shift. The added
    constant includes a bias, the rounding terms and a zero point.

    Before:
        %1 = scale_fixed(add(%sum, bias), factor, shift, bounded=true)
        %2 = clip(add(%1, zero), min=zero, max=127)
    After:
        %1 = rescale(%sum, factor, bias * factor + rounding + zero * 2**(31 + shift), shift - 1)
        %2 = clip(%1, min=zero, max=127)

    A product that is rounded twice rounds ties of negative numbers down, but the constant would
    round them up. `rescale` therefore replaces it only if it cannot be negative, or if the `clip`
    hides negative results, as that of a fused ReLU does. Elsewhere `rescale_away` compares the sum
    with its limit, `-bias`.

    Preconditions: runs after constants are folded. Non-goals: `i64` sums, and factors less than
    2**30, which only scales near 0 have.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        # Products whose results are clipped come first: their zero point and limit are known.
        for root in ("clip", "scale_fixed"):
            module = _Folder(root).rewrite_module(module)
        return module


class _Folder(Rewriter):
    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self._bounds = IntegerBounds()
        self._users: dict[int, int] = {}

    def enter(self, function: Function) -> None:
        self._users.update((node, len(found)) for node, found in users(function).items())

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != self._root or new.tensor.dtype != SUM:
            return new
        if self._root == "scale_fixed":
            found = self._folded(old, new, _NONE, None)
            return new if found is None else found
        before, scaled, zero = self._added(old.args[0], new.args[0])
        if not isinstance(scaled, Call) or scaled.op_name != "scale_fixed":
            return new
        if not isinstance(before, Call) or self._users.get(before.id) != 1:
            return new
        with self.covers(old, old.args[0]):
            found = self._folded(before, scaled, zero, new.attrs.min)
            return new if found is None else new.with_args([found])

    def _folded(self, old: Call, new: Call, zero: Array, least: float | None) -> Expr | None:
        """Returns a product plus a zero point, of which numbers below `least` do not matter; None
        if it cannot be folded.
        """
        parameters = [known_values(each) for each in new.args[1:]]
        if new.args[0].tensor.dtype != SUM or any(each is None for each in parameters):
            return None
        factor, shift = (np.asarray(each).astype(object) for each in parameters)
        total, value, bias = self._added(old.args[0], new.args[0])
        ends = self._bounds.of(old.args[0])
        bounded = new.attrs.bounded or (ends is not None and max(map(abs, ends)) < _MOST)
        if not bounded or np.any(abs(bias) > _MOST):
            return None
        up = new.attrs.once or (ends is not None and ends[0] >= 0)
        up = up or (least is not None and bool(np.all(zero <= least)))
        half = 0 if new.attrs.once else 1 << (_FRACTION - 1)
        rounding = half + np.where(shift >= 1, 1 << (_FRACTION - 1 + shift), 0)
        offset = np.asarray(rounding + zero * (1 << (_FRACTION + shift)))
        if np.any(abs(offset) > _MOST_OFFSET):
            return None
        offset = np.asarray(offset + bias * factor)
        with self.covers(old, total):
            if up and np.all(shift >= 1):
                numbers = Constant(offset.astype(np.int64)), Constant(_i32(shift - 1))
                return get_op("rescale")(value, new.args[1], *numbers)
            if new.attrs.once or np.any(factor < _MOST) or np.any(shift >= _FRACTION):
                return None
            if np.any(abs(zero) << shift > _MOST // 2) or np.any(abs(2 * offset) > _MOST_TOTAL):
                return None
            below = Constant(_i32(2 * factor - (1 << 32)))
            limit = Constant(_i32(np.where(shift >= 1, -bias, -(1 << _FRACTION))))
            doubled = Constant(np.asarray(2 * offset).astype(np.int64))
            return get_op("rescale_away")(value, below, doubled, limit, Constant(_i32(shift)))

    def _added(self, old: Expr, new: Expr) -> tuple[Expr, Expr, Array]:
        """Returns a value without the constants added to it, in the old and in the new graph, and
        the sum of these constants as Python integers, which cannot overflow.
        """
        found: Any = np.array(0, object)
        while isinstance(new, Call) and self._users.get(old.id) == 1:
            part = _constant_part(new)
            if part is None:
                break
            n, constant = part
            found = found + constant
            old, new = old.children[n], new.args[n]
        return old, new, np.asarray(found)


def _constant_part(value: Call) -> tuple[int, Array] | None:
    """Returns the position of an operand, and the constant that `value` adds to it; None if the
    value is not the sum of an operand and a constant.
    """
    sign = {"add": 1, "subtract": -1}.get(value.op_name)
    if sign is None:
        return None
    for n in (0, 1) if sign > 0 else (0,):
        constant = known_values(value.args[1 - n])
        if constant is not None and value.args[n].tensor.shape == value.tensor.shape:
            return n, np.asarray(constant.astype(object) * sign)
    return None


def _i32(numbers: Any) -> Array:
    return np.asarray(numbers).astype(np.int32)
