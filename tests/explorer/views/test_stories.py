"""Stories say what happened, in sentences, and every link leads somewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from clew.explorer.routes import answer
from clew.explorer.schema import Section, Story
from clew.explorer.session import Session
from clew.explorer.views.refs import parse_ref
from clew.explorer.views.stories.parts import amount, duration, percent
from clew.explorer.views.story import story, story_refs
from clew.machine.target import host


def text(section: Section) -> str:
    """Returns a section's sentences as text, a line each."""
    return "\n".join("".join(p.text for p in s.parts) for s in section.sentences)


def whole(told: Story) -> str:
    return "\n".join(f"{s.head}\n{text(s)}" for s in told.sections)


def section(told: Story, head: str) -> Section:
    return next(s for s in told.sections if s.head == head)


def test_a_batch_norm_that_went_into_a_convolution(block: Session) -> None:
    told = story(block, "layer:stem/bn")
    assert (told.about, told.title, told.subtitle) == (
        "layer:stem/bn", "stem/bn", "BatchNormalization",
    )  # fmt: skip
    short = text(told.sections[0])
    assert "Runs in " in short
    assert "conv2d_add_relu" in short
    assert "Together with stem/conv, stem/relu and head/shape." in short
    assert "Reads the results of stem/conv." in text(section(told, "import"))
    assert "Imported as nn.batch_norm." in text(section(told, "import"))
    assert "nn.batch_norm became" in text(section(told, "SimplifyInference"))
    assert "from here on in one operator with stem/conv" in text(section(told, "FoldScaleAxis"))
    layout = section(told, "AlterLayout")
    assert layout.kind == "layout"
    lanes = min(host().vector_bits // 32, 16)
    blocked = f"f32[1, {16 // lanes}, 8, 8, {lanes}]:NCHW{lanes}c"
    assert f"{blocked} instead of f32[1, 16, 8, 8]" in text(layout)
    assert f"AlterLayout says: NCHW -> NCHW{lanes}c" in text(layout)
    fused = section(told, "FuseOps")
    assert fused.kind == "fuse"
    assert "put into conv2d_add_relu" in text(fused)
    assert "not fused into" in text(fused)
    kernel = section(told, "conv2d_add_relu")
    assert "Loops made by the schedule rule conv." in text(kernel)
    assert "nn.relu works for stem/relu" in text(kernel)


def test_an_eliminated_layer(block: Session) -> None:
    told = story(block, "layer:head/size")
    assert "Settled by the import: known at import." in text(told.sections[0])
    assert "The import needed no operator for it: known at import." in whole(told)


def test_a_kernel(block: Session) -> None:
    place = next(n for n, k in enumerate(block.kernels) if k.name == "conv2d_add_relu")
    told = story(block, f"kernel:{place}")
    assert "Computes stem/conv, stem/bn, stem/relu and head/shape." in text(told.sections[0])
    operators = text(section(told, "operators"))
    assert "nn.conv2d for stem/conv and stem/bn: " in operators
    memory = text(section(told, "memory"))
    assert "a constant made of w" in memory
    assert "the result of pad." in memory
    assert "Its result is read by layout_transform." in memory
    assert "FLOP and moves" in text(section(told, "work"))
    assert "steps of scheduling" in text(section(told, "loops"))


def test_an_instruction_back_to_its_layer(block: Session) -> None:
    place = next(n for n, k in enumerate(block.kernels) if k.name == "conv2d_add_relu")
    kernel = block.kernels[place]
    relu = kernel.stage_ops["relu"]
    line = next(n for n, s in kernel.loop_stages.items() if kernel.stage_ops[s] == relu)
    number = next(n for n, i in enumerate(kernel.asm, 1) if i.loop_line == line)
    told = story(block, f"asm:{place}:{number}")
    assert told.title == kernel.asm[number - 1].text
    assert "It belongs to the operator nn.relu." in text(section(told, "operator"))
    assert "All of this is work for stem/relu and head/shape." in text(told.sections[-1])
    assert "this was nn.relu" in text(section(told, "FuseOps"))


def test_kernels_around_branches_and_loops(control: Session) -> None:
    memory = {
        kernel.name: text(section(story(control, f"kernel:{n}"), "memory"))
        for n, kernel in enumerate(control.kernels)
    }
    read, weight, *rest = memory["dense"].splitlines()
    assert read == "Reads f32[4, 8], the value x."
    assert weight in (  # as it is, or packed for narrower vectors
        "Reads f32[8, 8], the parameter w.",
        "Reads f32[1, 8, 8]:NK8n, a constant made of w.",
    )
    assert rest == ["Its result is read by mean_greater.", "Its result goes to if of branch."]
    assert "from if of branch." in memory["negative"]
    assert "Its result goes to while of repeat." in memory["negative"]
    assert "returned by its branch or loop" in memory["dense_sigmoid"]
    assert "from while of repeat." in memory["add"]
    assert "It produces the model's output y." in memory["add"]
    loop = text(section(story(control, "layer:repeat"), "import"))
    assert "Holds the layers body/go, body/matmul and body/sigmoid." in loop
    assert "Reads the results of known." in loop
    assert "It runs on the host, between kernels." in whole(story(control, "layer:branch"))


@pytest.mark.parametrize("name", ["block", "control", "bert_tiny"])
def test_every_link_leads_somewhere(
    name: str, block: Session, control: Session, zoo_session: Callable[[str], Session]
) -> None:
    session = {"block": block, "control": control}.get(name) or zoo_session(name)
    refs = story_refs(session)
    for kernel in range(min(len(session.kernels), 4)):
        refs += [f"loop:{kernel}:1", f"llvm:{kernel}:1", f"asm:{kernel}:2"]
    for stage in (0, len(session.trace.stages) - 1):
        refs += [session.ref(stage, n) for n in list(session.trace.nodes(stage))[::11]]
    known: set[str] = set()
    for ref in refs:
        told = answer(session, f"story/{ref}")
        assert told.about == ref
        assert told.title
        for part in told.sections:
            assert part.kind
            assert part.head
            assert part.sentences
            known.add(part.ref)
            for sentence in part.sentences:
                assert sentence.parts
                assert "".join(p.text for p in sentence.parts).strip()
                known.update(p.ref for p in sentence.parts)
    for ref in known - {""}:
        parse_ref(session, ref)


def test_what_was_measured_is_told(block: Session) -> None:
    kernels = [k.name for k in block.kernels]
    part = SimpleNamespace(layer="stem/relu", ns=250.0)
    row = SimpleNamespace(
        name=kernels[-1], layers=("stem/relu",), ns=1000.0, runs=1, share=0.5, roof=None,
        operators=[SimpleNamespace(parts=[part])], time=SimpleNamespace(spread=0.03),
    )  # fmt: skip
    layer = SimpleNamespace(
        layer="stem/relu", ns=250.0, share=0.125, alone_ns=0.0, measured_ns=250.0,
        estimated_ns=0.0, undivided_ns=0.0,
    )  # fmt: skip
    profile: Any = SimpleNamespace(kernels=[row], layers=[layer])
    block.measured.update(profile=profile, errors={"stem/relu": 2e-6})
    try:
        told = story(block, "layer:stem/relu")
        assert "Takes 250 ns, 12 % of a run." in text(told.sections[0])
        assert "differ by at most 2.0e-06" in text(told.sections[0])
        assert f"250 ns of the 1 µs of {kernels[-1]}" in text(section(told, "time"))
        told = story(block, f"kernel:{len(kernels) - 1}")
        assert "Takes 1 µs (median, spread 3 %), 50 % of a run." in text(told.sections[0])
    finally:
        block.measured.clear()


def test_figures_for_people() -> None:
    assert [duration(ns) for ns in (0.5, 12.0, 1234.0, 5.6e6, 2e9)] == [
        "0.5 ns", "12 ns", "1.23 µs", "5.6 ms", "2 s",
    ]  # fmt: skip
    assert [amount(n, "B") for n in (0, 999, 1536, 2.5e6)] == ["0 B", "999 B", "1.54 kB", "2.5 MB"]
    assert [percent(n, 100) for n in (0, 0.04, 5.5, 50)] == ["0 %", "0.04 %", "6 %", "50 %"]
