"""The page follows links as the trace does: from every layer down, from every line of code up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from page_walk import Reached, Walk

from clew.explorer.session import Session
from clew.trace.refs import AsmRef, LayerRef, LlvmRef, LoopRef, NodeRef, Reach

MODELS = ["resnet_tiny", "bert_tiny", "if_branches", "loop_recurrence", "control"]


@pytest.fixture(scope="module", params=MODELS)
def session(
    request: pytest.FixtureRequest, zoo_session: Callable[[str], Session], control: Session
) -> Session:
    return control if request.param == "control" else zoo_session(request.param)


@pytest.fixture(scope="module")
def walk(session: Session) -> Walk:
    return Walk(session)


def expected(session: Session, reach: Reach) -> Reached:
    """Returns what the trace says, in the numbers of the wire format."""
    kernel_at, numbers = session.kernel_of_call, session.numbers
    stages = range(len(session.trace.stages))

    def lines(
        refs: tuple[LoopRef, ...] | tuple[LlvmRef, ...] | tuple[AsmRef, ...],
    ) -> set[tuple[int, int]]:
        return {(kernel_at[r.call], r.line) for r in refs}

    return Reached(
        layers={session.layers[r.layer] for r in reach.layers},
        nodes=[{numbers[r.node] for r in reach.at(n)} for n in stages],
        loops=lines(reach.loops),
        llvm=lines(reach.llvm),
        asm=lines(reach.asm),
    )


def test_from_every_layer(session: Session, walk: Walk) -> None:
    assert [la["name"] for la in walk.overview["layers"]] == list(session.trace.layers)
    for place, name in enumerate(session.trace.layers):
        reach = session.trace.forward(LayerRef(name))
        right, found = expected(session, reach), walk.of_layer(place)
        assert found.nodes == right.nodes, name
        assert found.layers == right.layers
        assert (found.loops, found.llvm, found.asm) == (right.loops, right.llvm, right.asm), name
        kernels = [session.kernel_of_call[k.call] for k in reach.kernels]
        assert sorted(found.kernels) == kernels


def test_from_every_line_of_code(session: Session, walk: Walk) -> None:
    """Lines with one operator lead to the same: each distinct answer is asked of the trace once."""
    for place, kernel in enumerate(session.kernels):
        asked: set[tuple[int, int]] = set()
        code = walk.codes[place]
        for made, table, total in (
            (LoopRef, None, len(kernel.loops)),
            (LlvmRef, code["llvm_loop"], len(kernel.llvm)),
            (AsmRef, code["asm_loop"], len(kernel.asm)),
        ):
            assert table is None or len(table) == total
            for line in range(1, total + 1):
                loop = line if table is None else table[line - 1]
                op = code["loop_op"][loop - 1] if loop else -2
                if (id(table), op) in asked:
                    continue
                asked.add((id(table), op))
                right = expected(session, session.trace.backward(made(kernel.call, line)))
                found = walk.of_line(place, loop)
                assert found.layers == right.layers, (kernel.name, made, line)
                assert (found.nodes or [set()] * len(right.nodes)) == right.nodes


def test_from_nodes(session: Session, walk: Walk) -> None:
    trace = session.trace
    for stage in range(len(trace.stages)):
        if not trace.stages[stage].changed:
            continue
        for node in list(trace.nodes(stage))[::7]:
            ref = NodeRef(stage, node)
            down = expected(session, trace.forward(ref))
            up = expected(session, trace.backward(ref))
            found = walk.of_node(stage, session.numbers[node])
            assert found.layers == up.layers
            assert found.nodes == [*up.nodes[:stage], *down.nodes[stage:]]
            assert (found.loops, found.llvm, found.asm) == (down.loops, down.llvm, down.asm)


def test_nodes_stand_on_their_lines(session: Session, walk: Walk) -> None:
    for place, stage in enumerate(walk.stages):
        nodes = stage["nodes"]
        alive = {n for n in range(len(session.ids)) if walk.alive(n, place)}
        assert alive == {session.numbers[n] for n in session.trace.nodes(place)}
        assert set(nodes["number"]) <= alive
        lines = len(stage["text"].splitlines())
        assert all(0 < line <= lines for line in nodes["line"])
        for number, layers in zip(nodes["number"], nodes["layers"], strict=True):
            assert layers == walk.links["layers"][number]
