"""FuseRegions: makes each region marked by a user's fusion one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from clew.ir.expr import Call, Expr, Function, If, While
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece, returns_to, schedulable, whole
from clew.ir.regions import regions_of
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order, users
from clew.ops.registry import Op, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.passes.fusion.fusion_groups import Grouper, stays_inside
from clew.passes.fusion.mark_fusions import Fusion
from clew.passes.fusion.views import is_view, left_in_place
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, UnsupportedError
from clew.te.analysis import Kind

_SHOWN: Final = 4
_UNBOUNDED: Final = 1 << 30
# Passes insert this before a region's first operator; operators outside may read it as well.
_MOVED: Final = "layout_transform"


@dataclass(frozen=True)
class FuseRegions(Pass):
    """Makes a kernel of each region: an inline primitive function with one result for each value
    that is read outside the region.

    A region holds the nodes that passes built for the operators its fusion matched. Views at its
    borders, and a concatenation at its end whose parts can be computed in place, need no kernel and
    stay outside. An operand in another layout stays outside if others read it, too. `stack` kernels
    keep the groups that FuseOps would form of their operators (`stages`, one number for each
    operator in order).

    Before:
        %1 = nn.conv2d(%0, w); %2 = nn.relu(%1); %3 = nn.conv2d(%2, v)   // fusion block/0
    After:
        %4 = fn[block](%0, w, v) with fusion="stack", stages=[0, 0, 1] { ... }

    A region that cannot be one kernel (it holds host work, or values leave it and come back) is an
    error with the reason, U020, unless its fusion is optional.

    Preconditions: runs just before FuseOps. Non-goals: choosing loops.
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    fusions: tuple[Fusion, ...] = ()
    # The pass that fuses the remaining operators; it shows which fusions the regions prevent.
    rest: Pass | None = None

    @property
    def is_builtin(self) -> bool:
        return not self.fusions

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _RegionFuser({f.name: f for f in self.fusions}, ctx).rewrite_module(module)

    def review(self, module: Module, new: Module, ctx: PassContext) -> None:
        if self.rest is not None:
            _tell_cost(module, new, self.rest, ctx)


def _tell_cost(module: Module, new: Module, rest: Pass, ctx: PassContext) -> None:
    """Reports regions that increase the number of kernels, and the fusions of other operators that
    they prevent.
    """
    quiet = PassContext(ctx.target, ctx.opt_level)
    before, after = _kernels(rest.run(module, quiet)), _kernels(rest.run(new, quiet))
    if len(after) <= len(before):
        return
    made = [set(layers) for _, layers in after]
    split = [
        layers
        for _, layers in before
        if len(layers) > 1 and not any(found >= set(layers) for found in made)
    ]
    names = dict.fromkeys(name for name, _ in _kernels(new))
    text = f"{', '.join(names)}: {len(before)} kernels become {len(after)}"
    if split:
        shown = "; ".join(" + ".join(_some(layers)) for layers in split[:_SHOWN])
        more = f"; and {len(split) - _SHOWN} more" if len(split) > _SHOWN else ""
        text += f"; these can no longer share a kernel: {shown}{more}"
    ctx.remark(module.main.body, text)
    hint = "widen or narrow the fusion's pattern, or leave it out"
    ctx.unmet(ClewWarning("I306", f"fusions make more kernels than they save: {text}", hint=hint))


def _kernels(module: Module) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the name and layers of each kernel of a fused module."""
    roots = [function for _, function in module]
    found = []
    for node in post_order(roots, into_functions=True):
        called = node.op if isinstance(node, Call) else None
        if isinstance(called, Function) and called.is_primitive:
            inside = [n for n in post_order(called.body) if isinstance(n, Call)]
            layers = dict.fromkeys(la for n in inside for la in n.layers)
            found.append((str(called.attrs.get("name", "kernel")), tuple(layers)))
    return found


def _some(layers: Sequence[str]) -> Sequence[str]:
    return layers if len(layers) <= _SHOWN else [*layers[: _SHOWN - 1], "...", layers[-1]]


class _RegionFuser(Rewriter):
    """Gives each function of a module a separate outliner."""

    def __init__(self, fusions: Mapping[str, Fusion], ctx: PassContext) -> None:
        super().__init__()
        self._fusions = fusions
        self._ctx = ctx

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive:
            return function
        pieces = _Regions(function, self._fusions, self._ctx).pieces()
        return Outliner(pieces, self._stays, self.rewrite_function).rewrite_function(function)

    def _stays(self, argument: Expr, user: Expr) -> bool:
        return isinstance(user, Call) and stays_inside(argument, user, self._ctx.kind(user))


class _Regions:
    """Finds the regions of one function's body that become kernels."""

    def __init__(self, function: Function, fusions: Mapping[str, Fusion], ctx: PassContext) -> None:
        self._function = function
        self._fusions = fusions
        self._ctx = ctx
        self._users = users(function)

    def pieces(self) -> list[Piece]:
        """Returns the legal regions in graph order.

        Errors: U020 for a required region that is not legal.
        """
        regions: dict[str, list[Expr]] = {}
        for node in post_order(self._function.body):
            # A node that a pass built for operators of several regions belongs to the first region.
            ours = [r for r in regions_of(node) if r.rpartition("/")[0] in self._fusions]
            if ours and isinstance(node, (Call, If, While)):
                regions.setdefault(ours[0], []).append(node)
        found: list[Piece] = []
        for region, nodes in regions.items():
            fusion = self._fusions[region.rpartition("/")[0]]
            reason = self._host_work(nodes)
            members = self._peeled([n for n in nodes if isinstance(n, Call)])
            if not reason and not members:
                reason = "no computation of it remains"
            piece = whole(self._function, members)
            reason = reason or self._illegal(piece, found)
            reason = reason or (self._results(piece) if fusion.mode == "melt" else "")
            if not reason:
                found.append(Piece(piece.members, self._attrs(fusion)))
                continue
            if fusion.required:
                layers = ", ".join(dict.fromkeys(la for n in nodes for la in n.layers))
                raise UnsupportedError(
                    "U020",
                    f"{region} cannot be one kernel: {reason}",
                    hint="narrow the pattern, or pass required=False to fuse these as usual",
                    layer=layers,
                )
            self._ctx.remark(nodes[-1], f"not fused as {region}: {reason}")
        return found

    def _host_work(self, nodes: Iterable[Expr]) -> str:
        for node in nodes:
            if not isinstance(node, Call):
                return f"{_name(node)} is control flow"
            if not isinstance(node.op, Op) or node.op.compute is None or runs_on_host(node):
                return f"{_name(node)} has no tensor form and runs outside of kernels"
        return ""

    def _peeled(self, calls: Sequence[Call]) -> list[Call]:
        """Returns the calls without those at the region's borders that need no kernel."""
        left = {c.id: c for c in calls}
        while True:
            for call in left.values():
                first = not any(a.id in left for a in call.args)
                last = not any(u.id in left for u in self._users.get(call.id, ()))
                shared = first and call.op_name == _MOVED and self._used_outside(call, left)
                placed = last and self._placed(call)
                if shared or placed or (is_view(call) and (first or last)):
                    del left[call.id]
                    break
            else:
                return list(left.values())

    def _used_outside(self, call: Call, inside: Mapping[int, Call]) -> bool:
        return any(u.id not in inside for u in self._users.get(call.id, ()))

    def _placed(self, call: Call) -> bool:
        return self._ctx.kind(call) is not Kind.ANCHOR and left_in_place(call, self._ctx)

    def _illegal(self, piece: Piece, others: Sequence[Piece]) -> str:
        if schedulable(self._function, [*others, piece]) is not None:
            return ""
        path = returns_to(self._function, piece)
        if path is None:
            return "it and another region would each have to run before the other"
        way = " -> ".join(_name(n) for n in path)
        return f"values leave it and come back: {way}"

    def _results(self, piece: Piece) -> str:
        """Returns why a piece cannot be melted: it has several results."""
        ids = piece.ids
        read = [
            m
            for m in piece.members
            if m is self._function.body or any(u.id not in ids for u in self._users.get(m.id, ()))
        ]
        if len(read) <= 1:
            return ""
        names = ", ".join(_name(m) for m in read)
        return f"{len(read)} values leave it ({names}); melt tiles one, mode='stack' takes all"

    def _attrs(self, fusion: Fusion) -> Callable[[Function], Mapping[str, object]]:
        def attrs(function: Function) -> Mapping[str, object]:
            found = {"primitive": True, "name": fusion.name, "fusion": fusion.mode}
            return found | ({"stages": self._groups(function)} if fusion.mode == "stack" else {})

        return attrs

    def _groups(self, function: Function) -> tuple[int, ...]:
        """Returns, for each operator, the number of the group that FuseOps would assign."""
        groups = Grouper(function, self._ctx, _UNBOUNDED, _UNBOUNDED).groups()
        members = [n for n in post_order(function) if isinstance(n, Call)]
        keys = [id(groups[m.id]) if m.id in groups else m.id for m in members]
        last = {key: position for position, key in enumerate(keys)}
        numbers = {key: n for n, key in enumerate(sorted(last, key=last.__getitem__))}
        return tuple(numbers[key] for key in keys)


def _name(node: Expr) -> str:
    kind = node.op_name if isinstance(node, Call) else type(node).__name__
    layers = ", ".join(node.layers[:2])
    return f"{kind} ({layers})" if layers else kind
