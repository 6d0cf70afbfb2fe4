"""Recipes: replayed, edited by hand, and wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_models import convolutional, drawn, stack

import clew
from clew.quantization import Quantized, Recipe, Rule, Scheme, Where
from clew.support.errors import ClewError

NET = clew.load(convolutional())
DATA = drawn(6, 3, 8, 8)


@pytest.fixture(scope="module")
def found() -> Quantized:
    rules = [
        Rule(Where(layers=("body.*",)), {"granularity": "tensor", "range": "minmax"}),
        Rule(Where(op="nn.dense"), keep=True),
    ]
    return clew.quantize(NET, DATA, scheme=Scheme(weight_bits=7), rules=rules, threads=1)


def replayed(found: Quantized, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> Any:
    data = json.loads(str(found.recipe))
    change(data)
    return clew.quantize(NET, recipe=Recipe.of_json(data))


def test_a_saved_recipe_gives_the_same_module(found: Quantized, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    found.recipe.save(path)
    assert Recipe.load(path) == found.recipe
    for recipe in (path, str(path), Recipe.load(path), found.recipe):
        again = clew.quantize(NET, recipe=recipe)
        assert str(again.module) == str(found.module)
        assert again.recipe == found.recipe
    assert again.error is None
    assert [(r.layer, r.kept) for r in again.layers] == [(r.layer, r.kept) for r in found.layers]
    x = DATA[:1]
    np.testing.assert_array_equal(
        again.compile(threads=1).run({"image": x})["scores"],
        found.compile(threads=1).run({"image": x})["scores"],
    )
    assert repr(found.recipe) == "<Recipe 2 layers quantized, 1 in floats>"


def test_a_set_in_floats_is_part_of_a_recipe() -> None:
    net = stack([drawn(8, 8, seed=n, scale=0.5) for n in range(4)])
    first = clew.quantize(net, drawn(16, 8), threads=1)
    assert first.error is not None
    searched = clew.quantize(net, drawn(16, 8), max_error=first.error * 0.6, threads=1)
    assert searched.floats is not None
    assert searched.floats.layers
    again = clew.quantize(net, recipe=searched.recipe)
    assert str(again.module) == str(searched.module)
    assert again.recipe.kept == searched.recipe.kept


def test_a_rule_that_is_added_counts(found: Quantized) -> None:
    rule = {"where": {"layers": ["stem.*"]}, "keep": True}
    again = replayed(found, lambda data: data["rules"].append(rule))
    assert [p.site.name for p in again.parameters] == ["body.conv"]
    assert again.recipe.kept == {"stem.conv": "asked for", "head": "asked for"}

    bits = {"where": {"first": 1}, "changes": {"weight_bits": 4}}
    again = replayed(found, lambda data: data["rules"].append(bits))
    stem, body = again.parameters
    assert np.abs(stem.weight).max() == 7
    assert np.abs(body.weight).max() == 63
    assert stem.grid == found.parameters[0].grid
    np.testing.assert_array_equal(body.weight, found.parameters[1].weight)


def test_a_number_that_is_edited_counts(found: Quantized) -> None:
    def change(data: dict[str, Any]) -> None:
        data["layers"][0]["scale"] *= 2

    again = replayed(found, change)
    assert again.parameters[0].grid.scale == 2 * found.parameters[0].grid.scale
    assert again.recipe.layers[0].scale == 2 * found.recipe.layers[0].scale


def test_keep_takes_part(found: Quantized) -> None:
    again = clew.quantize(NET, recipe=found.recipe, keep="stem.conv")
    assert [p.site.name for p in again.parameters] == ["body.conv"]


def test_data_with_a_recipe_are_calibrated_on_by_its_rules(found: Quantized) -> None:
    again = clew.quantize(NET, DATA * 2, recipe=found.recipe, threads=1)
    assert again.recipe.scheme == found.recipe.scheme
    assert again.recipe.rules == found.recipe.rules
    assert [p.site.name for p in again.parameters] == ["stem.conv", "body.conv"]
    assert again.parameters[0].grid.scale > 1.5 * found.parameters[0].grid.scale


WRONG: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "format": ("I398", lambda d: d.update(format=99)),
    "no format": ("I398", lambda d: d.pop("format")),
    "no scheme": ("I398", lambda d: d.pop("scheme")),
    "text for a scale": ("I398", lambda d: d["layers"][0].update(scale="large")),
    "layers of text": ("I398", lambda d: d.update(layers=["stem.conv"])),
    "rule without layers": ("I398", lambda d: d.update(rules=[{"keep": True}])),
    "unknown field": ("I390", lambda d: d["scheme"].update(bits=8)),
    "wrong field": ("I390", lambda d: d["scheme"].update(range="best")),
    "unknown condition": ("I391", lambda d: d.update(rules=[{"where": {"layer": "head"}}])),
    "unknown layer in a rule": (
        "I050",
        lambda d: d.update(rules=[{"where": {"layers": ["heat"]}, "keep": True}]),
    ),
    "unknown layer": ("I399", lambda d: d["layers"][0].update(layer="heat")),
    "a layer without numbers": ("I399", lambda d: d["layers"].pop()),
    "too few corrections": ("I399", lambda d: d["layers"][0].update(correction=[0.0])),
    "integers of another dtype": (
        "I399",
        lambda d: d["rules"].append({"where": {"first": 1}, "changes": {"activations": "i8"}}),
    ),
    "a scale of 0": ("I398", lambda d: d["layers"][0].update(scale=0.0)),
    "a scale of NaN": ("I398", lambda d: d["layers"][0].update(scale=float("nan"))),
    "a zero point out of range": ("I398", lambda d: d["layers"][0].update(zero=256)),
    "an unknown dtype": ("I398", lambda d: d["layers"][0].update(dtype="f32")),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_recipes(case: str, found: Quantized) -> None:
    code, change = WRONG[case]
    with pytest.raises(ClewError) as error:
        replayed(found, change)
    assert error.value.code == code, error.value


@pytest.mark.parametrize("bound", [{"max_error": 0.1}, {"sensitivities": True}])
def test_bounds_need_data_beside_a_recipe(bound: dict[str, Any], found: Quantized) -> None:
    with pytest.raises(ClewError) as error:
        clew.quantize(convolutional(), recipe=found.recipe, threads=1, **bound)
    assert error.value.code == "I392"


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    for name in ("text.json", "list.json", "absent.json"):
        with pytest.raises(ClewError) as error:
            clew.quantize(NET, recipe=tmp_path / name)
        assert error.value.code == "I398"
