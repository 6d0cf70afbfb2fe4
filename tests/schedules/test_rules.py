"""Schedule rules: how they are ordered, what they are told about kernels, and what they are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import schedules, te
from clew.cli.tracing import _choices
from clew.ir.dims import SymDim
from clew.loop.interpret import interpret
from clew.loop.ir import loops
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.machine.target import Target, target_of
from clew.ops.registry import get_op
from clew.schedules import (
    RULES,
    Match,
    Rule,
    Settings,
    TailMatch,
    Work,
    schedule_kernel,
)
from clew.schedules.demands import PRODUCTS, REDUCES, TAILED
from clew.schedules.registry import Registry
from clew.schedules.rules.matmul import Matmul
from clew.support.errors import ScheduleError
from clew.te import roles

FOLDER = Path(schedules.__file__).parent
# The number of a tensor's axes, or a stage's name, compared with a literal.
RANKS = re.compile(r"len\((?:[\w.\[\]\"]*\.)?(?:shape|axes|indices)\)\s*(?:[=!]=|<=?|>=?)\s*[3-9]")
NAMES = re.compile(r"\.(?:name|stage|anchor)\s*[=!]=\s*[\"']|[\"']nn\.|_RANK\b")


def test_every_file_of_rules_holds_one_of_the_list() -> None:
    files = {f.stem for f in (FOLDER / "rules").glob("*.py")} - {"__init__"}
    modules = {type(rule).__module__.rpartition(".")[2] for rule in RULES}
    assert files == modules == {rule.name for rule in RULES}


def test_rules_know_kernels_by_roles_not_by_ranks_and_names() -> None:
    assert RANKS.search("if len(info.store.buffer.shape) == 5:")  # as rules did before
    assert RANKS.search("if len(shape) == 5:")
    assert NAMES.search('info.name == "conv"')
    for file in FOLDER.rglob("*.py"):
        for line in file.read_text().splitlines():
            assert not RANKS.search(line), f"{file}: {line}"
            assert not NAMES.search(line), f"{file}: {line}"


@pytest.mark.parametrize("name", ["cpu-avx2", "cpu-avx512", "cpu-neon"])
def test_a_plain_volume_is_no_blocked_image(name: str) -> None:
    """A plain 3-D convolution has five axes, too, and its last one may be narrow."""
    target = target_of(name)
    width = target.vector_lanes("f32")
    x = te.placeholder((1, 3, 4, 5, width + 2), "f32", "x")
    w = te.placeholder((2, 3, 3, 3, 3), "f32", "w")
    op = get_op("nn.conv3d")
    assert op.compute is not None
    y = op.compute(x, w)
    assert isinstance(y, te.Tensor)
    nest = lower("volume", [x, w], [y])
    plan = schedule_kernel(nest, target)
    assert "conv" not in plan.rules
    assert RULES.find("root", Work.whole(Schedule(nest)), target, only="conv") is None
    draw = np.random.default_rng(0)
    arrays = [draw.integers(-4, 5, b.shape).astype("f4") for b in nest.inputs]
    (value,) = interpret(plan.schedule.finished(), arrays)
    (expected,) = interpret(nest, arrays)
    np.testing.assert_array_equal(value, expected)


def test_roles_come_from_layouts_and_from_operators() -> None:
    assert roles.of_layout("NCHW8c") == ("batch", "block", "line", "pixel", "lane")
    assert roles.of_layout("NCDHW") == ("batch", "channel", "frame", "line", "pixel")
    assert roles.of_layout("OIHW8i8o") == ()
    image = te.compute((1, 2, 3, 4, 8), lambda *i: te.as_scalar(0.0), layout="NCHW8c")
    assert [a.role for a in image.axes] == list(roles.of_layout("NCHW8c"))
    assert [a.role for a in te.compute((3,), lambda i: i * 1.0).axes] == [""]
    assert te.reduce_axis(3, "k", roles.TAP).role == "tap"


# ---------------------------------------------------------------------------------- the registry


class Twice(Rule[TailMatch]):
    """Products of matrices again: as Matmul, with other demands."""

    name = "twice"
    demands = (REDUCES, TAILED, PRODUCTS, schedules.Demand("always", lambda work, target: True))

    def match(self, work: Work, target: Target) -> TailMatch | None:
        return Matmul().match(work, target)

    def choices(self, match: TailMatch) -> schedules.Space:
        return Matmul().choices(match)  # type: ignore[arg-type]

    def schedule(self, match: TailMatch, settings: Settings) -> Schedule:
        return Matmul().schedule(match, settings)  # type: ignore[arg-type]


class Same(Twice):
    """With the demands of Matmul."""

    name = "same"
    demands = Matmul.demands


class Tied(Twice):
    """With as many demands as another rule, but others."""

    name = "tied"
    demands = (*Twice.demands[:3], schedules.Demand("ever", lambda work, target: True))


def product(rows: int = 12, columns: int = 64) -> Any:
    x, w = te.placeholder((rows, 8), "f32", "x"), te.placeholder((8, columns), "f32", "w")
    k = te.reduce_axis(8, "k", roles.DEPTH)
    y = te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")
    return lower("product", [x, w], [y])


def test_the_rule_that_demands_more_has_a_kernel() -> None:
    nest, target = product(), target_of("cpu-avx2")
    assert schedule_kernel(nest, target).rules == ("matmul",)
    rules = RULES.extended([Twice()])
    assert schedule_kernel(nest, target, rules).rules == ("twice",)
    assert "twice" not in RULES
    assert RULES.matching("root", Work.whole(Schedule(nest)), target)[0] == "matmul"


def test_ties_are_errors() -> None:
    with pytest.raises(ScheduleError, match=r"S060.*matmul and same have the same demands"):
        RULES.extended([Same()])
    with pytest.raises(ScheduleError, match=r"S060.*two rules have the name twice"):
        Registry([Twice(), Twice()])
    rules = RULES.extended([Twice(), Tied()])
    with pytest.raises(ScheduleError, match=r"S064.*(tied and twice|twice and tied) both match y"):
        schedule_kernel(product(), target_of("cpu-avx2"), rules)


def test_a_schedule_is_a_pure_function_of_match_and_settings() -> None:
    target, rule = target_of("cpu-avx512"), RULES["matmul"]
    match = rule.match(Work.whole(Schedule(product())), target)
    assert isinstance(match, Match)
    before = match.start.text
    settings = rule.choices(match).default
    first, second = (rule.schedule(match, settings) for _ in range(2))
    assert first.text == second.text != before == match.start.text
    other = rule.schedule(match, Settings({**settings, "rows": 3}))
    assert other.text != first.text


MODULE = """
clew 1
def @main(%x: f32[12, 8], %w: f32[8, 64]) -> (f32[12, 64],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // project:MatMul#0
  %1 = (%0,)
  return %1
}
"""


def test_a_user_s_rule_takes_part_in_a_compilation() -> None:
    module = clew.parse(MODULE)
    (kernel,) = clew.compile(module, extend=[Twice()]).kernels
    assert kernel.rules == ("twice",)
    (plain,) = clew.compile(module).kernels
    assert plain.rules == ("matmul",)
    (reduced,) = clew.compile(clew.parse(MODULE.replace("nn.matmul(%x, %w)", "nn.relu(%x)")
        .replace("f32[12, 64],", "f32[12, 8],")), extend=[Twice()]).kernels  # fmt: skip
    assert reduced.rules == ("elementwise",)  # it is left to clew where the rule does not match


class Eager(Twice):
    """Attempts a step that is never legal."""

    name = "eager"

    def schedule(self, match: TailMatch, settings: Settings) -> Schedule:
        schedule = super().schedule(match, settings)
        schedule.attempt(lambda: schedule.unroll("absent"))
        return schedule


def test_a_decision_lists_the_steps_that_were_refused() -> None:
    (kernel,) = clew.compile(clew.parse(MODULE), extend=[Eager()]).kernels
    (decision,) = kernel.choices
    (refusal,) = decision.refused
    assert str(refusal) == f"unroll(loop='absent'): {kernel.name} has no loop 'absent'"
    assert f"  left out {refusal}" in list(_choices(kernel))
    assert kernel.schedule.refusals == [refusal]


def test_no_rule_hides_why_a_step_was_refused() -> None:
    for file in FOLDER.rglob("*.py"):
        assert "suppress(" not in file.read_text(), f"{file}: use Schedule.attempt"


@pytest.mark.parametrize(
    ("op", "axes", "lines"),
    [
        ((0, 2, 1, 3), "i0+i1", "i2"),  # 2 heads of m positions each: divided by m per position
        ((0, 1, 2, 3), "", ""),  # a copy walks through memory as one loop
    ],
)
def test_an_axis_of_free_size_stays_a_loop_where_it_would_be_a_divisor(
    op: tuple[int, ...], axes: str, lines: str
) -> None:
    batch, length = SymDim.symbol("b"), SymDim.symbol("m")
    x = te.placeholder((batch, length, 2, 32), "f32", "x")
    shape = tuple(x.shape[n] for n in op)
    y = te.compute(shape, lambda *i: x[tuple(i[op.index(n)] for n in range(4))] * 2.0, "y")
    nest = schedule_kernel(lower("copy", [x], [y]), target_of("cpu")).schedule.nest
    parallel = [loop.name for loop in loops(nest.body) if loop.kind == "parallel"]
    assert parallel == ([f"y.{axes}", f"y.{lines}"] if lines else parallel[:1])
    text = print_nest(nest).text
    inside = text[text.index("vector") :]
    assert "% m" not in inside
    assert "// m" not in inside
