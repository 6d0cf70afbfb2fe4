"""Parts by layers and patterns: what crosses their boundary, and that they run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clew
from clew.extraction import extract_ranges
from clew.ir.visit import post_order
from clew.patterns import is_op, wildcard
from clew.support.errors import InputError

from .conftest import blocks


def ops(part: clew.Part) -> list[str]:
    nodes = post_order(part.module.main.body)
    return [n.op_name for n in nodes if hasattr(n, "op_name")]


def test_a_range_has_inputs_outputs_and_what_is_fixed(file: Path) -> None:
    part = clew.extract(file, start="act", end="residual", seed=3)
    assert list(part.inputs) == ["a"]
    assert list(part.outputs) == ["b", "d"]  # `b` is read by `side`, too
    assert part.layers == ("act", "second", "residual")
    assert "multiply" in ops(part)  # of the parameters alone: built where it is read
    assert part.check().passed
    assert part.check().exact
    assert not part.check(opt_level=3).exact
    assert part.check(opt_level=3, threads=1).passed
    whole = clew.compile(file, opt_level=0).run({"x": _drawn(3)})
    assert list(whole) == ["y", "z"]
    np.testing.assert_array_equal(part.outputs["b"], np.maximum(part.inputs["a"], 0))


def _drawn(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, 8)).astype(np.float32)


def test_given_inputs_are_those_of_the_run(file: Path) -> None:
    x = np.ones((2, 8), np.float32)
    part = clew.extract(file, end="first", inputs={"x": x})
    np.testing.assert_array_equal(part.inputs["x"], x)
    assert part.name == "first"


def test_several_begins_and_ends(file: Path) -> None:
    part = clew.extract(file, start=["second", "side"], end=["residual", "side"])
    assert part.layers == ("second", "residual", "side")
    assert list(part.inputs) == ["b", "a"]
    assert list(part.outputs) == ["d", "z"]
    assert part.check().passed


def test_the_end_is_an_output_though_it_is_read_inside(file: Path) -> None:
    part = clew.extract(file, start="cut", end=["join", "out"])
    assert list(part.outputs) == ["e", "y"]


def test_a_layer_with_several_results(file: Path) -> None:
    part = clew.extract(file, start="residual", end="cut")
    assert list(part.outputs) == ["left", "right"]
    part = clew.extract(file, start="join")
    assert list(part.inputs) == ["left", "right"]
    assert part.check().passed


def test_a_model_without_a_file_has_names_of_layers(file: Path) -> None:
    module = clew.load(file)
    part = clew.extract(module, start="residual", end="cut")
    assert list(part.inputs) == ["second", "first"]
    assert list(part.outputs) == ["cut", "cut:1"]
    assert list(clew.extract(module, start="residual", end="cut", source=file).inputs) == ["c", "a"]


@pytest.mark.parametrize(
    "chosen",
    [
        {"start": "act", "end": "residual"},
        {"layers": ["second", "residual"]},
        {"kernel": ""},
        {"nodes": "1:3"},
    ],
    ids=lambda chosen: next(iter(chosen)),
)
def test_borders_have_one_name_in_every_form(
    file: Path, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    if "kernel" in chosen:  # a kernel of whole layers, so that its ONNX form has its borders
        kernels = clew.compile(file, opt_level=0).kernels
        chosen = {"kernel": next(k.name for k in kernels if k.layers == ("act",))}
    folded = {"opt_level": 0, "passes": clew.Passes(required=["FoldConstant"])}
    options = folded if {"kernel", "nodes"} & chosen.keys() else {}
    part = clew.extract(file, **chosen, **options)
    for name in ("part.txt", "part.onnx", "part.py"):
        part.save(tmp_path / name)
        back = clew.load_part(tmp_path / name)
        assert list(back.inputs) == list(part.inputs), name
        assert list(back.outputs) == list(part.outputs), name
        assert set(back.module.input_names) == set(part.inputs)
    values = {name for n in onnx.load(file).graph.node for name in (*n.input, *n.output)}
    assert {*part.inputs, *part.outputs} <= values


def test_just_these_layers(file: Path) -> None:
    part = clew.extract(file, layers=["second", "residual"])
    assert part.layers == ("second", "residual")
    with pytest.raises(InputError, match=r"I133[^§]*second, residual, cut"):
        clew.extract(file, layers=["act", "join"])


def test_many_ranges_from_one_run(file: Path) -> None:
    parts = extract_ranges(file, [("first", "act"), ("act", "out"), ("cut", "cut")])
    assert [p.name for p in parts] == ["first to act", "act to out", "cut to cut"]
    np.testing.assert_array_equal(parts[0].outputs["b"], parts[1].outputs["b"])
    assert all(p.check().passed for p in parts)
    assert extract_ranges(file, []) == []


def test_a_pattern(file: Path) -> None:
    pattern = is_op("add")(is_op("nn.matmul", "nn.dense")(wildcard(), wildcard()), wildcard())
    part = clew.extract(file, pattern=pattern)
    assert part.layers == ("second", "residual")
    assert part.notes == ("match 0, of 0 to 0",)
    assert part.check().passed
    with pytest.raises(InputError, match=r"I146.*has 1 match in the model, but match 1"):
        clew.extract(file, pattern=pattern, match=1)
    with pytest.raises(InputError, match=r"I146.*no match"):
        clew.extract(file, pattern=is_op("sin")(wildcard()))


def test_a_pattern_that_takes_part_of_a_layer_says_so() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[2, 8], %w: f32[8, 8]) -> (f32[2, 8],) with outputs=["y"] {
          %0 = nn.matmul(%x, %w)  // head:Gemm
          %1 = add(%0, %x)  // head:Gemm#0
          %2 = nn.relu(%1)  // act:Relu#0
          %3 = (%2,)
          return %3
        }
        """
    )
    part = clew.extract(module, pattern=is_op("nn.relu")(is_op("add")(wildcard(), wildcard())))
    assert "layer head is only partly in it" in part.notes
    assert list(part.inputs) == ["head/nn.matmul", "x"]


def test_sizes_without_numbers(tmp_path: Path) -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[n, 8]) -> (f32[8*n],) with outputs=["y"] {
          %0 = nn.relu(%x)  // act:Relu#0
          %1 = reshape(%0, shape=dim_list)  // flat:Reshape#0
          %2 = exp(%1)  // exp:Exp#0
          %3 = (%2,)
          return %3
        }
        """.replace("dim_list", "[dim[8*n]]")
    )
    x = np.ones((3, 8), np.float32)
    part = clew.extract(module, start="exp", inputs={"x": x})
    assert list(part.inputs) == ["flat"]  # its size 8*n tells n
    assert part.check().passed
    part.save(tmp_path / "part.txt")
    assert clew.load_part(tmp_path / "part.txt").check().passed
    assert clew.load(tmp_path / "part.txt").main.params[0].tensor.shape != (24,)
    with pytest.raises(InputError, match=r"I061"):
        clew.extract(module, start="exp")


def test_inputs_that_do_not_fit(file: Path) -> None:
    for inputs, code in (
        ({"q": np.ones((2, 8), np.float32)}, "I041"),
        ({"x": np.ones((3, 8), np.float32)}, "I042"),
        ({"x": np.ones((2, 8))}, "I043"),
    ):
        with pytest.raises(InputError, match=code):
            clew.extract(file, end="act", inputs=inputs)


def test_what_is_chosen(file: Path) -> None:
    with pytest.raises(InputError, match=r"I144.*no part"):
        clew.extract(file)
    with pytest.raises(InputError, match=r"I144.*start or end and kernel are given"):
        clew.extract(file, start="act", kernel="k")
    with pytest.raises(InputError, match=r"I144.*opt_level: layers are extracted"):
        clew.extract(file, start="act", opt_level=2)
    with pytest.raises(InputError, match=r"I130.*'acct'[^§]*near it are act"):
        clew.extract(file, start="acct")
    with pytest.raises(InputError, match=r"I131.*parameters alone"):
        clew.extract(file, layers="scale")
    assert not clew.extract(file, end="scale").inputs  # it is asked for, and can be had


def test_only_tensors_cross() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[2, 8]) -> (f32[2, 8],) with outputs=["y"] {
          %0 = fn(%p: (f32[2, 8], f32[2, 8])) -> f32[2, 8] {
            %0 = %p[0]
            %1 = %p[1]
            %2 = add(%0, %1)
            return %2
          }
          %1 = (%x, %x)  // pair:Pair#0
          %2 = %0(%1)  // sum:Sum#0
          %3 = (%2,)
          return %3
        }
        """
    )
    with pytest.raises(InputError, match=r"I134[^§]*f32\[2, 8\]\)"):
        clew.extract(module, start="sum")
    assert clew.extract(module, end="sum").check().passed


def test_an_edited_model(file: Path) -> None:
    edit = clew.edit(clew.load(file))
    edit.insert_after("act", lambda x: clew.get_op("clip")(x, min=0.0, max=1.0), name="limit")
    part = clew.extract(edit.module, start="limit", end="second")
    assert part.layers == ("limit", "second")
    assert part.check().passed
    part.save(file.with_name("part.onnx"))
    assert clew.load_part(file.with_name("part.onnx")).check().passed


def test_functions_come_along() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[2, 8]) -> (f32[2, 8],) with outputs=["y"] {
          %0: fn(f32[2, 8]) -> f32[2, 8] = @twice
          %1 = %0(%x)  // a:A#0
          %2 = %0(%1)  // b:B#0
          %3 = (%2,)
          return %3
        }
        def @twice(%p: f32[2, 8]) -> f32[2, 8] {
          %0 = add(%p, %p)
          return %0
        }
        def @other(%p: f32[2, 8]) -> f32[2, 8] {
          %0 = exp(%p)
          return %0
        }
        """
    )
    part = clew.extract(module, start="b")
    assert set(part.module.functions) == {"main", "twice"}
    assert part.check().passed


def test_names_bound_with_let_are_refused() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: f32[2, 8]) -> f32[2, 8] {
          %v: f32[2, 8] = var
          %1 = exp(%x)  // a:A#0
          %2 = add(%v, %v)  // b:B#0
          %3 = let %v = %1 in %2
          return %3
        }
        """
    )
    with pytest.raises(InputError, match=r"I147"):
        clew.extract(module, start="b")


def test_blocks_are_what_the_tests_say() -> None:
    assert [n.name for n in blocks().graph.node][2] == "scale"
