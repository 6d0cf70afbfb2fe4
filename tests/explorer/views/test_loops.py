"""Loops in the explorer: what belongs to each, its iterations, times of all of them and of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import clew
from clew.explorer.actions.profile import profile
from clew.explorer.routes import answer
from clew.explorer.schema import Heat, Overview, Story
from clew.explorer.session import Session
from zoo import loops


@pytest.fixture
def session(tmp_path: Path) -> Callable[[Callable[..., Path]], Session]:
    def opened(made: Callable[..., Path]) -> Session:
        path = made(tmp_path / "model.onnx")
        return Session(clew.compile(path, threads=1), model=path.name, path=path)

    return opened


def held(session: Session) -> dict[str, tuple[str, int | None, set[str], int]]:
    """Returns by each loop's layer the loop around it, its iterations, its layers, its kernels."""
    found: Overview = answer(session, "overview")
    names = [layer.name for layer in found.layers]
    return {
        names[loop.layer]: (
            names[found.loops[loop.parent].layer] if loop.parent >= 0 else "",
            loop.iterations,
            {names[layer] for layer in loop.layers},
            len(loop.kernels),
        )
        for loop in found.loops
    }


def said(story: Story) -> str:
    return "\n".join(
        "".join(part.text for part in sentence.parts)
        for section in story.sections
        for sentence in section.sentences
    )


def test_a_loops_layers_iterations_and_kernels_are_told(
    session: Callable[[Callable[..., Path]], Session],
) -> None:
    assert held(session(loops.scan)) == {"walk": ("", 40, {"mix", "squash", "keep", "see"}, 1)}
    deep = {"deep_mix", "deep", "on"}
    assert held(session(loops.nested)) == {
        "outer": ("", 3, {"inner", "go_on"} | deep, 1),
        "inner": ("outer", 40, deep, 1),
    }
    assert held(session(loops.ended)) == {"grow": ("", None, {"double", "most", "small"}, 2)}


def test_a_layer_that_becomes_a_loop_is_one(
    session: Callable[[Callable[..., Path]], Session],
) -> None:
    found = held(session(loops.recurrent))
    assert {name: loop[:3] for name, loop in found.items()} == {"lstm": ("", 40, set())}
    assert found["lstm"][3] >= 1


def test_times_of_kernels_in_loops_are_of_all_iterations_and_of_one(
    session: Callable[[Callable[..., Path]], Session],
) -> None:
    opened = session(loops.nested)
    profile(opened, {"seconds": 0.01, "sample": 0.0}, lambda text, done: None)
    found: Heat = answer(opened, "heat/time")
    assert found.runs == [120.0]
    story = said(answer(opened, "story/kernel:0"))
    assert "(120 iterations of " in story
    assert "Runs in the loop outer, which has 3 iterations." in story
    assert "In that loop it runs in inner, which has 40 iterations per entry." in story
    assert "(120 iterations of " in said(answer(opened, "story/layer:deep"))


def test_kernels_outside_loops_have_one_time(
    session: Callable[[Callable[..., Path]], Session],
) -> None:
    opened = session(loops.scan)
    profile(opened, {"seconds": 0.01, "sample": 0.0}, lambda text, done: None)
    assert answer(opened, "heat/time").runs == [40.0, 1.0]
    assert "iteration" not in said(answer(opened, "story/kernel:1")).replace("return", "")
    assert answer(opened, "heat/flops").runs == []


def test_what_a_body_reads_of_the_models_inputs_has_their_names(
    session: Callable[[Callable[..., Path]], Session],
) -> None:
    for made, inputs in ((loops.scan, {"start", "rows"}), (loops.nested, {"x"})):
        source = answer(session(made), "source")
        assert {edge.value for edge in source.edges if edge.source < 0} == inputs
