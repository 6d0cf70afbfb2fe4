"""Whatever primitives are applied to a nest, it computes what it did, or the primitive refuses."""

from __future__ import annotations

from computations import KINDS, draw_step, plain, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clew.loop.interpret import interpret
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.support.errors import ScheduleError


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(KINDS)), m=st.integers(1, 5), n=st.integers(1, 7), data=st.data()
)
def test_any_sequence_keeps_the_result(kind: str, m: int, n: int, data: st.DataObject) -> None:
    nest, arrays, expected = plain(kind, m, n)
    schedule = Schedule(nest)
    for _ in range(data.draw(st.integers(1, 6))):
        name, args = draw_step(data.draw, schedule)
        try:
            schedule.apply(name, **args)
        except ScheduleError:
            continue
    steps = [str(s) for s in schedule.steps]
    assert same(interpret(schedule.nest, arrays), expected), (steps, str(schedule))
    assert same(interpret(schedule.finished(), arrays), expected), (steps, str(schedule))
    again = Schedule.replay(nest, steps)
    assert print_nest(again.finished()).text == print_nest(schedule.finished()).text
