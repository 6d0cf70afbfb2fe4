"""Pointing at a thing lights what it came from and became, in every pane; choosing goes there."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer_page import TEXT, ExplorerPage
from playwright.sync_api import expect

import clew
from clew.explorer.session import Session
from clew.explorer.views.source import source
from clew.machine.target import host
from clew.trace.refs import AsmRef, KernelRef, LayerRef, LoopRef, Reach


@pytest.fixture(scope="module")
def session(models: dict[str, Path]) -> Session:
    """The build that the page shows, made here as well: its trace says what is right."""
    path = models["known"]
    return Session(clew.compile(path, threads=2), model=path.name, path=path)


def kernel_of(session: Session, layer: str) -> int:
    """Returns the place of the one kernel that computes a layer."""
    calls = [k.call for k in session.trace.forward(LayerRef(layer)).kernels]
    places = [n for n, k in enumerate(session.kernels) if k.call in calls]
    return places[-1]


def four(session: Session, kernel: int) -> list[str]:
    last = session.trace.last
    return ["a/model:0", f"a/stage:{last}", f"a/loops:{kernel}", f"a/asm:{kernel}"]


def expect_reach(shown: ExplorerPage, session: Session, kernel: int, reach: Reach) -> None:
    """Expects the graph, loops and instructions that the trace says, and no others."""
    trace, call = session.trace, session.kernels[kernel].call
    lines = trace.printed(trace.last).line_of
    shown.expect_lit("stage", {lines[ref.node] for ref in reach.at(trace.last)})
    shown.expect_lit("loops", {ref.line for ref in reach.loops if ref.call == call})
    shown.expect_lit("asm", {ref.line for ref in reach.asm if ref.call == call})


def model_lines(session: Session, layers: set[str]) -> set[int]:
    names = list(session.layers)
    of = source(session).line_layers
    return {n for n, layer in enumerate(of, 1) if layer >= 0 and names[layer] in layers}


@pytest.mark.parametrize("layer", ["conv1", "relu1", "conv2", "relu2", "fc", "softmax"])
def test_a_layer_lights_its_lines_in_four_panes(
    known: ExplorerPage, session: Session, layer: str
) -> None:
    kernel = kernel_of(session, layer)
    known.open(four(session, kernel), story="0")
    known.line_of("model", f"layer:{layer}").hover(position=TEXT)
    known.expect_lit("model", model_lines(session, {layer}))
    expect_reach(known, session, kernel, session.trace.forward(LayerRef(layer)))


@pytest.mark.skipif(
    host().vector_bits < 512, reason="with narrow vectors conv1 is a Winograd convolution"
)
def test_the_known_links(known: ExplorerPage, session: Session) -> None:
    """conv1 and relu1 share a kernel: relu1 stores, conv1 multiplies and adds."""
    kernel = kernel_of(session, "conv1")
    assert kernel == kernel_of(session, "relu1") != kernel_of(session, "conv2")
    loops = session.kernels[kernel].loops
    known.open(four(session, kernel), story="0")

    def lit(layer: str) -> str:
        known.line_of("model", f"layer:{layer}").hover(position=TEXT)
        reach = session.trace.forward(LayerRef(layer))
        known.expect_lit("loops", {ref.line for ref in reach.loops if kernel_call(reach, ref)})
        return "\n".join(loops[n - 1] for n in known.lines("loops")["own"])

    call = session.kernels[kernel].call

    def kernel_call(reach: Reach, ref: LoopRef) -> bool:
        return ref.call == call

    conv, relu = lit("conv1"), lit("relu1")
    assert "conv2d[" in conv
    assert "+=" in conv or "fma" in conv or "+" in conv
    assert "relu[" in relu
    assert "relu[" not in conv
    # The second convolution is another kernel's: nothing of this one is lit.
    known.line_of("model", "layer:conv2").hover(position=TEXT)
    known.expect_lit("loops", set())
    known.expect_lit("asm", set())


def test_an_instruction_leads_back_to_its_layers(known: ExplorerPage, session: Session) -> None:
    kernel = kernel_of(session, "conv1")
    used = session.kernels[kernel]
    known.open(four(session, kernel), story="0")
    known_lines = ((n, i) for n, i in enumerate(used.asm[:40], 1) if i.loop_line)
    number, instruction = next(known_lines)
    known.line("asm", number).hover(position=TEXT)
    reach = session.trace.backward(AsmRef(used.call, number))
    known.expect_lit("model", model_lines(session, {ref.layer for ref in reach.layers}))
    lines = session.trace.printed(session.trace.last).line_of
    nodes = {lines[ref.node] for ref in reach.at(session.trace.last)}
    known.expect_lit("stage", nodes)
    assert instruction.loop_line in known.lines("loops")["exact"]


def test_a_line_of_a_loop_nest_lights_its_instructions(
    known: ExplorerPage, session: Session
) -> None:
    kernel = kernel_of(session, "fc")
    used = session.kernels[kernel]
    known.open(four(session, kernel), story="0")
    line = next(i.loop_line for i in used.asm[:40] if i.loop_line > 3)
    known.line("loops", line).hover(position=TEXT)
    reach = session.trace.forward(LoopRef(used.call, line))
    wanted = {ref.line for ref in reach.asm}
    known.page.wait_for_function(
        """(line) => document.querySelector('.pane[data-kind="loops"] .code-host').shadowRoot
          .querySelector(`.cm-line[data-line="${line}"]`).classList.contains("exact")""",
        arg=line,
    )
    found = known.lines("asm")
    assert set(found["exact"]) == wanted & set(found["drawn"])


def test_choosing_scrolls_every_pane_and_stays(known: ExplorerPage, session: Session) -> None:
    kernel, other = kernel_of(session, "fc"), kernel_of(session, "conv1")
    known.open(four(session, other), story="1")
    known.line_of("model", "layer:fc").click(position=TEXT)
    # Panes of code turn to the layer's kernel.
    known.page.wait_for_function(
        "(n) => ['loops', 'asm'].every((kind) => location.hash.includes(encodeURIComponent("
        "`a/${kind}:${n}`)) || location.hash.includes(`a/${kind}:${n}`))",
        arg=kernel,
    )
    reach = session.trace.forward(LayerRef("fc"))
    expect_reach(known, session, kernel, reach)
    lines = session.trace.printed(session.trace.last).line_of
    known.expect_visible_line("stage", min(lines[r.node] for r in reach.at(session.trace.last)))
    # What was chosen stays lit when the pointer leaves.
    known.page.mouse.move(5, 5)
    expect_reach(known, session, kernel, reach)
    expect(known.page.locator("article[data-about]")).to_have_attribute("data-about", "layer:fc")


def test_links_are_drawn_between_panes_on_demand(known: ExplorerPage, session: Session) -> None:
    kernel = kernel_of(session, "conv1")
    known.open(four(session, kernel), story="0")
    known.line_of("model", "layer:conv1").click(position=TEXT)
    drawn = known.page.locator("svg.threads path")
    expect(drawn).to_have_count(0)
    known.page.keyboard.press("t")
    expect(drawn.first).to_be_attached()
    known.page.keyboard.press("t")
    expect(drawn).to_have_count(0)


def test_a_kernel_reaches_its_layers_and_no_others(session: Session) -> None:
    """What the tests above rest on, by hand: a kernel for each group of fused layers."""
    found = {}
    for used in session.kernels:
        layers = {ref.layer for ref in session.trace.backward(KernelRef(used.call)).layers}
        for layer in layers:
            found.setdefault(layer, []).append(layers)
    assert {"conv1", "relu1"} <= found["relu1"][-1]
    assert {"conv2", "sum", "relu2"} <= found["relu2"][-1]
    assert "conv1" not in found["fc"][-1]
