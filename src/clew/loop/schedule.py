"""A schedule: a nest and the recorded primitives that shaped it; checked, replayable, undoable.

```python
s = Schedule(nest)
s.split(loop="mm.i", factor=12)
s.unroll(loop="mm.i.i")
print(s)  # the current nest
s.steps  # the recorded steps; Schedule.replay(nest, steps) repeats them
```
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from clew.ir.dims import exact_quotient
from clew.loop.affine import Simplifier
from clew.loop.ir import Nest, Scope, loops
from clew.loop.primitives import copies as _copies  # noqa: F401
from clew.loop.primitives import grid as _grid  # noqa: F401
from clew.loop.primitives import guards as _guards  # noqa: F401  registers primitives
from clew.loop.primitives import loops as _loops  # noqa: F401
from clew.loop.primitives import nontemporal as _nontemporal  # noqa: F401
from clew.loop.primitives import overlap as _overlap  # noqa: F401
from clew.loop.primitives import prefetch as _prefetch  # noqa: F401
from clew.loop.primitives import products as _products  # noqa: F401
from clew.loop.primitives import shapes as _shapes  # noqa: F401
from clew.loop.primitives import stages as _stages  # noqa: F401
from clew.loop.primitives import sums as _sums  # noqa: F401
from clew.loop.primitives.common import PRIMITIVES, Primitive, check_kinds, simplified
from clew.loop.printer import print_nest
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError, TextError
from clew.support.shown import Shown, counted

_LONGEST_STEP: Final = 10_000  # characters
_NO_PADDING: Final = "S026"


@dataclass(frozen=True)
class Step:
    """One primitive with its arguments; its text is `split(loop='mm.i', factor=12)`."""

    primitive: str
    args: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(f'{k}={v!r}' for k, v in self.args)})"

    def __repr__(self) -> str:
        return f"<Step {self}>"

    @staticmethod
    def parse(text: str) -> Step:
        """Returns the step that `text` represents.

        Errors: P020 if it is not a call with literal keyword arguments.
        """
        try:
            assert len(text) <= _LONGEST_STEP
            tree = ast.parse(text.strip(), mode="eval").body
            assert isinstance(tree, ast.Call)
            assert isinstance(tree.func, ast.Name)
            assert not tree.args
            assert all(k.arg for k in tree.keywords)
            args = tuple((str(k.arg), ast.literal_eval(k.value)) for k in tree.keywords)
        # Nested too deeply, also for the parser.
        except (SyntaxError, AssertionError, ValueError, RecursionError, MemoryError):
            raise TextError(
                "P020",
                f"not a schedule step: {text.strip()[:80]!r}",
                hint="write one primitive per line, as in split(loop='mm.i', factor=12)",
            ) from None
        return Step(tree.func.id, args)


@dataclass(frozen=True)
class Refusal:
    """A step that a rule would take where it is legal, and the reason why it was not."""

    step: Step
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Refusal {self}>"


@functools.lru_cache(maxsize=1 << 7)
def _signature(function: Primitive) -> inspect.Signature:
    """Returns the signature of a registered primitive."""
    return inspect.signature(function)


class Schedule(Shown):
    """Applies primitives to a nest one by one; each is checked for legality and recorded.

    `history[n]` is the nest before step n. `refusals` lists the steps that `attempt` left out.

    Errors of the primitives: S001 to S029; S030 for an unknown primitive, S031 for arguments it
    does not take.
    """

    def __init__(self, nest: Nest) -> None:
        self._simplifier = Simplifier()
        self.history: list[Nest] = [nest]
        self.steps: list[Step] = []
        self.refusals: list[Refusal] = []
        self._refusing: Step | None = None  # the step that is being checked

    def _about(self) -> str:
        return f"of {self.nest.name}, {counted(len(self.steps), 'step')}"

    def copy(self) -> Schedule:
        """Returns an independent copy."""
        made = Schedule.__new__(type(self))
        made._simplifier = self._simplifier
        made.history, made.steps = list(self.history), list(self.steps)
        made.refusals, made._refusing = list(self.refusals), None
        return made

    @property
    def nest(self) -> Nest:
        """The current nest."""
        return self.history[-1]

    def apply(self, name: str, **args: Any) -> Schedule:
        """Applies a primitive by name.

        Errors: the primitive's errors; S030, S031.
        """
        self._refusing = None
        function = PRIMITIVES.get(name)
        if function is None:
            raise ScheduleError(
                "S030",
                f"unknown primitive {name!r}",
                hint=f"primitives: {', '.join(sorted(PRIMITIVES))}",
            )
        signature = _signature(function)
        try:
            signature.bind(self.nest, self._simplifier, **args)
        except TypeError as error:
            taken = ", ".join(list(signature.parameters)[2:])
            raise ScheduleError("S031", f"{name}: {error}", hint=f"parameters: {taken}") from None
        step = self._refusing = Step(name, tuple(args.items()))
        new = function(self.nest, self._simplifier, **args)
        check_kinds(new)
        self.history.append(new)
        self.steps.append(step)
        self._refusing = None
        return self

    def attempt(self, steps: Callable[[], object]) -> str | None:
        """Takes steps that need not be legal, up to the first that is not. Returns the reason for
        that one; None if all were taken. `refusals` records the reason, unless it is that there is
        no padding to skip.
        """
        try:
            steps()
        except ScheduleError as error:
            if self._refusing is None:
                raise  # such as for a primitive that does not exist
            if error.code != _NO_PADDING:
                self.refusals.append(Refusal(self._refusing, error.message))
            return error.message
        return None

    def undo(self) -> Schedule:
        """Undoes the last step."""
        if self.steps:
            self.steps.pop()
            self.history.pop()
        return self

    @property
    def text(self) -> str:
        """The steps as text, one per line, for `replay` and `clew.schedule_for`."""
        return "\n".join(map(str, self.steps))

    @staticmethod
    def replay(nest: Nest, steps: str | Sequence[Step | str]) -> Schedule:
        """Returns a schedule of `nest` after applying recorded steps, or their text."""
        if isinstance(steps, str):
            steps = [line for line in steps.splitlines() if line.strip()]
        schedule = Schedule(nest)
        for step in steps:
            parsed = Step.parse(step) if isinstance(step, str) else step
            schedule.apply(parsed.primitive, **dict(parsed.args))
        return schedule

    def finished(self) -> Nest:
        """Returns the nest simplified for code generation."""
        nest = simplified(self.nest, self._simplifier)
        # The simplifier's caches are larger than the nests, and few schedules continue from here.
        self._simplifier = Simplifier()
        return nest

    def extent(self, loop: str) -> int:
        """Returns a loop's number of iterations at typical sizes, the largest if it has copies; 0
        if there is no such loop.
        """
        return max((n.typical for n in loops(self.nest.body) if n.name == loop), default=0)

    def is_multiple(self, loop: str, number: int) -> bool:
        """Whether the iterations of a loop, and of its copies, are a multiple of a number for all
        sizes.
        """
        sizes = (n.size for n in loops(self.nest.body) if n.name == loop)
        return all(exact_quotient(size, number) is not None for size in sizes)

    def is_static(self, loop: str) -> bool:
        """Whether the number of iterations of a loop and its copies is known before the run."""
        return all(isinstance(n.size, int) for n in loops(self.nest.body) if n.name == loop)

    def __str__(self) -> str:
        return print_nest(self.nest).text

    # --- the primitives, with their signatures ---

    def split(
        self, loop: str, factor: int, tail: str = "peel", inside: int = 0, rest: int = 0
    ) -> tuple[str, str]:
        """Splits a loop; returns the names of the outer and the inner loop."""
        some = {name: n for name, n in (("inside", inside), ("rest", rest)) if n}
        self.apply("split", loop=loop, factor=factor, tail=tail, **some)
        return f"{loop}.o", f"{loop}.i"

    def fuse(self, outer: str, inner: str) -> str:
        """Fuses two nested loops; returns the name of the new loop."""
        self.apply("fuse", outer=outer, inner=inner)
        return f"{outer}+{inner.rsplit('.', 1)[-1]}"

    def reorder(self, *order: str) -> Schedule:
        """Reorders directly nested loops."""
        return self.apply("reorder", order=tuple(order))

    def vectorize(self, loop: str) -> Schedule:
        """Vectorizes a loop."""
        return self.apply("vectorize", loop=loop)

    def unroll(self, loop: str, *, guarded: bool = True) -> Schedule:
        """Unrolls a loop; with `guarded=False`, only its copies without guards inside."""
        return self.apply("unroll", loop=loop, **({} if guarded else {"guarded": False}))

    def dot(self, loop: str) -> Schedule:
        """Turns a loop into one dot product in each lane of the vector loop around it."""
        return self.apply("dot", loop=loop)

    def tensorize(
        self, stage: str, rows: str, columns: str, depth: str, within: str = ""
    ) -> Schedule:
        """Computes a stage's sum of products, or a part of it, with a matrix unit."""
        return self.apply(
            "tensorize", stage=stage, rows=rows, columns=columns, depth=depth, within=within
        )

    def parallel(self, loop: str, *, repeat: bool = False) -> Schedule:
        """Distributes an outermost loop, or a loop directly inside it, over threads. With `repeat`,
        each thread repeats the statements before the inner loop.
        """
        return self.apply("parallel", loop=loop, **({"repeat": True} if repeat else {}))

    def bind(self, loop: str, axis: str) -> Schedule:
        """Binds a loop to an axis of a device's grid, such as `block.x` or `thread.y`."""
        return self.apply("bind", loop=loop, axis=axis)

    def hoist(self, loop: str) -> Schedule:
        """Joins the peeled copies of an outermost loop."""
        return self.apply("hoist", loop=loop)

    def prefetch(
        self,
        buffer: str,
        ahead: str,
        at: str,
        tiles: str = "",
        distance: int = 1,
        *,
        of_size: bool = False,
    ) -> Schedule:
        """Prefetches reads of the next iteration of `ahead`, or of a later one, one share per
        iteration of `at`. `tiles` is the loop over tiles around `at`, for numbers of tiles that
        only a run knows. With `of_size`, what an iteration reads may have a free size.
        """
        named: dict[str, Any] = {"tiles": tiles} if tiles else {}
        named |= {"distance": distance} if distance > 1 else {}
        named |= {"of_size": True} if of_size else {}
        return self.apply("prefetch", buffer=buffer, ahead=ahead, at=at, **named)

    def nontemporal(self, stage: str) -> Schedule:
        """Makes the stores of a stage bypass the caches."""
        return self.apply("nontemporal", stage=stage)

    def overlap(
        self, stage: str, ahead: str, at: str, lines: int = 0, distance: int = 0
    ) -> Schedule:
        """Computes a stage for the next iteration of `ahead`, one share per iteration of `at`."""
        return self.apply(
            "overlap", stage=stage, ahead=ahead, at=at, lines=lines, distance=distance
        )

    def partition(self, loop: str, *, clamps: bool = False) -> Schedule:
        """Splits a loop where the conditions on it begin and cease to hold. With `clamps`, also
        where `min` and `max` of positions change their operand.
        """
        return self.apply("partition", loop=loop, **({"clamps": True} if clamps else {}))

    def check_whole(self, loop: str) -> Schedule:
        """See `primitives.check_whole`."""
        return self.apply("check_whole", loop=loop)

    def widen(self, loop: str, by: int) -> Schedule:
        """Appends `by` iterations that do nothing to a loop."""
        return self.apply("widen", loop=loop, by=by)

    def share_guards(self, loop: str) -> Schedule:
        """Merges equal guards and moves them outward."""
        return self.apply("share_guards", loop=loop)

    def skip_padding(self, stage: str, lanes: str = "") -> Schedule:
        """Skips reductions of padding, except in lanes along a loop."""
        return self.apply("skip_padding", stage=stage, lanes=lanes)

    def flatten(self, *stages: str, first: int, count: int = 2) -> Schedule:
        """Merges axes that are contiguous in memory, in all of the stages."""
        return self.apply("flatten", stages=tuple(stages), first=first, count=count)

    def inline(self, stage: str) -> Schedule:
        """Computes a stage where it is read."""
        return self.apply("inline", stage=stage)

    def compute_at(
        self,
        stage: str,
        loop: str,
        scope: Scope = "scratch",
        align: int = 1,
        *,
        beyond: bool = False,
    ) -> Schedule:
        """Computes a stage inside a loop of its readers."""
        args: dict[str, Any] = {"align": align} if align > 1 else {}
        if beyond:
            args["beyond"] = True
        return self.apply("compute_at", stage=stage, loop=loop, scope=scope, **args)

    def cache_write(self, stage: str) -> str:
        """Computes an output in a separate buffer and copies it out; returns the copying stage's
        name.
        """
        self.apply("cache_write", stage=stage)
        return f"{stage}@out"

    def cache_read(self, stage: str, buffer: str, *axes: str, gap: int = 0) -> str:
        """Copies an input for a stage that reads it, with its own axes or those of the stage's
        loops `axes`, and a gap after each line; returns the copying stage's name.
        """
        more: dict[str, Any] = {"axes": axes} if axes else {}
        if gap:
            more["gap"] = gap
        self.apply("cache_read", stage=stage, buffer=buffer, **more)
        return f"{stage}@{buffer}"

    def sum_in_blocks(self, stage: str, loop: str) -> Schedule:
        """Adds up a stage in registers from zero in each iteration of a reduction loop."""
        return self.apply("sum_in_blocks", stage=stage, loop=loop)

    def hold_sums(self, stage: str, loop: str) -> Schedule:
        """Accumulates a stage of scratch memory in registers, per iteration of a tile loop."""
        return self.apply("hold_sums", stage=stage, loop=loop)

    def sum_parts(self, stage: str, loop: str) -> str:
        """Sums each iteration of a reduction loop separately; returns the name of the stage that
        adds up these parts.
        """
        self.apply("sum_parts", stage=stage, loop=loop)
        return f"{stage}@sum"

    def rfactor(self, stage: str, *lanes: str) -> Schedule:
        """Splits a reduction into partial results over its innermost loops."""
        return self.apply("rfactor", stage=stage, lanes=tuple(lanes))
