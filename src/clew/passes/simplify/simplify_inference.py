"""SimplifyInference: expands operators that have a simpler form in inference than in training."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.expand import expand
from clew.patterns import Match, is_op, rule, wildcard
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class SimplifyInference(Pass):
    """Expands operators declared `simplify_inference` by their own `decompose`; removes identities.

    Batch norm with known statistics is a multiply and an add per channel, and dropout is the
    identity. FoldConstant then computes the factors, and FoldScaleAxis moves them into weights.

    Before: `%2 = nn.batch_norm(%1, gamma, beta, mean, var, epsilon=1e-5)`
    After:  `%6 = multiply(%1, scale)`, `%7 = add(%6, shift)` with `scale` and `shift` computed
    from the four parameters.

    Preconditions: none. Non-goals: operators worth a dedicated kernel (softmax, layer norm), which
    may declare a `decompose` but not `simplify_inference`.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = Exactness(
        "none",
        "batch norm becomes a scale and a shift",
        "none: others do so, too",
    )

    def run(self, module: Module, ctx: PassContext) -> Module:
        return expand(module, _declared, identity)


_x = wildcard()


@rule(is_op("identity")(_x), EXACT)
def identity(found: Match) -> Expr | None:
    """Replaces the identity, as which dropout is imported, by its operand."""
    return found[_x]


def _declared(call: Expr) -> bool:
    return isinstance(call, Call) and isinstance(call.op, Op) and call.op.simplify_inference
