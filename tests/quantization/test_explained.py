"""What a quantized model says about itself: errors, notes in traces and files, times, a picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from small_models import convolutional, drawn, stack

import clew
from clew.explorer.session import Session
from clew.explorer.views.heat import heat
from clew.explorer.views.story import story
from clew.ir.notes import notes_of
from clew.machine.target import target_of
from clew.quantization import FloatSet, Put, Quantized, Scheme, Step, Where
from clew.quantization.picture import frontier_svg
from clew.quantization.times import LayerTime, Timing, why_no_bf16
from clew.support.errors import InputError
from clew.trace.export import from_document, to_document

DATA = drawn(6, 3, 8, 8)


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("explained") / "small.onnx"
    onnx.save(convolutional(), path)
    return path


@pytest.fixture(scope="module")
def kept(source: Path) -> Quantized:
    """The last layer stays in floats."""
    return clew.quantize(source, DATA, keep=Where(last=1), threads=1)


@pytest.fixture(scope="module")
def file(kept: Quantized, tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("explained") / "int8.onnx"
    kept.save(path)
    return path


@pytest.fixture(scope="module")
def session(file: Path) -> Session:
    return Session(clew.compile(file, threads=1), model=file.name, path=file)


# --- errors ---


def test_errors_accumulate() -> None:
    weights = [drawn(16, 16, seed=n, scale=0.3) for n in range(3)]
    q = clew.quantize(stack(weights), drawn(32, 16, seed=9), keep="fc0", threads=1)
    first, second, last = q.layers
    assert first.error == 0, "nothing before it is quantized, and neither is it"
    assert second.sqnr_db is not None
    # The operand of the second layer is exact, so that its error is its own.
    np.testing.assert_allclose(second.error, 10 ** (-second.sqnr_db / 20), rtol=0.02)
    assert last.error is not None
    assert last.sqnr_db is not None
    assert last.error > 1.1 * 10 ** (-last.sqnr_db / 20)
    assert last.error == q.error
    assert (first.operand_bits, second.operand_bits, second.weight_bits) == (32, 8, 8)


def test_errors_are_those_of_values_in_runs(source: Path, kept: Quantized) -> None:
    exact, found = clew.compile(source, threads=1), kept.compile(threads=1)
    pairs = [[m.tap("body.conv", x, force=True) for m in (exact, found)] for x in np.split(DATA, 6)]
    a, b = (np.concatenate(each) for each in zip(*pairs, strict=True))
    error = np.linalg.norm(b - a) / np.linalg.norm(a)
    np.testing.assert_allclose(kept.layers[1].error, error, rtol=0.02)


def test_a_recipe_keeps_errors_only_with_the_same_layers(source: Path, kept: Quantized) -> None:
    again = clew.quantize(source, recipe=kept.recipe)
    assert [r.error for r in again.layers] == [r.error for r in kept.layers]
    assert again.module.main.attrs == kept.module.main.attrs
    fewer = clew.quantize(source, recipe=kept.recipe, keep="body.conv")
    assert [r.error for r in fewer.layers] == [None] * 3
    assert all(note.error is None for note in notes_of(fewer.module))


def test_the_table_fits(kept: Quantized) -> None:
    text = str(kept)
    assert all(len(line) <= 100 for line in text.splitlines())
    for word in ("u8 x i8", "f32", "error", "SQNR", "in floats, asked for: head"):
        assert word in text


# --- notes ---


def test_stories_say_how_layers_were_quantized(kept: Quantized, file: Path) -> None:
    for model in (kept.compile(threads=1), clew.compile(file, threads=1)):
        text = str(model.trace.layer("body.conv"))
        scale = kept.recipe.layers[1].scale
        for word in (f"scale {scale:.4g}", "zero point 0", "6 samples", "range by mse"):
            assert word in text
        assert "kept in floats: asked for" in str(model.trace.layer("head"))
        assert "rounded for body.conv: u8" in str(model.trace.layer("stem.act"))
        assert "notes" not in model.trace.printed(0).text


def test_the_text_form_keeps_notes(kept: Quantized, tmp_path: Path) -> None:
    kept.save(tmp_path / "q.txt")
    module = clew.load(tmp_path / "q.txt")
    assert notes_of(module) == notes_of(kept.module)
    assert len(notes_of(module)) == 4
    assert str(module) == str(kept.module)


def test_an_exported_trace_keeps_notes(kept: Quantized) -> None:
    trace = kept.compile(threads=1).trace
    again = from_document(json.loads(json.dumps(to_document(trace))))
    assert again.notes == trace.notes
    assert again.layer("body.conv").notes


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", "[1]", '[["head"]]', '[["none", "x", null]]', '[["head", 1, 2]]', "[" * 9999],
)
def test_damaged_notes_are_left_out(file: Path, text: str) -> None:
    model = onnx.load(file)
    for entry in model.metadata_props:
        entry.value = text if entry.key == "clew.notes" else entry.value
    assert notes_of(clew.load(model.SerializeToString())) == ()


def test_notes_of_a_file_are_escaped(file: Path) -> None:
    model = onnx.load(file)
    for entry in model.metadata_props:
        if entry.key == "clew.notes":
            entry.value = json.dumps([["head", "a\x1b[31mb", -1.0], ["head", "x" * 2000, 0.1]])
    (note,) = notes_of(clew.load(model.SerializeToString()))
    assert note.text.isprintable()
    assert note.error is None


def test_the_explorer_tells_the_story(session: Session) -> None:
    def told(ref: str) -> str:
        sentences = [s for section in story(session, ref).sections for s in section.sentences]
        return "\n".join("".join(p.text for p in s.parts) for s in sentences)

    layer = told("layer:body.conv")
    assert "6 samples (range by mse)" in layer
    assert "dequantize u8 → f32 of stem.act for body.conv" in layer
    place = next(n for n, k in enumerate(session.uses) if "body.conv" in k.layers)
    kernels = [told(f"kernel:{n}") for n in range(len(session.kernels))]
    assert any("body.conv: quantized: its operand is u8" in text for text in kernels[place:])
    assert "Kept in floats: asked for" in told("layer:head")


def test_colors_by_quantization_error(session: Session, kept: Quantized, source: Path) -> None:
    found = heat(session, "quantization")
    errors = {r.layer: r.error for r in kept.layers}
    for name, figure in zip(session.layers, found.layers, strict=True):
        assert figure == errors.get(name)
    assert max(f for f in found.kernels if f is not None) == max(errors.values())
    assert all(
        n.number for n, s in zip(found.nodes, session.trace.stages, strict=True) if s.changed
    )
    assert found.notes == []
    plain = Session(clew.compile(source, threads=1), model="plain")
    none = heat(plain, "quantization")
    assert set(none.layers) == {None}
    assert "no errors are known" in none.notes[0]


# --- times, and the frontier ---


def test_times_say_why_bf16_is_missing() -> None:
    assert "no instructions for products of bf16" in why_no_bf16(target_of("cpu-avx2"))
    timing = Timing((), 2000.0, 1000.0, None, why_no_bf16(target_of("cpu-avx2")))
    assert any("bf16 is not timed" in line for line in timing.lines())
    assert "1.5 ms in bf16" in Timing((), 2000.0, 1000.0, 1500.0).lines()[0]


def test_times_in_the_table(kept: Quantized) -> None:
    layers = (
        LayerTime("stem.conv", 30.0, 20.0, (), (), 25.0),
        LayerTime("body.conv", 9.0, 4.0, (), ()),
    )
    timed = replace(kept, timing=Timing(layers, 60.0, 30.0))
    heads, first, second, third = str(timed).splitlines()[:4]
    assert heads.endswith("f32 µs  bf16  int8")
    assert first.split()[-3:] == ["30", "25", "20"]
    assert second.split()[-2:] == ["9", "4"]
    assert third.startswith("head")
    assert timed.to_json()["times"]["float_us"] == 60
    assert all(len(line) <= 100 for line in str(timed).splitlines())


STEPS = (Step("", 0.5, True), Step("b <i>", 0.02, True), Step("a", 0.0, False))
TIMING = Timing(
    (LayerTime("b <i>", 30.0, 20.0, (), ()), LayerTime("a", 20.0, 5.0, (), ())), 60.0, 30.0
)


@pytest.mark.parametrize("timing", [None, TIMING])
def test_the_frontier_as_a_picture(timing: Timing | None) -> None:
    floats = FloatSet(0.05, ("b <i>",), 0.02, 0.5, (Put("b <i>", 0.5),), 3, 2)
    svg = frontier_svg(STEPS, floats, timing, "relative error of the outputs")
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    circles = root.findall(f"{space}circle")
    kinds = [c.attrib["class"] for c in circles]
    assert kinds == ["point", "point", "estimate", "chosen"]
    lines = [e.attrib["class"] for e in root.findall(f"{space}line")]
    assert lines.count("bound") == 1
    assert lines.count("run") == (1 if timing else 0)
    texts = [t.text for t in root.iter(f"{space}text")]
    assert "b <i>" in texts
    if timing:  # all layers in floats take the time of the model in floats
        run = next(e for e in root.findall(f"{space}line") if e.attrib["class"] == "run")
        assert math.isclose(float(circles[2].attrib["cx"]), float(run.attrib["x1"]), abs_tol=0.2)


def test_a_frontier_needs_errors(kept: Quantized, source: Path) -> None:
    with pytest.raises(InputError) as error:
        kept.frontier_svg()
    assert error.value.code == "I406"
    found = clew.quantize(source, DATA[:2], sensitivities=True, threads=1)
    assert found.frontier[0].layer == ""
    assert found.frontier[0].figure == pytest.approx(found.error, rel=1e-3)
    assert found.frontier_svg().startswith("<svg")


def test_stories_of_weights_alone(source: Path) -> None:
    found = clew.quantize(str(source), scheme=Scheme.weight_only("i4", group=4))
    told = str(found.compile().trace.layer("head"))
    assert "its operand is left in floats" in told
    assert "its weight is i4, a scale for each 4 inputs of" in told
    assert "float x i4 by 4" in str(found)
