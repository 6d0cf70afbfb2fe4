"""CanonicalizeOps: rewrites equivalent forms of a computation to one form."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.module import Module
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.canonical_blocks import BLOCK_RULES
from clew.passes.simplify.canonical_rules import RULES
from clew.patterns import Rule, RuleRewriter
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class CanonicalizeOps(Pass):
    """Rewrites to the operators that later passes and schedules recognize.

    - `nn.matmul` with a constant matrix becomes `nn.dense`.
    - Constant operands of commutative operators come second; `x - c` becomes `x + (-c)`.
    - `mean` over an image becomes `nn.global_avg_pool2d`.
    - `nn.max_pool2d` over a long window becomes one along lines and one across them.
    - Zeros added around an image become the padding of the convolution that reads it.
    - `scatter_nd` to all positions of a box, the form in which exporters write an assignment to a
      slice, becomes `pad` and `where`.
    - Blocks that exporters decompose become one operator again: `nn.gelu` (erf and tanh forms),
      `nn.silu`, `nn.hard_swish`, `nn.mish`, `nn.softmax`, `nn.layer_norm`, `nn.rms_norm`.

    Before:
        %2 = sigmoid(%1); %3 = multiply(%1, %2); %4 = nn.matmul(%3, weight)
    After:
        %5 = nn.silu(%1); %6 = nn.dense(%5, weight, weight_layout="KN")

    Preconditions: equal subexpressions are one node (EliminateCommonSubexpr), and powers and
    quotients have their simple forms (SimplifyExpr). Non-goals: bit-exactness of the recognized
    blocks.
    """

    opt_level: ClassVar[int] = 2

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (*BLOCK_RULES, *RULES)

    def run(self, module: Module, ctx: PassContext) -> Module:
        return RuleRewriter(self.rules).rewrite_module(module)
