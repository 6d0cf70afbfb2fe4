"""Schedules: what each primitive makes of a nest, what it refuses, and how steps are replayed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from computations import plain, same

from clew import te
from clew.loop.interpret import interpret
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule, Step
from clew.support.errors import ScheduleError, TextError


def _new(kind: str = "matmul", m: int = 6, n: int = 7) -> Schedule:
    return Schedule(plain(kind, m, n)[0])


def _registers(s: Schedule) -> None:
    s.split("out.j", 4, tail="guard")
    s.reorder("out.j.o", "out.i", "out.j.i")
    s.compute_at("product", "out.i", "register")
    s.unroll("product.j")
    s.vectorize("out.j.i")
    s.parallel("out.j.o")


def test_steps_replay_from_their_text() -> None:
    nest, arrays, expected = plain("matmul", 6, 7)
    schedule = Schedule(nest)
    _registers(schedule)
    text = [str(step) for step in schedule.steps]
    assert text[0] == "split(loop='out.j', factor=4, tail='guard')"
    again = Schedule.replay(nest, text)
    assert str(again) == str(schedule)
    assert [Step.parse(t) for t in text] == again.steps
    assert print_nest(again.finished()).text == print_nest(schedule.finished()).text
    assert same(interpret(again.finished(), arrays), expected)


def test_a_step_that_need_not_be_legal_returns_why_it_was_refused() -> None:
    schedule = _new()
    assert schedule.attempt(lambda: schedule.split("out.i", 4)) is None
    assert schedule.refusals == []

    def apart() -> None:
        schedule.split("out.j", 2)
        schedule.reorder("out.j.i", "product.k")

    reason = schedule.attempt(apart)
    assert reason is not None
    assert [s.primitive for s in schedule.steps] == ["split", "split"]  # up to the refused one
    (refusal,) = schedule.copy().refusals
    assert str(refusal) == f"reorder(order=('out.j.i', 'product.k')): {reason}"


def test_a_mistake_is_no_refusal_and_neither_is_padding_that_is_absent() -> None:
    schedule = _new()
    with pytest.raises(ScheduleError, match="unknown primitive"):
        schedule.attempt(lambda: schedule.apply("splt", loop="out.i"))
    with pytest.raises(ScheduleError, match="missing a required argument"):
        schedule.attempt(lambda: schedule.apply("split", loop="out.i", factr=2))
    assert "no padding" in str(schedule.attempt(lambda: schedule.skip_padding("product")))
    assert schedule.refusals == []


def test_undo_goes_back_step_by_step() -> None:
    schedule = _new()
    seen = [str(schedule)]
    schedule.split("out.i", 4)
    seen.append(str(schedule))
    schedule.reorder("out.j", "out.i.o")
    assert len(schedule.history) == 3
    for text in reversed(seen):
        assert str(schedule.undo()) == text
    assert str(schedule.undo()) == seen[0]
    assert not schedule.steps


def test_a_refused_step_changes_nothing() -> None:
    schedule = _new()
    before = str(schedule)
    with pytest.raises(ScheduleError):
        schedule.parallel("product.k")
    assert str(schedule) == before
    assert not schedule.steps


@pytest.mark.parametrize(
    ("tail", "lines"),
    [
        ("peel", ["for o in 1:", "for i in 4:", "for o in 1:", "for i in 2:"]),
        ("balance", ["for o in 2:", "for i in 3:"]),
        ("guard", ["for o in 2:", "for i in 4:", "if (((o * 4) + i) < 6):"]),
    ],
)  # fmt: skip
def test_split_by_a_factor_that_does_not_divide(tail: str, lines: list[str]) -> None:
    schedule = _new()
    schedule.split("out.i", 4, tail=tail)
    found = [line.strip() for line in str(schedule).splitlines() if "out.i." in line]
    assert [x.replace("out.i.", "") for x in found if x.endswith(":")] == lines


def test_names_of_what_primitives_make() -> None:
    schedule = _new()
    assert schedule.split("out.i", 2) == ("out.i.o", "out.i.i")
    assert schedule.fuse("out.i.o", "out.i.i") == "out.i.o+i"
    assert schedule.extent("out.i.o+i") == 6
    assert schedule.extent("nowhere") == 0
    assert _new("conv").cache_write("out") == "out@out"
    assert _new("matmul").cache_read("product", "a") == "product@a"


@pytest.mark.parametrize("scope", ["scratch", "workspace"])
@pytest.mark.parametrize(("m", "n"), [(6, 7), (5, 4), (1, 3)])
def test_a_copied_input_is_as_large_as_what_a_tile_reads(m: int, n: int, scope: str) -> None:
    nest, arrays, expected = plain("matmul", m, n)
    schedule = Schedule(nest)
    copy = schedule.cache_read("product", "b")
    schedule.split("product.j", 2, tail="guard")
    schedule.reorder("product.j.o", "product.i", "product.k", "product.j.i")
    schedule.compute_at(copy, "product.j.o", scope)
    assert same(interpret(schedule.finished(), arrays), expected)
    (line,) = [x for x in str(schedule).splitlines() if f" {copy}: " in x]
    depth = schedule.extent("product.k")
    assert f"{scope} {copy}: f32[{depth}, {min(n, 2)}]" in line
    assert f"{copy}[product.k, product.j.i]" in str(schedule)


def test_a_copy_has_the_axes_of_loops() -> None:
    nest, arrays, expected = plain("matmul", 4, 5)
    schedule = Schedule(nest)
    copy = schedule.cache_read("product", "b", "product.j", "product.k")
    depth = schedule.extent("product.k")
    assert f"{copy}: f32[5, {depth}]" in str(schedule)
    assert f"{copy}[product.j, product.k]" in str(schedule)
    assert same(interpret(schedule.finished(), arrays), expected)


@pytest.mark.parametrize("axes", [(), ("product.k", "product.j")])
def test_lines_of_a_copy_lie_apart(axes: tuple[str, ...]) -> None:
    nest, arrays, expected = plain("matmul", 4, 5)
    schedule = Schedule(nest)
    copy = schedule.cache_read("product", "b", *axes, gap=3)
    depth = schedule.extent("product.k")
    assert f"{copy}: f32[{depth}, 8]" in str(schedule)
    assert schedule.extent(f"{copy}.i1") == 5
    assert same(interpret(schedule.finished(), arrays), expected)
    again = Schedule.replay(nest, [str(step) for step in schedule.steps])
    assert str(again) == str(schedule)


def test_other_stages_read_an_input_that_is_copied_for_one() -> None:
    nest, arrays, expected = plain("matmul", 4, 5)
    schedule = Schedule(nest)
    copy = schedule.cache_read("product", "b")
    (tail,) = [line for line in str(schedule).splitlines() if line.strip().startswith("out[")]
    assert "b[0, out.j]" in tail
    assert copy not in tail
    assert same(interpret(schedule.finished(), arrays), expected)


def test_padding_is_skipped_outside_of_the_loops_it_does_not_depend_on() -> None:
    nest, arrays, expected = plain("windows", 6, 7)
    schedule = Schedule(nest)
    schedule.inline("padded")
    schedule.reorder("slid.r", "slid.h", "slid.s", "slid.v")
    schedule.skip_padding("slid", lanes="slid.v")
    text = [line.strip() for line in str(schedule).splitlines()]
    loops = text[text.index("for slid.r in 3:") :]
    asked = [line for line in loops if line.startswith("if ")]
    assert loops.index(asked[-1]) < loops.index("for slid.s in 3:")  # lines outside of columns
    assert "select" in "".join(loops)  # columns load zeros
    assert same(interpret(schedule.finished(), arrays), expected)


def test_partition_asks_at_the_edges_only() -> None:
    nest, arrays, expected = plain("windows", 6, 7)
    schedule = Schedule(nest)
    schedule.inline("padded")
    schedule.skip_padding("slid")
    schedule.partition("slid.h")
    schedule.partition("slid.v")
    text = print_nest(schedule.finished()).text
    lines = [line.strip() for line in text.splitlines() if "for slid.h" in line]
    assert lines[1:] == ["for slid.h in 1:", "for slid.h in 4:", "for slid.h in 1:"]
    middle = text.split("for slid.h in 4:")[1].split("for slid.h in 1:")[0]
    assert middle.count("if ") == 2  # at the left edge and at the right
    assert same(interpret(schedule.finished(), arrays), expected)


def test_whole_tiles_are_checked_once() -> None:
    nest, arrays, expected = plain("windows", 9, 10)
    schedule = Schedule(nest)
    schedule.inline("padded")
    schedule.check_whole("slid.v")
    text = print_nest(schedule.finished()).text
    inside, border = text.split("for slid.v in")[-1].split("if not(")
    assert "select" in border
    assert "select" not in inside
    assert same(interpret(schedule.finished(), arrays), expected)


def test_neighbors_under_one_condition_share_it() -> None:
    nest, arrays, expected = plain("windows", 7, 6)
    schedule = Schedule(nest)
    schedule.inline("padded")
    _, line = schedule.split("out.h", 4, tail="guard")
    schedule.compute_at("slid", line)
    asked = [text.strip() for text in str(schedule).splitlines() if text.strip().startswith("if ")]
    assert len(asked) == 3
    schedule.share_guards(line)
    lines = [text.strip() for text in str(schedule).splitlines()]
    assert sum(text.startswith("if ") for text in lines) == 1
    assert lines[lines.index(f"for {line} in 4:") + 1].startswith("if ")
    assert same(interpret(schedule.finished(), arrays), expected)


def test_a_wider_loop_skips_the_iterations_in_addition() -> None:
    nest, arrays, expected = plain("windows", 7, 6)
    schedule = Schedule(nest)
    schedule.widen("out.v", 3)
    assert "for out.v in 9:" in str(schedule)
    assert "if (out.v < 6):" in str(schedule)
    schedule.split(schedule.fuse("out.h", "out.v"), 4, tail="guard")
    assert same(interpret(schedule.finished(), arrays), expected)


@pytest.mark.parametrize(("by", "code"), [(0, "S004"), (2, "S006")])
def test_what_cannot_be_widened(by: int, code: str) -> None:
    schedule = Schedule(plain("windows", 7, 6)[0])
    if by:
        schedule.unroll("out.v")
    with pytest.raises(ScheduleError, match=code):
        schedule.widen("out.v", by)


def test_partition_leaves_a_loop_that_nothing_asks_about() -> None:
    schedule = _new()
    before = str(schedule)
    assert str(schedule.partition("product.i")) == before


def test_axes_that_follow_each_other_become_one() -> None:
    x, w = te.placeholder((2, 3, 4), "f32", "x"), te.placeholder((4, 5), "f32", "w")
    k = te.reduce_axis(4, "k")
    mm = te.compute((2, 3, 5), lambda i, h, j: te.sum(x[i, h, k] * w[k, j], k), "mm")
    out = te.compute((2, 3, 5), lambda i, h, j: mm[i, h, j] + w[0, j], "out")
    schedule = Schedule(lower("rows", [x, w], [out]))
    arrays = [np.arange(math.prod(s), dtype=np.float32).reshape(s) for s in ((2, 3, 4), (4, 5))]
    before = interpret(schedule.finished(), arrays)
    schedule.flatten("mm", "out", first=0)
    assert schedule.extent("mm.i+h") == schedule.extent("out.i+h") == 6
    assert [b.shape for b in (*schedule.nest.inputs, *schedule.nest.outputs)] == [
        (6, 4), (4, 5), (6, 5),
    ]  # fmt: skip
    (found,) = interpret(schedule.finished(), arrays)
    np.testing.assert_array_equal(found.reshape(2, 3, 5), before[0])
    with pytest.raises(ScheduleError):
        schedule.flatten("mm", "out", first=0)  # the operands have different columns


@pytest.mark.parametrize("loop", ["out.i", "doubled.i"])
def test_threads_do_not_share_what_overlap_fills_before(loop: str) -> None:
    """The first iteration's part is in the memory of one thread."""
    schedule = Schedule(plain("even", 5, 6)[0])
    schedule.compute_at("doubled", "out.i").overlap("doubled", "out.i", "out.j")
    with pytest.raises(ScheduleError, match=r"S009.*do not share doubled"):
        schedule.parallel(loop)


def test_overlap_needs_the_whole_stage_and_all_its_readers() -> None:
    schedule = Schedule(plain("even", 5, 4)[0])
    schedule.compute_at("doubled", "out.i").split("doubled.j", 3, "peel")
    with pytest.raises(ScheduleError, match=r"S032.*not first"):
        schedule.overlap("doubled", "out.i", "out.j")
    with pytest.raises(ScheduleError, match=r"S032.*not one loop nest"):
        schedule.overlap("doubled", "doubled.i", "doubled.j.i")
    schedule = Schedule(plain("even", 5, 4)[0]).compute_at("doubled", "out.i")
    schedule.split("doubled.j", 2)
    with pytest.raises(ScheduleError, match=r"S032.*outside"):
        schedule.overlap("doubled", "doubled.i", "doubled.j.i")


def test_overlap_of_a_stage_inside_loops_of_one_iteration() -> None:
    nest, arrays, expected = plain("even", 5, 6)
    schedule = Schedule(nest).compute_at("doubled", "out.i")
    schedule.split("doubled.j", 6)
    schedule.overlap("doubled", "out.i", "out.j")
    for found, wanted in zip(interpret(schedule.finished(), arrays), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_overlap_computes_a_stage_one_iteration_early() -> None:
    x = te.placeholder((5, 6), "f32", "x")
    doubled = te.compute((5, 6), lambda i, j: x[i, j] * 2.0, "doubled")
    out = te.compute((5, 6), lambda i, j: doubled[i, j] + 1.0, "out")
    array = np.arange(30, dtype=np.float32).reshape(5, 6)
    for at, shares in (("out.j.o", 2), ("out.j.i", 1)):
        schedule = Schedule(lower("early", [x], [out]))
        schedule.compute_at("doubled", "out.i")
        schedule.split("out.j", 2)
        schedule.overlap("doubled", "out.i", at, lines=1, distance=128)
        text = str(schedule)
        assert "scratch doubled: f32[2, 1, 6]" in text
        assert f"unroll doubled.j in {shares}" in text
        assert "min((out.i + 1), 4)" in text
        assert "doubled[(out.i % 2), 0, " in text
        assert "+ 32)]" in text  # asked for: 128 bytes on
        (found,) = interpret(schedule.finished(), [array])
        np.testing.assert_array_equal(found, array * 2 + 1)
        assert str(Schedule.replay(lower("early", [x], [out]), map(str, schedule.steps))) == text


_REFUSALS: list[tuple[str, str, str, Callable[[Schedule], object]]] = [
    ("S001", "matmul", "matmul has no loop 'out.z'", lambda s: s.unroll("out.z")),
    ("S002", "matmul", "'none' of matmul has no separate loops", lambda s: s.inline("none")),
    ("S003", "matmul", "no nest has all", lambda s: s.reorder("product.i", "out.j")),
    (
        "S003", "matmul", "not directly nested",
        lambda s: (s.compute_at("product", "out.i"), s.reorder("out.j", "out.i")),
    ),
    ("S003", "matmul", "not directly inside", lambda s: s.fuse("out.j", "out.i")),
    ("S004", "matmul", "factor is 0", lambda s: s.split("out.i", 0)),
    ("S005", "matmul", "tail is 'drop'", lambda s: s.split("out.i", 4, tail="drop")),
    ("S006", "matmul", "is already vector", lambda s: (s.vectorize("out.j"), s.split("out.j", 2))),
    ("S007", "matmul", "over 6 cannot be vectorized", lambda s: s.vectorize("out.i")),
    (
        "S007", "chain", "it contains loops",
        lambda s: (s.vectorize("out.j"), s.compute_at("clipped", "out.j")),
    ),
    ("S008", "matmul", "not an outermost loop", lambda s: s.parallel("out.j")),
    (
        "S008", "matmul", "would not be an outermost loop",
        lambda s: (s.parallel("out.i"), s.reorder("out.j", "out.i")),
    ),
    (
        "S009", "matmul", "write the same elements of product",
        lambda s: (s.reorder("product.k", "product.i"), s.parallel("product.k")),
    ),
    (
        "S010", "matmul", "copies of loop out.i.i differ",
        lambda s: (s.split("out.i", 4), s.reorder("out.i.i", "out.i.o"), s.hoist("out.i.i")),
    ),
    (
        "S011", "matmul", "a contiguous range",
        lambda s: (s.reorder("product.j", "product.k"), s.prefetch("b", "product.j", "product.k")),
    ),
    ("S011", "matmul", "does not walk over a", lambda s: s.prefetch("a", "product.j", "product.k")),
    ("S012", "matmul", "is not inside", lambda s: s.prefetch("b", "product.k", "product.i")),
    (
        "S012", "chain", "is not inside",
        lambda s: (s.compute_at("clipped", "out.i"), s.overlap("clipped", "out.i", "out.i")),
    ),
    ("S032", "matmul", "is not first", lambda s: s.overlap("product", "out.i", "out.j")),
    (
        "S032", "matmul", "is a reduction",
        lambda s: (
            s.compute_at("product", "out.i"), s.overlap("product", "out.i", "product.j"),
        ),
    ),
    ("S020", "chain", "already been changed", lambda s: (s.split("added.i", 2), s.inline("added"))),
    (
        "S020", "windows", "have already been changed",
        lambda s: (s.compute_at("padded", "slid.i"), s.inline("slid")),
    ),
    ("S021", "matmul", "is a reduction", lambda s: s.inline("product")),
    ("S022", "chain", "is an output", lambda s: s.inline("out")),
    ("S022", "chain", "is an output", lambda s: s.compute_at("out", "added.i")),
    ("S023", "chain", "read outside", lambda s: s.compute_at("added", "clipped.i")),
    (
        "S024", "chain", "is already copied out",
        lambda s: (s.cache_write("added"), s.cache_write("added")),
    ),
    (
        "S024", "matmul", "is already copied for stage",
        lambda s: (s.cache_read("product", "a"), s.cache_read("product", "a")),
    ),
    ("S004", "matmul", "gap", lambda s: s.cache_read("product", "a", gap=-1)),
    ("S034", "matmul", "reads no input", lambda s: s.cache_read("product", "c")),
    ("S034", "matmul", "reads no input", lambda s: s.cache_read("out", "a")),
    (
        "S035", "matmul", "does not read 'b' once",
        lambda s: s.cache_read("product", "b", "product.j"),
    ),
    (
        "S035", "matmul", "does not read 'b' once",
        lambda s: s.cache_read("product", "b", "product.k", "out.j"),
    ),
    ("S025", "matmul", "do not reduce", lambda s: s.rfactor("product", "product.j")),
    (
        "S025", "matmul", "do not reduce",
        lambda s: (
            s.reorder("product.k", "product.i", "product.j"), s.rfactor("product", "product.j"),
        ),
    ),
    ("S036", "matmul", "in registers", lambda s: s.sum_in_blocks("product", "product.k")),
    ("S036", "matmul", "does not contain just a sum", lambda s: s.hold_sums("product", "out.i")),
    (
        "S036", "matmul", "does not sum up stage 'product' in parts",
        lambda s: s.sum_parts("product", "product.k"),
    ),
    (
        "S006", "windows", "is already vector",
        lambda s: (s.vectorize("out.v"), s.partition("out.v")),
    ),
    ("S026", "windows", "reduces no padding", lambda s: s.skip_padding("slid")),
    (
        "S027", "windows", "padded is not walked along slid.h",
        lambda s: s.flatten("slid", "out", first=1),
    ),
    ("S027", "windows", "x is used by another stage", lambda s: s.flatten("out", first=1)),
    (
        "S027", "chain", "has already been changed",
        lambda s: (s.split("out.i", 2), s.flatten("out", first=0)),
    ),
    ("S030", "matmul", "unknown primitive 'melt'", lambda s: s.apply("melt", stage="out")),
    ("S031", "matmul", "missing a required argument", lambda s: s.apply("split", axis="out.i")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "kind", "message", "steps"),
    _REFUSALS,
    ids=[f"{code}-{message}" for code, _, message, _ in _REFUSALS],
)
def test_primitives_refuse(
    code: str, kind: str, message: str, steps: Callable[[Schedule], object]
) -> None:
    schedule = _new(kind)
    with pytest.raises(ScheduleError) as caught:
        steps(schedule)
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_step_that_is_no_call_is_refused() -> None:
    for text in ("split(", "x = 1", "split('out.i')", "split(loop=name)", "a.b(c=1)"):
        with pytest.raises(TextError) as caught:
            Step.parse(text)
        assert caught.value.code == "P020"


def test_a_part_of_a_stage_is_widened_to_whole_vectors() -> None:
    x = te.placeholder((3, 40), "f32", "x")
    line = te.compute((3, 72), lambda i, j: te.select(j >= 16, x[i, te.minimum(j - 16, 39)], 0.0),
                      "line")  # fmt: skip
    k = te.reduce_axis(5, "k")
    sums = te.compute((3, 40), lambda i, j: te.sum(line[i, j + k + 14], k), "sums")
    out = te.compute((3, 40), lambda i, j: sums[i, j] * 2.0, "out")
    nest = lower("near", [x], [out])
    arrays = [np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)]
    expected = interpret(nest, arrays)
    schedule = Schedule(nest)
    schedule.compute_at("sums", "out.j", "register")
    schedule.compute_at("line", "out.i", align=16)
    assert "line: f32[1, 64]" in str(schedule)  # 14 to 57 are read: 0 to 63
    assert same(interpret(schedule.finished(), arrays), expected)


@pytest.mark.parametrize("stored", [8, 7])
def test_a_part_may_extend_beyond_a_stage_that_loads_nothing_there(stored: int) -> None:
    x = te.placeholder((stored, 3), "f32", "x")
    k = te.reduce_axis(3, "k")
    sums = te.compute((7,), lambda i: te.sum(x[i, k], k), "sums")
    out = te.compute((7,), lambda i: sums[i] * 2.0, "out")
    arrays = [np.random.default_rng(0).standard_normal((stored, 3)).astype(np.float32)]
    nest = lower("beyond", [x], [out])
    schedule = Schedule(nest)
    tiles, _ = schedule.split("out.i", 4, tail="guard")
    schedule.compute_at("sums", tiles, beyond=True)
    guards = str(schedule).count("if ")
    assert guards == (1 if stored == 8 else 2)  # of the output; of the sums, too
    assert same(interpret(schedule.finished(), arrays), interpret(nest, arrays))
    assert str(Schedule.replay(nest, map(str, schedule.steps))) == str(schedule)


def test_partial_results_of_blocks_are_added_up() -> None:
    nest, arrays, expected = plain("rows", 5, 16)
    schedule = Schedule(nest)
    outer, inner = schedule.split("total.again", 4)
    schedule.rfactor("total", *schedule.split(inner, 2))
    schedule.sum_in_blocks("total", schedule.split(outer, 2)[0])
    assert same(interpret(schedule.finished(), arrays), expected)


@pytest.mark.parametrize(("m", "chunk"), [(6, 3), (5, 2), (4, 7)])
def test_a_tile_holds_the_sums_of_a_chunk(m: int, chunk: int) -> None:
    nest, arrays, expected = plain("matmul", m, 7)
    schedule = Schedule(nest)
    schedule.reorder("product.k", "product.i", "product.j")
    _, within = schedule.split("product.k", chunk)
    schedule.reorder("product.i", within, "product.j")
    tiles, row = schedule.split("product.i", 2)
    schedule.reorder(tiles, within, row, "product.j")
    schedule.hold_sums("product", tiles)
    for loop in (row, "product.j"):
        schedule.unroll(loop)
    assert "product.held[" in str(schedule)
    assert same(interpret(schedule.finished(), arrays), expected)


@pytest.mark.parametrize(("n", "part"), [(6, 2), (7, 3), (5, 1), (4, 9)])
def test_parts_of_a_sum_are_added_up_by_a_stage(n: int, part: int) -> None:
    nest, arrays, expected = plain("matmul", 5, n)
    schedule = Schedule(nest)
    schedule.reorder("product.k", "product.j", "product.i")
    parts, _ = schedule.split("product.k", part)
    total = schedule.sum_parts("product", parts)
    schedule.parallel(parts)
    schedule.compute_at(total, "out.i", "register")
    assert same(interpret(schedule.finished(), arrays), expected)
    assert str(Schedule.replay(nest, map(str, schedule.steps))) == str(schedule)


def test_partial_results_of_a_tile_under_guards_of_the_reduction() -> None:
    nest, arrays, expected = plain("matmul", 6, 7)
    schedule = Schedule(nest)
    steps, inner = schedule.split("product.k", 3, tail="guard")
    schedule.reorder(steps, "product.i", "product.j", inner)
    schedule.rfactor("product", inner)
    assert str(schedule).count("if ") == 1
    schedule.partition(steps)
    assert same(interpret(schedule.finished(), arrays), expected)


def test_partial_results_of_a_tile_with_guards_are_refused() -> None:
    schedule = _new()
    steps, inner = schedule.split("product.k", 3, tail="guard")
    schedule.reorder(steps, "product.i", "product.j", inner)
    schedule.split("product.j", 4, tail="guard")
    with pytest.raises(ScheduleError, match="S025"):
        schedule.rfactor("product", inner)


def test_partition_ignores_conditions_that_never_hold() -> None:
    sizes = (2, 4, 3)
    x, y, z = (te.placeholder((n,), "f32", name) for n, name in zip(sizes, "xyz", strict=True))
    joined = te.compute(
        (9,), lambda i: te.select(i < 2, x[i], te.select(i < 6, y[i - 2], z[i - 6])), "out"
    )
    nest = lower("joined", [x, y, z], [joined])
    schedule = Schedule(nest)
    schedule.partition("out.i")
    schedule.partition("out.i")
    text = print_nest(schedule.finished()).text
    assert [line.strip() for line in text.splitlines() if "for " in line] == [
        "for out.i in 2:", "for out.i in 4:", "for out.i in 3:",
    ]  # fmt: skip
    assert "select" not in text
    arrays = [np.arange(n, dtype=np.float32) + 10 * n for n in sizes]
    assert same(interpret(schedule.finished(), arrays), interpret(nest, arrays))


@pytest.mark.parametrize("reads_first_below", [True, False])
def test_partition_of_a_fused_axis_at_a_border_of_the_outer_one(reads_first_below: bool) -> None:
    x, y = te.placeholder((2, 5), "f32", "x"), te.placeholder((3, 5), "f32", "y")

    def joined(i: te.Scalar, j: te.Scalar) -> te.Scalar:
        if reads_first_below:
            return te.select(i < 2, x[i, j], y[i - 2, j])
        return te.select(i >= 2, y[i - 2, j], x[i, j])

    nest = lower("joined", [x, y], [te.compute((5, 5), joined, "out")])
    schedule = Schedule(nest)
    schedule.partition(schedule.fuse("out.i", "out.j"))
    text = print_nest(schedule.finished()).text
    assert [line.strip() for line in text.splitlines() if "for " in line] == [
        "for out.i+j in 10:", "for out.i+j in 15:",
    ]  # fmt: skip
    assert "select" not in text
    arrays = [
        np.arange(10.0).reshape(2, 5).astype("f4"),
        -np.arange(15.0).reshape(3, 5).astype("f4"),
    ]
    assert same(interpret(schedule.finished(), arrays), interpret(nest, arrays))
