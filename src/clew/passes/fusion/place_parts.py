"""PlaceParts: computes the parts of concatenations in place."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from clew.ir.expr import Call, Constant, Expr, Function, If, TupleGetItem, Var, While
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, replaces
from clew.ir.visit import post_order
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.fusion.views import (
    is_kernel,
    is_view,
    part_offsets,
    place_of,
    whole,
    worthwhile,
)
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class PlaceParts(Pass):
    """Ensures that for each concatenation outside kernels, a kernel computes every part and can
    write the part into its place in the result.

    A kernel's result can lie in only one concatenation, which may be a part of another. A separate
    kernel copies parts that are inputs or constants, lie in another concatenation, occur twice, or
    are computed on the other side of a host step. If that would copy most of the result, the
    concatenation becomes one kernel. A concatenation that begins with all the parts of another
    begins with that concatenation instead.

    Before:
        %3 = fn[conv2d](...); %4 = concatenate(%3, %x, axis=1)
    After:
        %3 = fn[conv2d](...); %5 = fn[copy](%x); %4 = concatenate(%3, %5, axis=1)

    Preconditions: runs after FuseOps; no later pass changes kernels or their order. Non-goals:
    parts that are not contiguous in the result.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Placer(ctx).rewrite_module(module)


@dataclass
class _Plan:
    """The decision about a concatenation: its parts and which are copied, or one kernel."""

    parts: list[Expr]
    copied: list[bool] = field(default_factory=list)
    kernel: bool = False


class _Placer(Rewriter):
    of_function = ("_plans",)

    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx
        self._plans: dict[int, _Plan] = {}

    def enter(self, function: Function) -> None:
        self._plans = _Places(function, self._ctx).plans

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        plan = self._plans.get(old.id)
        if plan is None:
            return new
        if plan.kernel:
            return _as_kernel(old, list(new.args), "concatenate")
        parts = [self.memo[p.id] for p in plan.parts]
        made = [_copied(p) if c else p for p, c in zip(parts, plan.copied, strict=True)]
        same = [a.id for a in made] == [a.id for a in new.args]
        return new if same else old.with_args(made)


def _copied(part: Expr) -> Expr:
    return _as_kernel(get_op("identity")(part), [part], "copy")


def _as_kernel(call: Call, args: list[Expr], name: str) -> Call:
    """Returns a call of a kernel that computes `call` on `args`."""
    distinct = list({a.id: a for a in args}.values())
    params = {a.id: Var(f"p{n}", a.type) for n, a in enumerate(distinct)}
    body = call.with_args([params[a.id] for a in args])
    replaces(call, body)
    function = Function(list(params.values()), body, {"primitive": True, "name": name})
    return Call(function, distinct)


class _Places:
    """Decides every concatenation of a function's body, producers first."""

    def __init__(self, function: Function, ctx: PassContext) -> None:
        self._ctx = ctx
        self.plans: dict[int, _Plan] = {}
        self._segment: dict[int, int] = {}
        self._taken: set[tuple[int, int]] = set()
        # Trie of concatenations by their parts: maps the number of a list without its last part,
        # and that part, to the number of the list. Numbers in `_whole` are complete concatenations.
        self._lists: dict[tuple[int, int], int] = {}
        self._whole: dict[int, Call] = {}
        segment = 0
        for node in post_order(function.body):
            if isinstance(node, (If, While)) or (isinstance(node, Call) and _on_host(node)):
                segment += 1
            self._segment[node.id] = segment
            if isinstance(node, Call) and part_offsets(node) is not None:
                self._decide(node)

    def _decide(self, call: Call) -> None:
        parts = self._with_shared_beginning(call)
        placed, seen, reasons = [], set[tuple[int, int]](), dict[str, str]()
        for part in parts:
            base = whole(part)
            reason = self._unfit(base, call)
            if not reason and place_of(base) in seen:
                reason = "it occurs twice"
            seen.add(place_of(base))
            placed.append(not reason)
            if reason:
                reasons[_label(base)] = reason
        trial = call if parts == list(call.args) else call.with_args(parts)
        if not worthwhile(trial, placed):
            told = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            self._ctx.remark(call, f"concatenate is copied: {told}")
            self.plans[call.id] = _Plan(list(call.args), kernel=True)
            return
        for name, why in reasons.items():
            self._ctx.remark(call, f"{name} is copied into the concatenation: {why}")
        self._taken.update(
            place_of(whole(p)) for p, here in zip(parts, placed, strict=True) if here
        )
        self.plans[call.id] = _Plan(parts, [not here for here in placed])
        self._whole[self._number(call)] = call

    def _unfit(self, base: Expr, call: Call) -> str:
        """Returns why a value cannot be computed in its place in a concatenation; "" if it can."""
        node = base.value if isinstance(base, TupleGetItem) else base
        if isinstance(node, Var):
            return "it is an input"
        if isinstance(node, Constant):
            return "it is a constant"
        if not isinstance(node, Call) or _on_host(node):
            return "no kernel computes it"
        plan = self.plans.get(node.id)
        if plan is None and not isinstance(node.op, Function):
            return "it is a view of another value"
        if place_of(base) in self._taken:
            return "it lies in another concatenation"
        if self._segment[node.id] != self._segment[call.id]:
            return "a host step runs in between"
        return ""

    # --- lists of parts with a common prefix ---

    def _with_shared_beginning(self, call: Call) -> list[Expr]:
        """Returns the parts; a prefix equal to all parts of another concatenation becomes that
        one.
        """
        number, found, length = _no_parts(call), None, 0
        for count, part in enumerate(call.args[:-1], 1):
            following = self._lists.get((number, part.id))
            if following is None:
                break
            number = following
            if number in self._whole:
                found, length = self._whole[number], count
        return [found, *call.args[length:]] if found is not None else list(call.args)

    def _number(self, call: Call) -> int:
        number = _no_parts(call)
        for part in call.args:
            number = self._lists.setdefault((number, part.id), len(self._lists) + 1)
        return number


def _no_parts(call: Call) -> int:
    """Returns the number of the empty list of parts along a concatenation's axis."""
    return -1 - int(call.attrs.axis % call.tensor.rank)


def _on_host(call: Call) -> bool:
    """Whether a call of a fused graph runs between native segments."""
    if isinstance(call.op, Function):
        return not is_kernel(call.op)
    return not (isinstance(call.op, Op) and (is_view(call) or part_offsets(call) is not None))


def _label(node: Expr) -> str:
    if isinstance(node, Call):
        return node.op_name
    return getattr(node, "name", "") or type(node).__name__.lower()
