"""SimplifyExpr: removes operators that do nothing, cancel each other, or have a cheaper equal
form.
"""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Constant, Expr, Function, If
from clew.ir.inline import inlined
from clew.ir.module import Module
from clew.ir.rewrite import replaces
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.known_conditions import CONDITIONS
from clew.passes.simplify.simplify_inference import identity
from clew.passes.simplify.simplify_rules import RULES
from clew.patterns import Rule, RuleRewriter
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class SimplifyExpr(Pass):
    """Applies identities that hold for every input, NaN, infinities and signs of zeros included.

    - No effect: `identity`, `x * 1`, `x / 1`, `pow(x, 1)`, `x + 0` of integers, `x + (-0)` and
      `x - 0` of floats, a cast to the same dtype, a reshape, broadcast, transpose, pad, slice, tile
      or concatenation that changes nothing.
    - Two merged into one: reshape of reshape, transpose of transpose, slice of slice, clip of clip,
      relu of relu, negative of negative, cast of a lossless cast.
    - Cheaper form: `x / c` as `x * (1/c)` if that is exact, `pow` by 2 and -1, by 0.5 and -0.5 of
      values that are never negative, `1 / x`, `1 / sqrt(x)`, `softmax(x + 0)` as `softmax(x)`, a
      transpose that moves only axes of size 1 as a reshape.
    - Sizes as values: one element of `shape_of` as an `arange` of one number.
    - Constant condition: `where` and `If`, `x and true`, `x or false`, and comparisons of integers
      with a number beyond the bounds that `arange` gives them.

    Before: `%2 = reshape(%1, shape=[6])`, `%3 = reshape(%2, shape=[2, 3])`, `%4 = multiply(%3, 1)`
    After:  `%5 = reshape(%1, shape=[2, 3])`

    Preconditions: none. Non-goals: `x * 0` (NaN and infinities matter), `x + 0` of floats (-0 + 0
    is 0) and reassociation.
    """

    opt_level: ClassVar[int] = 2

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (identity, *RULES, *CONDITIONS)

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Simplifier(self.rules).rewrite_module(module)


class _Simplifier(RuleRewriter):
    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        """Returns the branch of an `If` whose condition is constant, over its arguments."""
        if not isinstance(new, If) or not isinstance(new.cond, Constant):
            return new
        branch = new.then if bool(new.cond.data.reshape(-1)[0]) else new.orelse
        return self._inlined(branch, new.args) if branch.body.type == new.type else new

    def _inlined(self, function: Function, args: tuple[Expr, ...]) -> Expr:
        """Returns the function's body over arguments."""

        def copied(node: Expr, new: Expr) -> None:
            before = self.originals(node)
            if before:
                replaces(before[0].first, new)

        return inlined(
            function,
            args,
            building=lambda node: self.covers(*self.originals(node)),
            copied=copied,
        )
