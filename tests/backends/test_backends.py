"""A user's backend, end to end: what it takes, where its values are, what readers show of it."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from backends_npu import Interpreting, Npu
from region_models import LAYERS, agree, compiled_for, drawn, inputs

import clew
from clew.correlate import graph_schema
from clew.explorer import bundle
from clew.ir.expr import Call, Function
from clew.ir.parser import parse_module
from clew.ir.printer import print_module
from clew.ir.structural import structural_hash
from clew.ir.visit import post_order
from clew.pipelines import pipeline
from clew.runtime.program import Copy, Program, RunRegion
from clew.runtime.spaces import HOST
from clew.support.errors import ClewError, ClewWarning
from clew.trace.export import from_document, to_document
from random_graphs import Graph, close

Array = np.ndarray[Any, Any]

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
BRANCHES = """agraph (float[4,8] x, float[8,8] w, bool c) => (float[4,8] y) {
    t = Exp (x)
    y = If (c) <
        then_branch = left () => (float[4,8] l) {
            p = MatMul (t, w)
            q = Relu (p)
            r = Softmax (q)
            l = Add (r, t)
        },
        else_branch = right () => (float[4,8] r) { r = Add (t, x) }>
}"""
LOOPS = """agraph (float[4,8] x, float[8,8] w) => (float[4,8] y, float[3,4,8] s) {
    n = Constant <value = int64 {3}> ()
    yes = Constant <value = bool {1}> ()
    y, s = Loop (n, yes, x) <body = inner
        (int64 i, bool c, float[4,8] u) => (bool c2, float[4,8] u2, float[4,8] row) {
        c2 = Identity (c)
        p = MatMul (u, w)
        q = Relu (p)
        u2 = Tanh (q)
        row = Add (u2, u)
    }>
}"""


def onnx_of(text: str) -> bytes:
    return onnx.parser.parse_model(HEAD + text).SerializeToString()


def copies_of(program: Program) -> list[Copy]:
    return [i for p in program.walk() for i in p.instructions if isinstance(i, Copy)]


# --- where values are ---


def test_regions_run_where_they_are_taken_and_values_are_copied_once() -> None:
    npu = Npu()
    compiled = compiled_for(npu)
    agree(parse_module(LAYERS), compiled, inputs())
    assert [(r.backend, r.ops, r.layers) for r in compiled.regions] == [
        ("npu", ["nn.matmul", "nn.relu", "add"], ("fc", "act", "sum")),
        ("npu", ["add"], ("out",)),
    ]
    # In: x (read by both regions), w, the softmax. Out: sum (read by two kernels), out.
    assert (npu.memory.into, npu.memory.out_of) == (3, 2)
    program = compiled.build.program
    assert len(copies_of(program)) == 5
    for step in program.instructions:
        spaces = {program.space_of(s).name for s in (*step.inputs, *step.outputs)}
        expected = {"npu.dram"} if isinstance(step, RunRegion) else {"host"}
        assert spaces == expected | ({"npu.dram"} if isinstance(step, Copy) else set())


def test_a_pattern_s_match_is_a_composite_call_in_the_region_given_to_the_backend() -> None:
    npu = Npu()
    compiled_for(npu)
    calls = _calls(npu.regions[0])
    assert [c.op_name for c in calls] == ["dense_relu", "add"]
    assert isinstance(calls[0].op, Function)
    assert calls[0].op.attrs["composite"] == "dense_relu"


def _calls(function: Function) -> list[Call]:
    return [n for n in post_order(function.body) if isinstance(n, Call)]


def test_equal_regions_are_compiled_once() -> None:
    text = LAYERS.replace("nn.softmax(%2)", "nn.softmax(%1)").replace("add(%1, %x)", "exp(%x)")
    npu = Npu()
    twice = text.replace("%5 = exp(%2)  // power:Exp#0", "%5 = add(%2, %x)  // more:Add#0")
    compiled = compiled_for(npu, twice)
    agree(parse_module(twice), compiled, inputs())
    assert len({r.key for r in compiled.regions}) == npu.compiled < len(compiled.regions)


def test_a_backend_in_the_host_s_memory_needs_no_copies() -> None:
    backend = Interpreting(["add", "nn.relu"])
    assert backend.memory is HOST
    compiled = compiled_for(backend)
    agree(parse_module(LAYERS), compiled, inputs())
    assert not copies_of(compiled.build.program)
    assert len(compiled.regions) == 2


def test_between_two_devices_values_go_by_way_of_the_host() -> None:
    one, two = Npu(name="one"), Npu(name="two", additions=True)
    one.additions = False
    compiled = clew.compile(parse_module(LAYERS), backends=[one, two], cache=False)
    agree(parse_module(LAYERS), compiled, inputs())
    assert [r.backend for r in compiled.regions] == ["one", "two", "two"]
    ways = {(c.source_space.name, c.target_space.name) for c in copies_of(compiled.build.program)}
    assert ways == {
        *(("host", "one.dram"), ("one.dram", "host")),
        *(("host", "two.dram"), ("two.dram", "host")),
    }


@pytest.mark.parametrize("taken", [True, False])
def test_regions_in_branches(taken: bool) -> None:
    npu = Npu()
    data = onnx_of(BRANCHES)
    compiled = clew.compile(data, backends=[npu], cache=False)
    assert len(compiled.regions) >= 2
    agree(data, compiled, {**inputs(), "c": np.array(taken)})
    assert min(npu.memory.into, npu.memory.out_of) > 0


@pytest.mark.parametrize("level", [0, 3])
def test_regions_in_loops(level: int) -> None:
    npu = Npu()
    data = onnx_of(LOOPS)
    compiled = clew.compile(data, backends=[npu], cache=False, opt_level=level)
    assert compiled.regions
    agree(data, compiled, inputs())
    assert npu.memory.out_of % 3 == 0


def test_free_sizes_are_known_when_regions_are_made() -> None:
    npu = Npu()
    text = LAYERS.replace("4, 8]", "n, 8]")
    compiled = compiled_for(npu, text)
    for rows in (3, 5):
        agree(parse_module(text), compiled, {**inputs(), "x": drawn(rows, 8)})
        assert len(compiled.regions) == 2
    assert npu.compiled == 4


def test_sizes_that_only_a_run_tells_stay_on_the_cpu() -> None:
    text = """agraph (float[6] x) => (float[k] y, float[6] z) {
        found = NonZero (x)
        row = Squeeze (found)
        some = Gather (x, row)
        y = Add (some, some)
        z = Add (x, x)
    }"""
    npu = Npu()
    data = onnx_of(text)
    compiled = clew.compile(data, backends=[npu], cache=False)
    agree(data, compiled, {"x": np.array([0, 1, 2, 0, 3, 0], np.float32)})
    assert [r.layers for r in compiled.regions] == [("Add_4",)] or len(compiled.regions) == 1


@pytest.mark.parametrize("seed", range(12))
def test_random_placements_change_no_value(seed: int) -> None:
    """What is taken varies by seed; views, concatenations and tuples are at the borders."""
    graph = Graph(seed)
    for _ in range(10):
        graph.grow()
    module = graph.module()
    names = sorted({c.op_name for c in _calls(module.main)})
    chosen = [n for n in names if np.random.default_rng([seed, len(n)]).random() < 0.5]
    one = Interpreting(chosen[::2], name="one", space="one.memory")
    two = Interpreting(chosen, name="two")
    compiled = clew.compile(module, backends=[one, two], cache=False)
    expected = clew.compile(module, cache=False, opt_level=0).run(graph.arrays)
    for name, found in compiled.run(graph.arrays).items():
        close(found, expected[name])
    assert compiled.trace.check() == []


# --- what decides ---


@pytest.mark.parametrize(("seconds", "taken"), [(1e-12, True), (1.0, False)])
def test_costs_decide(seconds: float, taken: bool) -> None:
    compiled = compiled_for(Npu(seconds=seconds))
    assert bool(compiled.regions) is taken
    stage = next(s for s in compiled.build.stages if s.name == "AnnotateTarget")
    assert any("not run on npu" in r.text for r in stage.remarks) is not taken


def test_calls_that_one_backend_declines_are_offered_to_the_next() -> None:
    slow, fast = Npu(name="slow", seconds=1.0), Npu(name="fast")
    compiled = clew.compile(parse_module(LAYERS), backends=[slow, fast], cache=False)
    assert {r.backend for r in compiled.regions} == {"fast"}


def test_a_backend_s_passes_run_before_its_regions_are_made() -> None:
    npu = Npu()
    names = [p.name for p in pipeline(backends=[npu])]
    plain = [p.name for p in pipeline()]
    assert "AnnotateTarget" not in plain
    before = names[: names.index("MergeComposite")]
    assert before[-2:] == ["FoldScaleAxis", "DeadCode"]
    after = names[len(before) + 4 :]
    assert after == ["NarrowIntegers", *plain[len(before) - 2 :]]


@pytest.mark.parametrize("where", ["takes", "cost", "number", "check"])
def test_failures_of_a_backend_in_placement_are_told(where: str) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError(where)

    npu = Npu()
    match where:
        case "takes" | "cost":
            setattr(npu, where, fail)
        case "number":
            npu.seconds = float("nan")
        case "check":
            (wanted,) = npu.patterns
            npu.patterns = [replace(wanted, check=fail)]
    error = error_of(npu)
    assert error.code == "C073"
    assert "npu" in error.message


def test_a_file_to_extend_with_may_hold_a_backend(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from backends_npu import Npu\nmine = Npu()\n"
    )
    module = parse_module(LAYERS)
    compiled = clew.compile(module, extend=[tmp_path / "mine.py"], cache=False)
    assert {r.backend for r in compiled.regions} == {"npu"}
    agree(module, compiled, inputs())


# --- readers ---


def test_the_trace_tells_where_layers_run_and_holds() -> None:
    compiled = compiled_for(Npu())
    assert "runs in matmul_relu_add on npu" in str(compiled.trace.layer("act"))
    assert compiled.trace.check() == []
    assert compiled.trace.verify(inputs()).ok
    again = from_document(to_document(compiled.trace))
    assert str(again.layer("act")) == str(compiled.trace.layer("act"))


def test_the_text_form_of_regions_is_read_back() -> None:
    module = compiled_for(Npu()).build.stages[-1].module
    text = print_module(module)
    assert 'backend="npu"' in text
    assert structural_hash(parse_module(text)) == structural_hash(module)


def test_profiles_taps_and_documents_know_regions() -> None:
    compiled = compiled_for(Npu())
    profile = compiled.profile(**inputs(), repeats=3, roofline=False)
    rows = {row.name: row for row in profile.kernels}
    assert rows["npu:matmul_relu_add"].kind == "region"
    assert rows["npu:matmul_relu_add"].layers == ("fc", "act", "sum")
    assert rows["npu:add"].time.ns > 0
    assert "2 regions of other backends" in " ".join(str(profile).split())
    assert any(o.what == "copies between memories" and o.count == 5 for o in profile.outside)
    given = inputs()
    expected = np.maximum(given["x"] @ given["w"], 0) + given["x"]
    np.testing.assert_allclose(compiled.tap("sum", **given), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ClewError) as caught:
        compiled.tap("fc", **given)
    assert caught.value.code == "I150"
    nodes = [(n["op"], n["name"]) for n in compiled.graph().nodes.values()]
    assert [name for op, name in nodes if op == "region"] == ["matmul_relu_add", "add"]


@pytest.mark.skipif(not bundle.Bundle().is_built, reason="the page is not built")
def test_the_explorer_s_page_takes_models_with_regions(tmp_path: Path) -> None:
    compiled_for(Npu()).report(tmp_path / "page.html", inputs=inputs())
    assert (tmp_path / "page.html").stat().st_size


def test_diffs_tell_what_moved_to_a_backend() -> None:
    compiled = compiled_for(Npu())
    report = clew.diff(compiled, clew.compile(parse_module(LAYERS), cache=False))
    assert "backend 4" in str(report)
    (act,) = [layer for layer in report.layers if layer.a == "act"]
    assert act.differs["backend"] == "npu → cpu"


def test_the_document_of_a_graph_fits_its_schema() -> None:
    made = compiled_for(Npu()).graph().to_json()
    allowed = graph_schema()["$defs"]["node"]["properties"]["op"]["enum"]
    assert {node["op"] for node in made["nodes"]} <= set(allowed)


def test_bisecting_leaves_regions_in_the_program() -> None:
    module = parse_module(LAYERS)
    assert str(clew.bisect(module, inputs(), backends=[Npu()])).startswith("none")


def test_a_deferred_model_runs_on_a_backend() -> None:
    text = """agraph (float[4,8] x, int64[2] shape) => (float[a,b] y) {
        t = Reshape (x, shape)
        y = Add (t, t)
    }"""
    data = onnx_of(text)
    compiled = clew.compile(data, backends=[Npu()], cache=False)
    agree(data, compiled, {"x": drawn(4, 8), "shape": np.array([8, 4])})
    assert [r.backend for r in compiled.regions] == ["npu"]


# --- what is refused ---


def error_of(backend: Any, **options: Any) -> ClewError:
    with pytest.raises(ClewError) as caught:
        compiled_for(backend, **options).run(inputs())
    return caught.value


@pytest.mark.parametrize(
    ("backend", "code", "says"),
    [
        (3, "I350", "int is not a backend"),
        ("npu", "I353", "no backend is called npu"),
        (Npu, "I350", "Npu is not a backend"),
        (Npu(name="cpu"), "I352", "'cpu' is reserved"),
        (Npu(name="host"), "I352", "'host' is reserved"),
        (Npu(name="My NPU"), "I352", "is not a valid name"),
    ],
)
def test_what_is_no_backend_is_refused(backend: Any, code: str, says: str) -> None:
    error = error_of(backend)
    assert error.code == code
    assert says in error.message


def test_parts_of_a_backend_are_checked() -> None:
    npu = Npu()
    npu.patterns = [("dense", npu.patterns[0].pattern)]
    assert error_of(npu).code == "I350"
    npu = Npu()
    npu.memory = object()
    assert error_of(npu).code == "I350"


def test_names_tell_backends_and_memories_apart() -> None:
    with pytest.raises(ClewError) as caught:
        clew.compile(parse_module(LAYERS), backends=[Npu(), Npu()])
    assert caught.value.code == "I351"
    other = Npu(name="other")
    other.memory.name = "npu.dram"
    with pytest.raises(ClewError) as caught:
        clew.compile(parse_module(LAYERS), backends=[Npu(), other])
    assert caught.value.code == "I351"


class Broken(Npu):
    """Fails, hangs, or returns what it should not."""

    limit_s = 0.2

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def compile(self, region: Function, target: Any) -> Any:
        if self.how == "compile":
            raise RuntimeError("no kernel fits")
        if self.how == "slow compile":
            time.sleep(5)
        if self.how == "nothing":
            return None
        made = super().compile(region, target)

        def run(*tiles: Any) -> Any:
            if self.how == "run":
                raise RuntimeError("the device is gone")
            if self.how == "slow run":
                time.sleep(5)
            results = made(*tiles)
            if self.how == "count":
                return (*results, results[0])
            for tile in results:
                if self.how == "shape":
                    tile.shape = (8, 4)
                if self.how == "silent":
                    tile.shape = None
                    tile._data = tile._data.astype("f8")
            return results

        return run


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("compile", "C070", "RuntimeError: no kernel fits"),
        ("nothing", "C070", "not callable"),
        ("run", "I361", "the device is gone"),
        ("count", "I360", "returned 2 results from matmul_relu_add, expected 1"),
        ("shape", "I360", "float32[8, 4] as result 0"),
        ("silent", "I362", "float64[4, 8] for a buffer of float32[4, 8]"),
        ("slow compile", "C074", "has not compiled a region after 0.2 s"),
        ("slow run", "I363", "has not returned from matmul_relu_add after 0.2 s"),
    ],
)
def test_what_a_backend_gets_wrong_is_told(how: str, code: str, says: str) -> None:
    error = error_of(Broken(how))
    assert error.code == code
    assert says in error.message
    if how != "silent":
        assert error.layer == "fc, act, sum"
    if code in ("C070", "C074"):
        assert error.stage == "compile on npu"
        assert error.hint


@pytest.mark.parametrize(
    "how", ["compile", "nothing", "slow compile", "run", "count", "shape", "slow run"]
)
def test_with_a_fallback_a_region_that_fails_runs_on_the_cpu(how: str) -> None:
    """It is told once, and the results are those of the CPU in all later calls, too."""
    rng = np.random.default_rng(3)
    module = parse_module(LAYERS)
    plain = clew.compile(module, cache=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = clew.compile(module, backends=[Broken(how)], fallback=True, cache=False)
        for _ in range(3):
            x, w = rng.standard_normal((4, 8), "f4"), rng.standard_normal((8, 8), "f4")
            for found, expected in zip(compiled(x, w), plain(x, w), strict=True):
                close(found, expected)
    messages = [w.message for w in told]
    assert {m.code for m in messages if isinstance(m, ClewWarning)} == {"I313"}
    early = "compile" in how or how == "nothing"
    assert {r.backend for r in compiled.regions} == {"cpu" if early else "npu"}
    assert len(messages) == 2  # once for each region
    remarks = [r.text for r in compiled.build.stages[-1].remarks]
    assert any("runs on cpu" in text for text in remarks) is early
    assert compiled.trace.check() == []


def test_with_a_fallback_a_region_goes_to_the_next_backend_that_takes_it() -> None:
    broken, sound = Broken("compile"), Npu(name="sound")
    broken.name = "broken"
    module = parse_module(LAYERS)
    with pytest.warns(ClewWarning, match=r"\(fc, act, sum\) runs on sound: .*no kernel fits"):
        compiled = clew.compile(module, backends=[broken, sound], fallback=True, cache=False)
    assert {r.backend for r in compiled.regions} == {"sound"}
    assert sound.compiled == len(compiled.regions)


def test_a_region_without_its_backend_is_refused() -> None:
    module = compiled_for(Npu()).build.stages[-1].module
    with pytest.raises(ClewError) as caught:
        _ = clew.compile(module, passes=[], cache=False).kernels
    assert caught.value.code == "U040"


def test_a_list_of_passes_without_placement_is_told() -> None:
    with pytest.warns(ClewWarning, match="backends have no effect"):
        clew.compile(parse_module(LAYERS), backends=[Npu()], passes=pipeline(), cache=False)
