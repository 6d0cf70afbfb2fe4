"""Segments at given sizes: the numbers of a run are those of the plan, which is made on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_models import decoder, feeds_of_decoder

import clew
import zoo
from clew.ir.dims import Sizes
from clew.runtime.bound import Bound
from clew.runtime.container import read_container, write_container
from clew.runtime.context import Context
from clew.runtime.segment import NativeSegment
from clew.runtime.sized_segment import Numbers, SizedSegment
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

SIZES: dict[str, list[dict[str, int]]] = {
    "decoder": [{"b": b, "s": s, "past": p} for b, s, p in ((1, 1, 1), (2, 9, 30), (3, 64, 7))],
    "detector_free": [{"height": h, "width": w} for h, w in ((64, 64), (65, 96), (128, 70))],
    "encoder_small_free": [{"batch": b, "sequence": s} for b, s in ((1, 1), (2, 80), (4, 200))],
}


def compiled(name: str, threads: int) -> clew.CompiledModel:
    given: Any = decoder() if name == "decoder" else zoo.path(name)
    return clew.compile(given, threads=threads, sizes=clew.Sizes(specialize=False), cache=False)


def sized(model: clew.CompiledModel) -> list[SizedSegment]:
    """The segments for all sizes of a model that has one build for all of them."""
    return sized_of(model._chain)


def sized_of(chain: Any) -> list[SizedSegment]:
    provider = chain.all_sizes
    assert provider is not None
    found = [s for s in provider.sized.template.segments if isinstance(s, SizedSegment)]
    assert found
    return found


def check_same(found: Bound, wanted: Bound) -> None:
    """Compares two bound segments, whose layouts may number functions differently."""
    for name in ("inputs", "outputs", "arena_bytes", "loops", "stacks", "flows"):
        assert getattr(found, name) == getattr(wanted, name), name
    for name in ("arena", "scratch_bytes", "size_values"):
        assert list(getattr(found, name)) == list(getattr(wanted, name)), name
    np.testing.assert_array_equal(found.chunks.counts, wanted.chunks.counts)
    np.testing.assert_array_equal(found.chunks.rows[:, 1:], wanted.chunks.rows[:, 1:])
    functions, others = (
        [bound.layout.symbols[n] for n in bound.chunks.rows[:, 0]] for bound in (found, wanted)
    )
    assert functions == others
    one, other = found.layout, wanted.layout
    assert (one.starts, one.first_args, one.bases) == (other.starts, other.first_args, other.bases)
    for name in ("constants", "steps", "size_slots", "record_slots"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
    for mine, theirs in zip(positions(found), positions(wanted), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def positions(bound: Bound) -> tuple[np.ndarray, np.ndarray]:
    """The layout's tables of references to memory, with the distances that depend on sizes."""
    layout = bound.layout
    arena, patches = layout.arena.copy(), layout.patches.copy()
    for slot, sized in layout.sized_slots:
        arena[2, list(arena[0]).index(slot)] += bound.distances[sized]
    for row, sized in layout.sized_patches:
        patches[row, 2] += bound.distances[sized]
    return arena, patches


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        ("decoder", 1),
        ("decoder", 2),
        pytest.param("detector_free", 1, marks=pytest.mark.exhaustive),  # half a minute to compile
        ("encoder_small_free", 2),
    ],
)
def test_numbers_of_a_run_are_those_of_the_plan(name: str, threads: int) -> None:
    for segment in sized(compiled(name, threads)):
        for by_name in SIZES[name]:
            made = segment.at(Sizes(by_name))
            plan = segment.template.at(Sizes(by_name), threads)
            check_same(made._bound, Bound.of(plan, threads))


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_of_consecutive_lengths(threads: int) -> None:
    """Lengths share what is made of equal numbers: divisions of work of about equal costs, places
    in the arena, and specifications. All else is that of the plan.
    """
    form = compiled("decoder", threads).session({"past_k": "k", "past_v": "v"})._held_form
    assert form is not None
    (segment,) = sized_of(form.model)
    layout = segment._layout
    shared = {"chunks": 0, "arena": 0}
    before: Bound | None = None
    steps = [(1, 1, past) for past in (*range(200, 232), 1000, 3, 4)]
    for batch, count, past in [*steps, (2, 1, 4), (2, 9, 4)]:
        by_name = {"b": batch, "s": count, "past": past, "past_spare": 2000 - past - count}
        found = segment.at(Sizes(by_name))._bound
        fresh = Numbers(segment.template, layout, threads).at(by_name, segment._references)
        for name in ("inputs", "outputs", "arena_bytes"):
            assert getattr(found, name) == getattr(fresh, name), name
        for name in ("arena", "scratch_bytes", "size_values", "distances"):
            assert list(getattr(found, name)) == list(getattr(fresh, name)), name
        assert work_of(found) == work_of(fresh)
        if before is not None:
            shared["chunks"] += found.chunks is before.chunks
            shared["arena"] += found.arena is before.arena
        before = found
    assert shared["chunks"] > 20
    assert shared["arena"] == len(steps) - 1  # all but those of another batch or count


def work_of(bound: Bound) -> dict[tuple[int, int], tuple[int, int]]:
    """The pieces and the lines that the chunks of each driver step and function have together."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    rows, counts = bound.chunks
    steps = np.repeat(np.arange(len(counts)), counts)
    for step, (function, *ranges) in zip(steps.tolist(), rows.tolist(), strict=True):
        first, end, top, bottom = ranges
        pieces, area = found.get((step, function), (0, 0))
        found[step, function] = max(pieces, end), area + (end - first) * (bottom - top)
    return found


def test_the_plan_is_made_when_it_is_asked_for() -> None:
    model = compiled("decoder", threads=1)
    feeds = feeds_of_decoder(2, 3, 5)
    model.run(feeds)
    (segment,) = model.build.segments
    assert isinstance(segment, NativeSegment)
    assert segment._plan is None
    plan = segment.plan
    assert segment.plan is plan
    (template,) = sized(model)
    wanted = template.template.at(Sizes({"b": 2, "s": 3, "past": 5}), threads=1)
    assert (plan.steps, plan.arena, plan.inputs) == (wanted.steps, wanted.arena, wanted.inputs)
    assert plan.constants is template.constants


@pytest.mark.parametrize("threads", [1, 2])
def test_tables_of_one_size_serve_others(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that were bound to other sizes before give the same results as new tables."""
    tables: list[Context] = []
    new = Context.__init__

    def noted(self: Context, *args: Any) -> None:
        tables.append(self)
        new(self, *args)

    monkeypatch.setattr(Context, "__init__", noted)
    sizes = [(b, s, past) for b in (1, 2) for s in (1, 40, 7) for past in (1, 70, 5, 33)]
    model, alone = compiled("decoder", threads), compiled("decoder", threads)
    (segment,) = sized(alone)
    expected = []
    for at in sizes:
        expected.append(alone.run(feeds_of_decoder(*at)))
        segment._memory._contexts.clear()  # so that each size makes its own
    assert len(tables) == len(sizes)
    tables.clear()
    for _ in range(2):
        for at, wanted in zip(sizes, expected, strict=True):
            found = model.run(feeds_of_decoder(*at))
            for name, value in wanted.items():
                np.testing.assert_array_equal(found[name], value)
        sizes.reverse()
        expected.reverse()
    assert len(tables) == len(sizes)  # each size keeps its own


def saved_text(tmp_path: Path) -> tuple[Any, list[np.ndarray], Path]:
    """The text and blobs of a saved model for all sizes."""
    path = tmp_path / "model.clew"
    compiled("decoder", threads=1).save(path)
    container = read_container(path)
    return container.text, list(container.blobs), path


def refusal(text: Any, blobs: list[np.ndarray], path: Path) -> str:
    write_container(path, text, blobs)
    with pytest.raises(ClewError) as caught:
        clew.load_compiled(path, threads=1)
    assert caught.value.code == "C055"
    return caught.value.message


def first_ref(text: Any, kind: str) -> list[Any]:
    """The first reference to a buffer of a kind in the segment for all sizes."""
    steps = text["sized"]["segments"][0]["steps"]
    found: list[Any] = next(ref for step in steps for ref in step["args"] if ref[0] == kind)
    return found


@pytest.mark.parametrize("kind", ["input", "output", "constant", "arena"])
def test_references_outside_of_buffers_are_refused(kind: str, tmp_path: Path) -> None:
    text, blobs, path = saved_text(tmp_path)
    ref = first_ref(text, kind)
    index = ref[1]
    ref[1] = 99
    assert f"no {kind} 99" in refusal(text, blobs, path)
    ref[1], ref[2] = index, -1
    assert "is outside" in refusal(text, blobs, path)
    ref[2] = 1 << 40
    assert "is outside" in refusal(text, blobs, path)


def test_references_are_compared_with_the_sizes_of_each_call(tmp_path: Path) -> None:
    text, blobs, path = saved_text(tmp_path)
    first_ref(text, "input")[2] = 4 * 48 * 16
    write_container(path, text, blobs)
    model = clew.load_compiled(path, threads=1)
    with pytest.raises(AssertionError, match="is outside"):
        model.run(feeds_of_decoder(1, 1, 1))


@pytest.mark.parametrize(
    "size",
    [
        [[1, [[["**", 2, 2], 1]]]],  # no operation
        [["len('code')", [["b", 1]]]],  # no coefficient
        [[1, [["b", "2"]]]],  # no power
        [[1, [["b", 1 << 40]]]],  # more than memory can hold
    ],
)
def test_dimensions_of_another_form_are_refused(size: Any, tmp_path: Path) -> None:
    text, blobs, path = saved_text(tmp_path)
    text["sized"]["segments"][0]["inputs"][0]["shape"][0] = size
    assert "ValueError" in refusal(text, blobs, path)
