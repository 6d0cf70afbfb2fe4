"""Kernels and executor ranges: the same kernels again, and the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
import zoo
from clew.extraction.fused import FusedProgram
from clew.support.errors import InputError


def program(compiled: clew.CompiledModel, **inputs: np.ndarray) -> FusedProgram:
    return FusedProgram(compiled, [inputs[n] for n in compiled.input_names])


def test_every_kernel_of_a_network(tmp_path: Path) -> None:
    """Blocked layouts, packed weights, views: what is written is the kernel."""
    compiled = clew.compile(zoo.path("resnet_tiny"))
    made = program(compiled, **zoo.inputs("resnet_tiny"))
    parts = made.kernels()
    assert list(parts) == [k.name for k in compiled.kernels]
    for name, part in parts.items():
        part.save(tmp_path / "kernel.txt")
        alone = clew.load_part(tmp_path / "kernel.txt")
        assert alone.layers == part.layers
        report = alone.check()
        assert report.exact
        assert report.passed, str(report)
        again = alone.compile()
        assert [u.source.key for u in again.build.uses] == [made.names[name].source.key]
        assert [k.name for k in again.kernels] == [made.names[name].source.name]


def test_a_kernel_by_name_and_what_is_said_of_it(file: Path) -> None:
    compiled = clew.compile(file, passes=clew.Passes(fuse=False))
    first = compiled.kernels[0].name
    part = clew.extract(compiled, kernel=first, inputs={"x": np.ones((2, 8), np.float32)})
    assert part.kind == "kernel"
    assert part.options == {"passes": ()}
    assert part.check().passed
    with pytest.raises(InputError, match=rf"I141.*'{first}x'[^§]*near it are {first}"):
        clew.extract(compiled, kernel=f"{first}x")
    with pytest.raises(InputError, match=r"I144.*already compiled"):
        clew.extract(compiled, kernel=first, opt_level=1)


def test_a_file_is_compiled_with_options(file: Path) -> None:
    part = clew.extract(file, nodes="0:4", passes=clew.Passes(fuse=False), opt_level=0)
    assert part.check().passed


def test_layers_that_are_in_a_kernel_in_part() -> None:
    compiled = clew.compile(zoo.path("resnet_tiny"), passes=clew.Passes(fuse=False))
    made = program(compiled, **zoo.inputs("resnet_tiny"))
    notes = [note for part in made.kernels().values() for note in part.notes]
    shared = {
        layer
        for k in compiled.kernels
        for layer in k.layers
        if sum(layer in o.layers for o in compiled.kernels) > 1
    }
    assert shared
    assert {n.split()[1] for n in notes} == shared


def test_ranges_of_the_executor(tmp_path: Path) -> None:
    compiled = clew.compile(zoo.path("vit_tiny"))
    made = program(compiled, **zoo.inputs("vit_tiny"))
    count = len(made.nodes)
    assert count >= len(compiled.kernels)
    first = next(n for n, node in enumerate(made.nodes) if node.use is not None)
    for begin, end in ((0, count), (first, first + 1), (3, 9), (count // 2, count)):
        part = made.range(begin, end)
        part.save(tmp_path / "nodes.txt")
        alone = clew.load_part(tmp_path / "nodes.txt")
        report = alone.check()
        assert report.passed, str(report)
        keys = [u.source.key for u in alone.compile().build.uses]
        calls = {n.expr.id for n in made.nodes[begin:end]}
        assert sorted(keys) == sorted(u.source.key for u in made.build.uses if u.call.id in calls)
    for wrong in ("5:3", "0:1000", "-1:3", "a:b"):
        with pytest.raises(InputError, match=r"I143"):
            clew.extract(compiled, nodes=wrong, inputs=zoo.inputs("vit_tiny"))
    for nodes in (range(first + 1), (0, first + 1)):
        part = clew.extract(compiled, nodes=nodes, inputs=zoo.inputs("vit_tiny"))
        assert part.check().passed


def test_nodes_are_those_of_graph_json() -> None:
    compiled = clew.compile(zoo.path("vit_tiny"))
    inputs = zoo.inputs("vit_tiny")
    compiled.run(inputs)
    nodes = compiled.graph().document["nodes"]
    computing = [n for n, node in enumerate(nodes) if node["op"] not in ("input", "param")]
    for place in computing[:: len(computing) // 5]:
        node = nodes[place]
        by_place = clew.extract(compiled, nodes=str(place), inputs=inputs)
        by_name = clew.extract(compiled, nodes=node["name"], inputs=inputs)
        for part in (by_place, by_name):
            assert set(part.layers) == set(node["layers"])
            assert part.check().passed
        if node["op"] == "kernel":
            assert str(by_place.module) == str(by_name.module)
            assert [k.name for k in by_name.compile().kernels]
    several = [nodes[place]["name"] for place in computing[:3]]
    together = clew.extract(compiled, nodes=several, inputs=inputs)
    assert together.check().passed
    assert clew.extract(compiled, nodes=",".join(several), inputs=inputs).layers == together.layers
    with pytest.raises(InputError, match=r"I143.*no node"):
        clew.extract(compiled, nodes="missing", inputs=inputs)
    with pytest.raises(InputError, match=r"I143.*only inputs and parameters"):
        clew.extract(compiled, nodes="0:1", inputs=inputs)
    with pytest.raises(InputError, match=r"I133"):
        clew.extract(compiled, nodes=[several[0], nodes[computing[-1]]["name"]], inputs=inputs)


def test_sizes_that_values_give_are_refused() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[12], %s: i64[2]) -> (f32[?0, ?1],) with outputs=["o"] {
          %0 = reshape(%x, %s, shape=arg[1])  // r:Reshape#0
          %1 = nn.relu(%0)  // relu:Relu#0
          %2 = (%1,)
          return %2
        }
        """
    )
    compiled = clew.compile(module)
    x, s = np.ones(12, np.float32), np.array([3, 4])
    compiled(x, s)
    nodes = compiled.graph().nodes
    view = next(name for name, node in nodes.items() if node["op"] not in ("input", "param"))
    with pytest.raises(InputError, match=r"I156.*value of input 's'"):
        clew.extract(compiled, nodes=view, inputs={"x": x, "s": s})


def test_a_concatenation_whose_parts_are_computed_in_place() -> None:
    """A range may have some of the parts and what reads the whole."""
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[1, 8, 6], %y: f32[1, 8, 6]) -> (f32[1, 16, 6],) with outputs=["o"] {
          %0 = nn.softmax(%x, axis=2)  // a:Softmax#0
          %1 = nn.softmax(%y, axis=2)  // b:Softmax#0
          %2 = concatenate(%0, %1, axis=1)  // join:Concat#0
          %3 = nn.softmax(%2, axis=2)  // c:Softmax#0
          %4 = (%3,)
          return %4
        }
        """
    )
    compiled = clew.compile(module)
    x, y = np.random.default_rng(0).standard_normal((2, 1, 8, 6)).astype(np.float32)
    made = program(compiled, x=x, y=y)
    count = len(made.nodes)
    for begin in range(count):
        for end in range(begin + 1, count + 1):
            if all(n.op in ("input", "param") for n in made.nodes[begin:end]):
                continue
            report = made.range(begin, end).check()
            assert report.passed, f"{begin}:{end} {report}"


def test_branches_and_loops() -> None:
    for model in ("if_branches", "loop_recurrence"):
        compiled = clew.compile(zoo.path(model))
        inputs = zoo.inputs(model)
        made = program(compiled, **inputs)
        ran = made.kernels()
        assert ran
        assert all(p.check().passed for p in ran.values())
        assert made.range(0, len(made.nodes)).check().passed
        for name in set(made.names) - set(ran):
            with pytest.raises(InputError, match=r"I142.*did not run"):
                clew.extract(compiled, kernel=name, inputs=inputs)


def test_sizes_of_the_run() -> None:
    compiled = clew.compile(zoo.path("bert_tiny_dynamic"))
    for batch in (1, 2):
        made = program(compiled, **zoo.inputs("bert_tiny_dynamic", batch=batch))
        name = list(made.names)[3]
        assert made.kernel(name).check().passed


def test_every_kernel_of_free_sizes() -> None:
    """Sizes stay free, and the kernels the same; one reads an input of the model for a size."""
    compiled = clew.compile(zoo.path("bert_tiny_dynamic"), threads=1)
    made = program(compiled, **zoo.inputs("bert_tiny_dynamic", batch=2, sequence=7))
    parts = made.kernels()
    assert list(parts) == list(made.names)
    for name, part in parts.items():
        assert part.check().passed, name
        again = part.compile()
        again.run(part.inputs)
        assert [u.source.key for u in again.build.uses] == [made.names[name].source.key]
    (sized,) = (n for n, part in parts.items() if "arange" in n and len(part.inputs) == 1)
    assert [str(p.type) for p in parts[sized].module.main.params] == ["i64[batch, sequence]"]
    assert made.range(0, len(made.nodes)).check().passed


def test_a_schedule_of_ones_own(file: Path, tmp_path: Path) -> None:
    name = next(k.name for k in clew.compile(file).kernels if "tanh" in k.ops)

    @clew.schedule_for(kernel=name)
    def plain(schedule: object) -> None:
        """Leaves the loops as they are."""

    compiled = clew.compile(file, extend=[plain])
    inputs = {"x": np.ones((2, 8), np.float32)}
    made = program(compiled, **inputs)
    part = made.kernel(name)
    assert [u.source.key for u in part.compile().build.uses] == [made.names[name].source.key]
    assert part.check().passed
    assert any("own schedule" in n for n in part.notes)
    part.save(tmp_path / "kernel.txt")  # which does not keep it
    assert "extend" not in clew.load_part(tmp_path / "kernel.txt").options
