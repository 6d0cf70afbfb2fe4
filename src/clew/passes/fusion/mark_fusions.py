"""MarkFusions: marks operators of a user's fusion as a region, which persists through all
passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.regions import enter_region
from clew.ir.rewrite import Rewriter
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.patterns import Match, Pattern, explain, find_all
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, InputError, UnsupportedError
from clew.support.shown import counted, indented

MODES = ("stack", "melt")
Mode = Literal["stack", "melt"]


@dataclass(frozen=True, eq=False)
class Fusion:
    """A pattern whose match becomes one kernel.

    `stack` runs its stages one after the other; `melt` computes them at tiles of the result.
    `schedule` replaces clew's own schedule: a function of the kernel's `Schedule` and the target,
    or recorded steps. `check` may reject a match. Compilation fails with the reason if a fusion is
    not legal or if the pattern matches nothing in the model; with `required=False`, a remark states
    the reason instead, and the operators are fused as usual.
    """

    name: str
    pattern: Pattern
    mode: Mode
    schedule: Callable[..., Any] | Sequence[str] | None = None
    check: Callable[[Match], Any] | None = None
    required: bool = True

    def __str__(self) -> str:
        return f"{self.name}:{self.mode}"

    __repr__ = __str__

    def accepts(self, match: Match) -> bool:
        """Whether a match is to become one kernel."""
        return self.check is None or self.check(match) is not False


def fusion(
    pattern: Pattern,
    mode: Mode = "stack",
    *,
    schedule: Callable[..., Any] | Sequence[str] | None = None,
    required: bool = True,
) -> Callable[[Callable[[Match], Any]], Fusion]:
    """Decorator: makes a `Fusion` of a function of a match; the function's name is the fusion's.
    The function returns False to leave a match alone.

    ```python
    @clew.fusion(block, mode="stack")
    def inception_block(found): ...


    compiled = clew.compile(model, extend=[inception_block])
    ```

    Errors: I080 for an unknown mode.
    """
    if mode not in MODES:
        raise InputError("I080", f"unknown mode {mode!r}", hint=f"it is {' or '.join(MODES)}")

    def make(check: Callable[[Match], Any]) -> Fusion:
        return Fusion(check.__name__, pattern, mode, schedule, check, required)

    return make


@dataclass(frozen=True)
class MarkFusions(Pass):
    """Marks the operators that users' fusions match, before any other pass changes them.

    Before: `%0 = exp(%x); %1 = sum(%0, axes=[1])`
    After:  the same, `%0` and `%1` in the region `mine/0`

    A matched call of a composite function (`clew.patterns.partition`) puts the operators inside it
    into the region, so that a composite is fused by its name.

    An operator is in at most one region. Earlier fusions take precedence, and so do matches earlier
    in the graph. Non-goals: deciding whether a fusion is legal (FuseRegions does).
    """

    opt_level: ClassVar[int] = 0
    exactness: ClassVar[Exactness] = EXACT

    fusions: tuple[Fusion, ...] = ()

    @property
    def is_builtin(self) -> bool:
        return not self.fusions

    def run(self, module: Module, ctx: PassContext) -> Module:
        marker = _Marker(self.fusions, ctx)
        new = marker.rewrite_module(module)
        for fusion_ in self.fusions:
            marker.tell(fusion_, module)
        return new


class _Marker(Rewriter):
    def __init__(self, fusions: Sequence[Fusion], ctx: PassContext) -> None:
        super().__init__()
        self._fusions = fusions
        self._ctx = ctx
        self._regions: dict[int, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}
        # By fusion, the regions that took operators it matches.
        self._lost: dict[str, list[str]] = {}
        self._declined: set[str] = set()

    def tell(self, wanted: Fusion, module: Module) -> None:
        """Reports why a fusion has no region."""
        if self._counts.get(wanted.name) or wanted.name in self._declined:
            return
        lost = self._lost.get(wanted.name)
        if lost:
            places = counted(len(lost), "place")
            others = ", ".join(dict.fromkeys(region.rpartition("/")[0] for region in lost))
            text = f"the fusion {wanted.name} matches {places}, all taken earlier by {others}"
            if wanted.required:
                hint = "where fusions overlap, the one listed first takes precedence"
                self._ctx.unmet(ClewWarning("I305", text, hint=hint))
            return
        self._ctx.remark(module.main.body, f"the fusion {wanted.name} matches nothing")
        if wanted.required:
            self._ctx.unmet(
                UnsupportedError(
                    "U030",
                    f"the fusion {wanted.name} is required and matches nothing in the model",
                    hint="required=False makes it optional; nearest match:\n"
                    + indented(str(explain(wanted.pattern, module))),
                )
            )

    def enter(self, function: Function) -> None:
        for fusion_ in self._fusions:
            for match in find_all(fusion_.pattern, function):
                self._match(fusion_, match)

    def _match(self, wanted: Fusion, match: Match) -> None:
        calls = [n for n in match.nodes if isinstance(n, Call) and _is_marked(n)]
        taken = next((n for n in calls if n.id in self._regions), None)
        if taken is not None:
            region = self._regions[taken.id][0]
            self._lost.setdefault(wanted.name, []).append(region)
            self._ctx.remark(match.root, f"not fused as {wanted.name}: part of it is in {region}")
            return
        if not calls:  # such as a pattern of a tuple: nothing to put into a kernel
            return
        if not wanted.accepts(match):
            self._declined.add(wanted.name)
            self._ctx.remark(match.root, f"not fused as {wanted.name}: its check rejected it")
            return
        number = self._counts.get(wanted.name, 0)
        self._counts[wanted.name] = number + 1
        for node in calls:
            self._regions[node.id] = f"{wanted.name}/{number}", wanted.mode

    def rewrite_call(self, old: Call, new: Call) -> Call:
        found = self._regions.get(old.id)
        if found is None:
            return new
        if isinstance(new.op, Function):
            return Call(_Inside(*found).rewrite_function(new.op), new.args, new.attrs)
        return enter_region(new, *found)


class _Inside(Rewriter):
    """Marks all operators of a function. Each call of the function is in a separate region."""

    def __init__(self, region: str, mode: str) -> None:
        super().__init__()
        self._found = region, mode

    def rewrite_call(self, old: Call, new: Call) -> Call:
        return enter_region(new, *self._found) if isinstance(new.op, Op) else new


def _is_marked(call: Call) -> bool:
    """Whether the operators of a call become part of a region: its own, or those of a function."""
    return isinstance(call.op, Op) or (isinstance(call.op, Function) and not call.op.is_primitive)
