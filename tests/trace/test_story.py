import pytest
from rich.console import Console
from toys import swish_trace


def test_a_story_tells_every_stage_that_changed_the_layer() -> None:
    story = swish_trace().layer("act")
    assert story.title == "act (Swish)"
    assert [(c.name, c.event) for c in story.chapters] == [
        ("import", "nn.swish"),
        (
            "Decompose",
            "nn.swish became sigmoid, multiply; its result is that of multiply",
        ),
        story_of_fuse(story),
    ]
    assert story.remarks == (("Fuse", "one kernel: nothing else follows"),)
    (share,) = story.kernels
    assert (share.ops, share.instructions, share.kernel_instructions) == (
        ("sigmoid", "multiply"), 3, 6,
    )  # fmt: skip
    assert [p.line for p in share.loop_lines] == [3, 4]


def story_of_fuse(story) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    last = story.chapters[-1]
    assert "sigmoid" in last.event
    assert "k" in last.event
    return last.name, last.event


def test_a_story_prints_with_places_and_figures() -> None:
    text = str(swish_trace().layer("act"))
    assert text.startswith("act (Swish)\n  import: nn.swish\n")
    assert "%4: f32[2, 4] = nn.swish(%3)  // act:Swish#0" in text
    assert "kernel k: sigmoid, multiply of multiply, sigmoid, multiply; 3 of 6 instructions" in text
    assert text.endswith("in the end: runs in k")


def test_a_story_of_an_eliminated_layer_ends_there() -> None:
    story = swish_trace().layer("fold_me")
    assert str(story).endswith("in the end: folded into constants by Fold")
    assert not story.kernels


@pytest.mark.parametrize("layer", ["act", "noop", "fold_me"])
def test_rich_shows_the_story(layer: str) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    story = swish_trace().layer(layer)
    console.print(story)
    shown = console.export_text()
    assert story.title in shown
    assert str(story.fate) in shown
