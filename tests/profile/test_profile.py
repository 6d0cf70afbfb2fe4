"""Profiles of models: what they add up to, whatever a model is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from models import arrays, compiled, profiled

import clew
import zoo
from clew.profile.report import Profile
from clew.support.errors import InputError

KINDS = ["keyword_spotting", "if_branches", "loop_recurrence", "bert_tiny_dynamic", "llama_tiny"]


def check_sums(profile: Profile) -> None:
    assert profile.kernels
    whole = sum(kernel.ns for kernel in profile.kernels)
    assert whole == profile.kernels_ns
    assert sum(layer.ns for layer in profile.layers) == whole
    assert sum(operator.ns for operator in profile.operators) == whole
    assert profile.outside_ns == max(0.0, profile.wall.ns - whole)
    for kernel in profile.kernels:
        assert sum(o.ns for o in kernel.operators) == kernel.ns
        for operator in kernel.operators:
            assert sum(part.ns for part in operator.parts) == operator.ns
            assert operator.kernel == kernel.name
    names = [kernel.name for kernel in profile.kernels]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", KINDS)
def test_layers_and_operators_add_up_to_kernels(name: str) -> None:
    profile = profiled(name)
    check_sums(profile)
    assert (profile.mode, profile.threads, profile.rounds) == ("fused", 1, 3)
    known = {k.name: k for k in compiled(name).kernels}
    for kernel in profile.kernels:
        if kernel.kind == "kernel":
            assert kernel.layers == known[kernel.name].layers
            assert tuple(o.op for o in kernel.operators) == known[kernel.name].ops
    order = compiled(name).build.layer_order
    places = [order[la.layer] for la in profile.layers if la.layer in order]
    assert places == sorted(places)


def test_layers_are_those_of_the_model() -> None:
    profile = profiled("keyword_spotting")
    named = {layer.layer: layer.op for layer in profile.layers}
    module = compiled("keyword_spotting").module
    known = {s.layer: s.op for s in _sources(module)}
    assert named == {name: known[name] for name in named}
    assert {"Conv", "Softmax"} <= set(named.values())


def _sources(module: Any) -> list[Any]:
    from clew.ir.visit import post_order  # noqa: PLC0415

    return [s for node in post_order(module.main) for s in node.span.sources]


@pytest.mark.parametrize("trips", [0, 3])
def test_a_loops_kernels_count_all_their_runs(trips: int) -> None:
    model = compiled("loop_recurrence")
    feed = zoo.inputs("loop_recurrence") | {"trips": np.array(trips)}
    given = [feed[n] for n in model.input_names]
    found = model.profile(*given, repeats=2, sample=False, roofline=False)
    check_sums(found)
    body = [k for k in found.kernels if any(la.startswith("body/") for la in k.layers)]
    assert bool(body) == (trips > 0)  # what did not run is left out
    assert all(k.runs == body[0].runs for k in body)
    assert all(k.runs >= 1 for k in found.kernels)


GROWS = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[4] x, int64 n) => (float[k] y) {
    yes = Constant <value = bool {1}> ()
    y = Loop (n, yes, x) <body = inner
        (int64 i, bool c, float[j] u) => (bool c2, float[k] u2) {
        c2 = Identity (c)
        r = Relu (u)
        u2 = Concat <axis = 0> (r, x)
    }>
}"""


def test_what_is_outside_kernels_is_told() -> None:
    model = clew.compile(onnx.parser.parse_model(GROWS), threads=1)
    x = np.ones(4, np.float32)
    profile = model.profile(x, np.array(3), repeats=2, sample=False, roofline=False)
    rows = {row.what: row for row in profile.outside}
    assert {"the call", "calls of native code", "loops"} <= set(rows)
    assert rows["the call"].count == rows["loops"].count == 1
    assert rows["calls of native code"].count > 1
    assert all(row.ns >= 0 for row in rows.values())
    assert "loops" in profile.table("kernel")
    assert [row.what for row in profiled("keyword_spotting").outside] in (
        [],
        ["the call"],
        ["calls of native code", "the call"],
        ["the call", "calls of native code"],
    )


def test_only_the_branch_that_was_taken_has_times() -> None:
    profile = profiled("if_branches")
    assert len(profile.kernels) < len(compiled("if_branches").kernels)


@pytest.fixture
def with_host_steps(tmp_path: Path) -> clew.CompiledModel:
    """A kernel, an operator that runs on the host, and a kernel beside it."""
    graph = onnx.parser.parse_graph(
        "g (float[4,4] x) => (float[4,4] y, float[4,4] z)"
        " { a = Relu(x) y = com.microsoft.Inverse(a) z = Sin(a) }"
    )
    for node in graph.node:
        node.name = f"my_{node.op_type}"
    opset = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "host.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return clew.compile(path, threads=1)


ONES = np.eye(4, dtype=np.float32)


def test_host_steps_are_rows_with_their_layers(with_host_steps: clew.CompiledModel) -> None:
    found = with_host_steps.profile(ONES, repeats=3, sample=False, roofline=False)
    check_sums(found)
    (host,) = [k for k in found.kernels if k.kind == "host"]
    assert (host.name, host.ops) == ("host:inverse", ("inverse",))
    assert host.layers == ("my_Inverse",)
    assert host.runs == 1
    assert host.ns > 0
    assert {la.layer for la in found.layers} == {"my_Relu", "my_Inverse", "my_Sin"}
    assert "host:inverse" in found.table("kernel")
    assert "2 kernels and 1 host step;" in " ".join(found.table("kernel").split())


def test_each_size_of_a_symbolic_model_has_its_profile() -> None:
    model = compiled("bert_tiny_dynamic")
    asked: Any = {"repeats": 2, "sample": False, "roofline": False}
    short = model.profile(*arrays("bert_tiny_dynamic", sequence=4), **asked)
    long = model.profile(*arrays("bert_tiny_dynamic", sequence=32), **asked)
    for profile in (short, long):
        check_sums(profile)
    assert [k.ops for k in short.kernels if k.kind == "kernel"]


def test_both_modes_side_by_side() -> None:
    profile = profiled("keyword_spotting", "both")
    assert profile.mode == "fused"
    unfused = profile.unfused
    assert unfused is not None
    check_sums(profile)
    check_sums(unfused)
    assert unfused.mode == "unfused"
    assert all(len(k.operators) == 1 for k in unfused.kernels)
    assert len(unfused.kernels) > len(profile.kernels)
    whole, *layers = profile.gains
    assert whole.layer is None
    assert (whole.unfused_ns, whole.fused_ns) == (unfused.wall.ns, profile.wall.ns)
    assert sum(g.fused_ns for g in layers) == profile.kernels_ns
    assert sum(g.unfused_ns for g in layers) == unfused.kernels_ns
    assert whole.speedup == whole.unfused_ns / whole.fused_ns
    assert "times as fast" in profile.table()


def test_one_operator_a_kernel() -> None:
    profile = compiled("keyword_spotting").profile(
        *arrays("keyword_spotting"), repeats=1, mode="unfused", roofline=False
    )
    assert profile.mode == "unfused"
    assert profile.unfused is None
    assert {o.basis for o in profile.operators} == {"alone"}


def test_roofs() -> None:
    profile = compiled("keyword_spotting").profile(
        *arrays("keyword_spotting"), repeats=2, sample=False
    )
    assert profile.limits is not None
    assert profile.limits.peak_gflops > 1
    assert set(profile.limits.bandwidth_gbps) >= {"L2", "memory"}
    for kernel in profile.kernels:
        roof = kernel.roof
        assert roof is not None
        assert roof.limit in ("compute", *profile.limits.bandwidth_gbps)
        larger = max(roof.peak_share, roof.bandwidth_share)
        assert roof.limit_share == pytest.approx(larger)
        assert roof.gbps == pytest.approx(roof.bytes / max(kernel.ns, 1.0))


def test_a_saved_model_has_times_of_kernels_and_says_so(tmp_path: Path) -> None:
    compiled("keyword_spotting").save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    profile = loaded.profile(*arrays("keyword_spotting"), repeats=2)
    check_sums(profile)
    assert any("saved model" in note for note in profile.notes)
    assert {o.basis for o in profile.operators} == {"alone", "undivided"}
    assert [k.name for k in profile.kernels] == [k.name for k in loaded.kernels]
    with pytest.raises(InputError, match="cannot be compiled again") as caught:
        loaded.profile(*arrays("keyword_spotting"), mode="both")
    assert caught.value.code == "I111"


def test_saved_host_steps_keep_their_layers(
    with_host_steps: clew.CompiledModel, tmp_path: Path
) -> None:
    with_host_steps.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew", threads=1)
    found = loaded.profile(ONES, repeats=1)
    check_sums(found)
    assert [k.layers for k in found.kernels if k.kind == "host"] == [("my_Inverse",)]


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("I110", {"mode": "melted"}),
        ("I116", {"repeats": 0}),
        ("I116", {"warmup": -1}),
        ("I116", {"sample": -1.0}),
    ],
)
def test_what_cannot_be_asked_for(code: str, asked: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        compiled("keyword_spotting").profile(*arrays("keyword_spotting"), **asked)
    assert caught.value.code == code
    assert caught.value.hint


def test_kernels_by_name() -> None:
    profile = profiled("keyword_spotting")
    first = profile.kernels[0]
    assert profile.kernel(first.name) is first
    with pytest.raises(InputError, match="no kernel named 'nothing'") as caught:
        profile.kernel("nothing")
    assert caught.value.code == "I113"
    assert first.name in caught.value.hint


def test_a_loop_nest_has_shares_only_where_samples_were_taken() -> None:
    profile = compiled("keyword_spotting").profile(
        *arrays("keyword_spotting"), repeats=1, sample=False, roofline=False
    )
    with pytest.raises(InputError, match="no samples") as caught:
        profile.annotated(profile.kernels[0].name)
    assert caught.value.code == "I114"


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_tables_fit(width: int) -> None:
    for profile in (profiled("keyword_spotting", "both"), profiled("loop_recurrence")):
        for by in (None, "kernel", "layer", "operator"):
            text = profile.table(by, width=width, top=3)  # type: ignore[arg-type]
            if width >= 60:
                assert max(map(len, text.splitlines())) <= width
            assert "outside kernels" in text
            assert "a run" in text
    assert str(profiled("loop_recurrence")).startswith("fused, 1 thread: a run takes")
