"""The loops around nodes, and how often they run their bodies."""

from __future__ import annotations

from pathlib import Path

from clew.frontends import onnx
from clew.ir.loops import in_branches, iterations_of, loops_around
from clew.ir.visit import post_order
from zoo import loops


def test_loops_are_told_outermost_first(tmp_path: Path) -> None:
    main = onnx.load(loops.nested(tmp_path / "nested.onnx", 3, 40)).main
    around = loops_around(main)
    trips = {tuple(loop.trips for loop in loops) for loops in around.values()}
    assert trips == {(), (3,), (3, 40)}
    assert around[main.params[0].id] == ()
    deepest = max(around.values(), key=len)
    assert iterations_of(deepest) == 120
    assert iterations_of(()) == 1


def test_iterations_that_only_a_run_tells_are_unknown(tmp_path: Path) -> None:
    main = onnx.load(loops.ended(tmp_path / "ended.onnx")).main
    around = loops_around(main)
    assert iterations_of(max(around.values(), key=len)) is None


def test_branches_inside_loops_are_told_from_others(tmp_path: Path) -> None:
    main = onnx.load(loops.branched(tmp_path / "branched.onnx")).main
    inside = in_branches(main)
    nodes = {node.id: node for node in post_order([main], into_functions=True)}
    layers = {layer for node in inside for layer in nodes[node].span.layers}
    assert {"rare", "often"} <= layers
    assert not layers & {"before", "always", "aside"}
