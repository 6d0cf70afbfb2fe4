"""MarkFusions: what a user wants in one kernel becomes a region, which lasts through all passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.regions import enter_region
from clew.ir.rewrite import Rewriter
from clew.ops.registry import Op
from clew.passes.base import Pass, PassContext
from clew.patterns import Match, Pattern, explain, find_all
from clew.support.errors import ClewWarning, InputError, UnsupportedError
from clew.support.shown import counted, indented

MODES = ("stack", "melt")
Mode = Literal["stack", "melt"]


@dataclass(frozen=True, eq=False)
class Fusion:
    """What `pattern` fits becomes one kernel.

    `stack` runs its stages one after the other; `melt` computes them at tiles of the result.
    `schedule` takes the place of clew's own choice: a function of the kernel's `Schedule` and the
    target, or recorded steps. `check` may turn a match down. Where a fusion is not legal, compiling
    fails with the reason, and likewise where the pattern fits nothing in the model; with
    `required=False` a remark says it, and the operators are fused as usual.
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
        """Whether a match is to be one kernel."""
        return self.check is None or self.check(match) is not False


def fusion(
    pattern: Pattern,
    mode: Mode = "stack",
    *,
    schedule: Callable[..., Any] | Sequence[str] | None = None,
    required: bool = True,
) -> Callable[[Callable[[Match], Any]], Fusion]:
    """Decorator: a function of a match, whose name is the fusion's, becomes a `Fusion`. It returns
    False where a match is to be left alone.

    ```python
    @clew.fusion(block, mode="stack")
    def inception_block(found): ...


    compiled = clew.compile(model, extend=[inception_block])
    ```

    Errors: I080 for a mode that there is not.
    """
    if mode not in MODES:
        raise InputError("I080", f"no fusion mode {mode!r}", hint=f"it is {' or '.join(MODES)}")

    def make(check: Callable[[Match], Any]) -> Fusion:
        return Fusion(check.__name__, pattern, mode, schedule, check, required)

    return make


@dataclass(frozen=True)
class MarkFusions(Pass):
    """Marks the operators that users' fusions fit, before any pass has changed them.

    Before: `%0 = exp(%x); %1 = sum(%0, axes=[1])`
    After:  the same, `%0` and `%1` in the region `mine/0`

    An operator is in one region at most: earlier fusions, and matches that come earlier in the
    graph, go first. Non-goals: deciding whether a fusion is legal (FuseRegions does).
    """

    opt_level: ClassVar[int] = 0

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
        # By fusion the regions that have what it fits, and whether its own check said no.
        self._lost: dict[str, list[str]] = {}
        self._declined: set[str] = set()

    def tell(self, wanted: Fusion, module: Module) -> None:
        """Says of a fusion that is nowhere why."""
        if self._counts.get(wanted.name) or wanted.name in self._declined:
            return
        lost = self._lost.get(wanted.name)
        if lost:
            places = counted(len(lost), "place")
            others = ", ".join(dict.fromkeys(region.rpartition("/")[0] for region in lost))
            text = f"the fusion {wanted.name} fits {places}, all taken by {others} before it"
            if wanted.required:
                hint = "of fusions that overlap the first one listed goes first"
                self._ctx.unmet(ClewWarning("I305", text, hint=hint))
            return
        self._ctx.remark(module.main.body, f"the fusion {wanted.name} fits nothing")
        if wanted.required:
            self._ctx.unmet(
                UnsupportedError(
                    "U030",
                    f"the fusion {wanted.name} is required and fits nothing in this model",
                    hint="required=False makes it optional; nearest to fitting:\n"
                    + indented(str(explain(wanted.pattern, module))),
                )
            )

    def enter(self, function: Function) -> None:
        for fusion_ in self._fusions:
            for match in find_all(fusion_.pattern, function):
                self._match(fusion_, match)

    def _match(self, wanted: Fusion, match: Match) -> None:
        calls = [n for n in match.nodes if isinstance(n, Call) and isinstance(n.op, Op)]
        taken = next((n for n in calls if n.id in self._regions), None)
        if taken is not None:
            region = self._regions[taken.id][0]
            self._lost.setdefault(wanted.name, []).append(region)
            self._ctx.remark(match.root, f"not fused as {wanted.name}: part of it is in {region}")
            return
        if not calls or not wanted.accepts(match):
            self._declined.add(wanted.name)
            self._ctx.remark(match.root, f"not fused as {wanted.name}: its check said no")
            return
        number = self._counts.get(wanted.name, 0)
        self._counts[wanted.name] = number + 1
        for node in calls:
            self._regions[node.id] = f"{wanted.name}/{number}", wanted.mode

    def rewrite_call(self, old: Call, new: Call) -> Call:
        found = self._regions.get(old.id)
        return new if found is None else enter_region(new, *found)
