"""Checks of a plan's control flow: on every path, all steps stay inside their buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind, LoopPlan, SegmentPlan

_COUNTER_BYTES = 8
_TRIPS_BYTES = 8


def check_flow(plan: SegmentPlan, limits: Mapping[BufferKind, Sequence[int]]) -> None:
    """Asserts that each step and loop is in the order once, that jumps neither leave the order nor
    enter or leave loops, that only the ends of iterations jump back, and that moved and copied data
    fits its destination. `limits` are the bytes of all buffers.
    """
    steps = [n for n in plan.order if isinstance(n, int)]
    if steps != list(range(len(plan.steps))):
        raise AssertionError("steps are not each in the order once")
    moving = 0
    for number, loop in enumerate(plan.loops):
        if loop.first != moving:
            raise AssertionError(f"loop {number}: moving buffers are not its own")
        if min((0, *loop.moving_bytes)) < 0:
            raise AssertionError(f"loop {number}: negative sizes")
        if loop.trips is not None and loop.trips < 0:
            raise AssertionError(f"loop {number}: negative iterations")
        moving += len(loop.moving_bytes)
    around, begins = _loops_around(plan)
    for place, entry in enumerate(plan.order):
        if isinstance(entry, int):
            continue
        where = f"{entry.kind.name} at {place}"
        if not 0 <= entry.target <= len(plan.order):
            raise AssertionError(f"{where}: jumps to {entry.target}")
        if entry.kind in (FlowKind.TEST, FlowKind.NEXT, FlowKind.UNLESS, FlowKind.JUMP):
            first = begins[entry.loop] if entry.kind is FlowKind.NEXT else place
            if first >= entry.target:
                raise AssertionError(f"{where}: jumps back to {entry.target}")
            if around[entry.target] != around[place]:
                raise AssertionError(f"{where}: jumps into or out of a loop")
        _check_arguments(plan, entry, limits, where)
        if entry.kind is FlowKind.BEGIN and plan.loops[entry.loop].grows and around[place]:
            raise AssertionError(f"{where}: a stack grows inside of a loop")


def _loops_around(plan: SegmentPlan) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns, for each position in the order and the one after the last, the loops that are active
    there, and the position at which each loop begins.
    """
    found: list[tuple[int, ...]] = []
    begins: list[int] = []
    inside: tuple[int, ...] = ()
    for place, entry in enumerate(plan.order):
        found.append(inside)
        if isinstance(entry, int):
            continue
        where = f"{entry.kind.name} at {place}"
        if entry.kind is FlowKind.BEGIN:
            if not entry.loop == len(begins) < len(plan.loops):
                raise AssertionError(f"{where}: loops out of order")
            begins.append(place)
            inside = (*inside, entry.loop)
        elif entry.kind in (FlowKind.TEST, FlowKind.NEXT):
            if inside[-1:] != (entry.loop,):
                raise AssertionError(f"{where}: not in its loop")
        elif entry.kind is FlowKind.END and entry.loop >= 0:
            if inside[-1:] != (entry.loop,):
                raise AssertionError(f"{where}: not in its loop")
            inside = inside[:-1]
    if inside:
        raise AssertionError("a loop has no end")
    if len(begins) != len(plan.loops):
        raise AssertionError("some loops never begin")
    return [*found, ()], begins


def _check_arguments(
    plan: SegmentPlan, entry: Flow, limits: Mapping[BufferKind, Sequence[int]], where: str
) -> None:
    def room(ref: BufferRef) -> int:
        return limits[ref.kind][ref.index] - ref.offset_bytes

    args = entry.args
    match entry.kind:
        case FlowKind.COPY:
            if len(args) != 2:
                raise AssertionError(where)
            if not 0 <= entry.size_bytes <= min(map(room, args)):
                raise AssertionError(f"{where}: no room")
        case FlowKind.UNLESS:
            if len(args) != 1:
                raise AssertionError(where)
            if room(args[0]) < 1:
                raise AssertionError(f"{where}: no condition")
        case FlowKind.BEGIN:
            loop = plan.loops[entry.loop]
            if len(args) != 1 + len(loop.moving_bytes):
                raise AssertionError(f"{where}: moves another number")
            _check_counter(args[0], room(args[0]), where)
            needed = _bytes_needed(loop)
            for ref, size in zip(args[1:], needed, strict=True):
                outer = ref.kind is not BufferKind.MOVING or ref.index < loop.first
                if not outer:
                    raise AssertionError(f"{where}: moves what it moves")
                if size > room(ref):
                    raise AssertionError(f"{where}: no room")
        case FlowKind.TEST | FlowKind.NEXT:
            _check_counter(args[0], room(args[0]), where)
            loop = plan.loops[entry.loop]
            decides = entry.kind is FlowKind.TEST and loop.trips is None
            if len(args) != 1 + decides:
                raise AssertionError(f"{where}: no condition")
            least = _TRIPS_BYTES if loop.reads_trips else 1
            if any(room(ref) < least for ref in args[1:]):
                raise AssertionError(f"{where}: no condition")


def _bytes_needed(loop: LoopPlan) -> list[int]:
    """Returns, for each moving buffer of a loop, the memory that it moves through."""
    states = len(loop.moving_bytes) - len(loop.rows_bytes)
    rows = [size * (1 if loop.trips is None else loop.trips) for size in loop.rows_bytes]
    return [*loop.moving_bytes[:states], *rows]


def check_stacks(plan: SegmentPlan) -> None:
    """Asserts that each output whose number of rows is unknown is a stack of exactly one loop, and
    that nothing else uses it.
    """
    stacks = [n for n, spec in enumerate(plan.outputs) if spec.is_stack]
    if not stacks and not any(loop.grows for loop in plan.loops):
        return
    found: list[int] = []
    for entry in plan.entries:
        args = entry.args
        if isinstance(entry, Flow) and entry.kind is FlowKind.END:  # reads and writes nothing
            continue
        if isinstance(entry, Flow) and entry.kind is FlowKind.BEGIN:
            loop = plan.loops[entry.loop]
            if loop.grows:
                args, rows = args[: -len(loop.rows_bytes)], args[-len(loop.rows_bytes) :]
                for ref, size in zip(rows, loop.rows_bytes, strict=True):
                    known = ref.kind is BufferKind.OUTPUT and ref.offset_bytes == 0
                    if not known:
                        raise AssertionError(
                            f"loop {entry.loop}: a stack that grows is not an output"
                        )
                    same = plan.outputs[ref.index].size_bytes == size
                    if not same:
                        raise AssertionError(f"loop {entry.loop}: rows of another size")
                    found.append(ref.index)
        taken = any(ref.kind is BufferKind.OUTPUT and ref.index in stacks for ref in args)
        if taken:
            raise AssertionError("a step uses a stack that grows")
    if sorted(found) != stacks:
        raise AssertionError("stacks that grow are not the outputs of unknown size")


def _check_counter(ref: BufferRef, room: int, where: str) -> None:
    if ref.kind is not BufferKind.ARENA:
        raise AssertionError(f"{where}: the counter is not in the arena")
    if room < _COUNTER_BYTES:
        raise AssertionError(f"{where}: no counter")
