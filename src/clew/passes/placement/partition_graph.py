"""PartitionGraph: turns annotated functions into the regions that backends compile."""

from __future__ import annotations

from typing import ClassVar, Final

from clew.ir.expr import Call, Expr, Function
from clew.ir.inline import inlined
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.visit import post_order
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass

_MOST_NAMED: Final = 4


@dataclass(frozen=True)
class PartitionGraph(Pass):
    """Turns each function with the attribute `backend` into a region. It becomes primitive, so
    later passes leave it unchanged and the program runs it as one step, and it is named after its
    operators.

    Composite functions that `MergeComposite` made become plain operators again, inside regions and
    outside. The backend finds them in the region when it compiles it.

    Before:
        %4 = fn(%0) with backend="npu" { ... }
    After:
        %4 = fn[matmul_relu](%0) with primitive=True, name="matmul_relu", backend="npu" { ... }

    Preconditions: annotated operators, joined or not. Non-goals: functions without a backend.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = Exactness(
        "none", "what the backend of a region computes", "`backends=`, which names the backend"
    )

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Partitioner().rewrite_module(module)


class _Partitioner(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        called = new.op
        if isinstance(called, Function) and "of" in called.attrs:
            return inlined(called, new.args, building=building_for, copied=replaces)
        return new

    def leave(self, function: Function, new: Function) -> Function:
        if not new.backend or new.is_primitive:
            return new
        attrs = {"primitive": True, "name": _name(new), "backend": new.backend}
        return Function(new.params, new.body, attrs)


def _name(region: Function) -> str:
    calls = [n for n in post_order(region.body) if isinstance(n, Call)]
    names = [c.op_name.rpartition(".")[2] for c in calls]
    more = ["etc"] if len(names) > _MOST_NAMED else []
    return "_".join([*names[:_MOST_NAMED], *more])
