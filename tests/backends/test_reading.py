"""What shows or reads a compiled model, across the borders of backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends_npu import Npu

import clew
from clew.backends.backend import CompiledRegion
from clew.backends.numpy.backend import NumPy
from clew.cli import app
from clew.explorer.builds.local import options_of
from clew.explorer.choices import choices
from clew.explorer.own import Own, compile_options, split_options
from clew.explorer.routes import answer
from clew.explorer.schema import Options, Story
from clew.explorer.session import Session
from clew.ir.expr import Function
from clew.ir.parser import parse_module
from clew.machine.target import Target
from clew.profile import chrome
from clew.profile.modes import profile
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]

TEXT = """
clew 1
def @main(
  %x: f32[4, 8],  // input x
  %w: f32[8, 8]  // input w
) -> (f32[4, 8],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // fc:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = exp(%1)  // power:Exp#0
  %3 = nn.softmax(%2)  // soft:Softmax#0
  %4 = add(%3, %x)  // sum:Add#0
  %5 = (%4,)
  return %5
}
"""
PLACE = {"numpy": ["fc", "act"], "wrong": ["soft"]}


class Wrong(NumPy):
    """A backend whose results are 5 % too large."""

    name = "wrong"

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        run = super().compile(region, target)
        return lambda *arrays: np.asarray(run(*arrays)) * np.float32(1.05)

    def to_record(self, region: CompiledRegion) -> bytes | None:
        return None


def inputs() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((4, 8)).astype("f4"), "w": draw((8, 8)).astype("f4")}


@pytest.fixture(scope="module")
def compiled() -> clew.CompiledModel:
    return clew.compile(parse_module(TEXT), backends=["numpy"], place={"numpy": ["fc", "act"]})


@pytest.fixture
def session(compiled: clew.CompiledModel) -> Session:
    return Session(compiled, model="model", options=options_of(compiled))


def said(story: Story) -> str:
    sentences = (s for section in story.sections for s in section.sentences)
    return " ".join("".join(part.text for part in s.parts) for s in sentences)


# --- the explorer ---


def test_a_region_tells_its_backend_layers_and_operators(session: Session) -> None:
    overview = answer(session, "overview")
    (region,) = overview.regions
    assert (region.backend, region.ops, region.copies) == ("numpy", ["nn.matmul", "nn.relu"], [])
    assert [overview.layers[n].name for n in region.layers] == ["fc", "act"]
    assert overview.layers[region.layers[0]].fate == "region"
    assert overview.placement is None
    told = said(answer(session, "story/region:0"))
    assert "The backend numpy runs fc and act." in told
    assert "The program copies nothing" in told
    assert "Runs in matmul_relu on numpy." in said(answer(session, "story/layer:fc"))
    node = f"node:{session.trace.last}:{region.numbers[0]}"
    assert "It runs in matmul_relu on numpy." in said(answer(session, f"story/{node}"))
    entries = [e for e in answer(session, "index").entries if e.kind == "region"]
    assert [(e.text, e.detail, e.ref) for e in entries] == [("matmul_relu", "numpy", "region:0")]


def test_a_region_that_does_not_exist_is_refused(session: Session) -> None:
    with pytest.raises(ClewError) as caught:
        answer(session, "story/region:1")
    assert caught.value.code == "I244"


def test_the_copies_at_borders_are_those_of_the_program() -> None:
    compiled = clew.compile(parse_module(TEXT), backends=[Npu()], cache=False)
    session = Session(compiled, model="model")
    first, second = answer(session, "overview").regions
    ways = [(c.source, c.target, c.value, c.bytes) for c in first.copies]
    assert ways == [
        ("host", "npu.dram", "float32[4, 8]", 128),
        ("host", "npu.dram", "float32[8, 8]", 256),
        ("npu.dram", "host", "float32[4, 8]", 128),
    ]
    assert ("host", "npu.dram") in [(c.source, c.target) for c in second.copies]
    assert "Copies float32[8, 8] (256 B) from host to npu.dram." in said(
        answer(session, "story/region:0")
    )


def test_a_measured_region_has_its_time(session: Session) -> None:
    given = session.compiled.checked((), inputs())
    found = profile(session.compiled, given, repeats=3, sample=False, roofline=False)
    session.measured["profile"] = found
    row = next(r for r in found.kernels if r.kind == "region")
    assert answer(session, "heat/time").regions == [row.ns]
    assert answer(session, "heat/flops").regions == [None]
    slices = [s for s in answer(session, "timeline").slices if s.ref == "region:0"]
    assert {s.track for s in slices} == {"kernels", "operators"}
    assert f"{100 * row.share:.0f} % of a run" in said(answer(session, "story/region:0"))
    events = chrome.trace(found, None)["traceEvents"]
    assert {e["cat"] for e in events if e["name"] == "numpy:matmul_relu"} == {"region"}


def test_the_form_s_options_place_layers(tmp_path: Path) -> None:
    assert {"onnxruntime", "openvino", "numpy"} <= set(choices()["backends"])
    options = Options(backends=["numpy"], place=["numpy=fc,act"])
    given = compile_options(options, Own())
    made = clew.compile(parse_module(TEXT), **given)
    assert [r.layers for r in made.regions] == [("fc", "act")]
    assert split_options([given])[0] == [options]
    shown = options_of(made)
    assert (shown.backends, shown.place) == (["numpy"], ["numpy=fc,act"])


def test_a_build_keeps_its_placement_and_the_page_shows_it(tmp_path: Path) -> None:
    module = parse_module(TEXT)
    database = tmp_path / "records.db"
    placement = clew.place(module, ["numpy"], threads=1, seconds=0.1, tuned=database)
    given: dict[str, Any] = {"backends": ["numpy"], "threads": 1, "tuned": database}
    for place in (placement, "auto"):
        made = clew.compile(module, place=place, **given)
        assert made.placement is not None
        assert made.placement.to_json() == placement.to_json()
    assert clew.compile(module, place=placement.rule, **given).placement is None
    shown = answer(Session(made, model="model"), "overview").placement
    assert {p.name for p in shown.plans} == {p.name for p in placement.plans}
    assert [p.chosen for p in shown.plans].count(True) == 1
    others = [o.backend for r in shown.regions for o in r.others]
    assert set(others) <= {"cpu", "numpy"}
    assert len(others) == len(shown.regions)


# --- queries ---


def test_taps_inside_a_region_say_who_has_the_value(compiled: clew.CompiledModel) -> None:
    np.testing.assert_allclose(
        compiled.tap("act", **inputs()), np.maximum(inputs()["x"] @ inputs()["w"], 0), atol=1e-5
    )
    with pytest.raises(ClewError) as caught:
        compiled.tap("fc", **inputs())
    assert caught.value.code == "I150"
    assert "only numpy has it" in str(caught.value.hint)
    with pytest.raises(ClewError) as caught:
        compiled.tap("fc", **inputs(), force=True)
    assert caught.value.code == "I154"
    assert "the region on numpy that holds fc" in caught.value.message


def test_the_backend_that_computes_wrongly_is_named() -> None:
    module = parse_module(TEXT)
    given: dict[str, Any] = {"backends": ["numpy", Wrong()], "place": PLACE, "reduce": False}
    verdict = clew.bisect(module, inputs(), **given)
    assert (verdict.kind, verdict.backend, verdict.layers) == ("backend", "wrong", ("soft",))
    assert verdict.local_error == pytest.approx(0.05, rel=1e-2)
    assert "backend     wrong" in str(verdict)
    assert verdict.to_json()["backend"] == "wrong"
    right = {**given, "place": {"numpy": ["fc", "act", "soft"]}}
    assert clew.bisect(module, inputs(), **right).kind == "none"


def test_parts_take_the_options_of_the_whole_model(compiled: clew.CompiledModel) -> None:
    module = parse_module(TEXT)
    given: dict[str, Any] = {"backends": ["numpy"], "place": {"numpy": ["fc", "soft"]}}
    for layer, regions in (("soft", 1), ("power", 0)):
        part = clew.extract(module, layers=[layer], inputs=inputs())
        made = part.compile(**given)
        assert len(made.regions) == regions
        assert part.check(**given).passed


def test_a_saved_model_finds_clew_s_own_backends(
    compiled: clew.CompiledModel, tmp_path: Path
) -> None:
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew")
    np.testing.assert_array_equal(loaded(*inputs().values()), compiled(*inputs().values()))


def test_a_layer_that_shares_its_operators_is_told() -> None:
    shared = TEXT.replace("// act:Relu#0", "// act:Relu#0, other:Clip#0")
    given: dict[str, Any] = {"backends": ["numpy"], "cache": False}
    with pytest.warns(clew.ClewWarning, match="its operators also serve other"):
        made = clew.compile(parse_module(shared), place={"numpy": ["act"]}, **given)
    assert made.regions == []
    made = clew.compile(parse_module(shared), place={"numpy": ["act", "other"]}, **given)
    assert [r.ops for r in made.regions] == [["nn.relu"]]


# --- the command line ---


def test_compile_lists_regions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.txt"
    path.write_text(TEXT)

    def ran(*more: str) -> tuple[str, str]:
        asked = ["compile", str(path), "--backend", "numpy", "--place", "numpy=fc,act", *more]
        with pytest.raises(SystemExit) as left:
            app.main(asked)
        assert not left.value.code
        out, err = capsys.readouterr()
        return out, " ".join(err.split())

    table, summary = ran()
    assert "matmul_relu  numpy    fc, act" in table
    assert "and 1 region of other backends" in summary
    regions = json.loads(ran("--json")[0])["regions"]
    assert [(r["backend"], r["layers"]) for r in regions] == [("numpy", ["fc", "act"])]
