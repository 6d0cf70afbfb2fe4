"""Checks of a plan's control flow: whatever it does, no step reads or writes outside its buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clew.runtime.plan import BufferKind, BufferRef, Flow, FlowKind, SegmentPlan

_COUNTER_BYTES = 8


def check_flow(plan: SegmentPlan, limits: Mapping[BufferKind, Sequence[int]]) -> None:
    """Asserts that steps and loops are each in the order once, that jumps stay inside it, and that
    what moves or is copied has room where it goes. `limits` are the bytes of all buffers.
    """

    def room(ref: BufferRef) -> int:
        return limits[ref.kind][ref.index] - ref.offset_bytes

    steps = [n for n in plan.order if isinstance(n, int)]
    assert steps == list(range(len(plan.steps))), "steps are not each in the order once"
    moving = 0
    for number, loop in enumerate(plan.loops):
        assert loop.first == moving, f"loop {number}: moving buffers are not its own"
        moving += len(loop.moving_bytes)
    began: list[int] = []
    open_loops: list[int] = []
    for place, entry in enumerate(plan.order):
        if isinstance(entry, int):
            continue
        where = f"{entry.kind.name} at {place}"
        assert 0 <= entry.target <= len(plan.order), f"{where}: jumps outside"
        match entry.kind:
            case FlowKind.COPY:
                assert len(entry.args) == 2, where
                assert all(entry.size_bytes <= room(ref) for ref in entry.args), f"{where}: no room"
            case FlowKind.UNLESS:
                assert len(entry.args) == 1, where
                assert room(entry.args[0]) >= 1, f"{where}: no condition"
            case FlowKind.BEGIN:
                assert entry.loop == len(began), f"{where}: loops out of order"
                began.append(place)
                open_loops.append(entry.loop)
                _check_begin(plan, entry, room(entry.args[0]), where)
                loop = plan.loops[entry.loop]
                for ref, size in zip(entry.args[1:], loop.moving_bytes, strict=True):
                    assert ref.kind is not BufferKind.MOVING or ref.index < loop.first, where
                    assert size <= room(ref), f"{where}: no room"
                rows = entry.args[len(entry.args) - len(loop.rows_bytes) :]
                for ref, size in zip(rows, loop.rows_bytes, strict=True):
                    assert loop.trips is not None, f"{where}: stacks of no known size"
                    assert size * loop.trips <= room(ref), f"{where}: no room for a stack"
            case FlowKind.TEST | FlowKind.TURN:
                assert open_loops[-1:] == [entry.loop], f"{where}: not in its loop"
                assert room(entry.args[0]) >= _COUNTER_BYTES, f"{where}: no counter"
                decides = entry.kind is FlowKind.TEST and plan.loops[entry.loop].trips is None
                assert len(entry.args) == 1 + decides, f"{where}: no condition"
            case FlowKind.END if entry.loop >= 0:
                assert open_loops.pop() == entry.loop, f"{where}: not in its loop"
    assert not open_loops, "a loop without an end"
    assert len(began) == len(plan.loops), "loops that never begin"


def _check_begin(plan: SegmentPlan, entry: Flow, counter: int, where: str) -> None:
    loop = plan.loops[entry.loop]
    assert entry.args[0].kind is BufferKind.ARENA, f"{where}: the counter is not in the arena"
    assert counter >= _COUNTER_BYTES, f"{where}: no counter"
    assert len(entry.args) == 1 + len(loop.moving_bytes), f"{where}: moves another number"
