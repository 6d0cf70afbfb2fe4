"""Which layers rules select, and that the last rule counts."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import convolutional, drawn, stack

import clew
from clew.ir.printer import printed
from clew.quantization import Rule, Scheme, Where
from clew.quantization.sites import sites_of
from clew.support.errors import ClewError

NET = clew.load(convolutional())
X = drawn(2, 3, 8, 8)
EVERY = ["stem.conv", "body.conv", "head"]


def selected(where: Where, module: Any = NET) -> list[str]:
    return [s.name for s in where.select(module, sites_of(module))]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (Where(layers=("head",)), ["head"]),
        (Where(layers=("*conv", "head")), EVERY),
        (Where(layers=("stem.act",)), []),
        (Where(op="nn.conv2d"), EVERY[:2]),
        (Where(first=1), EVERY[:1]),
        (Where(last=2), EVERY[1:]),
        (Where(first=1, last=1), ["stem.conv", "head"]),
        (Where(first=5), EVERY),
        (Where(op="nn.conv2d", last=1), ["body.conv"]),
        (Where(between=("stem.act", "pool")), ["body.conv"]),
        (Where(between=("", "stem.act")), ["stem.conv"]),
        (Where(between=("body.conv", "")), EVERY[1:]),
        (Where(pattern="nn.dense(*, *)"), ["head"]),
    ],
)
def test_conditions(where: Where, names: list[str]) -> None:
    assert selected(where) == names
    assert Where.of_json(where.to_json()) == where


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (Where, "I391"),
        (lambda: Where(first=-1), "I391"),
        (lambda: Where.of_json({"layer": "head"}), "I391"),
        (lambda: selected(Where(layers=("heat",))), "I050"),
        (lambda: selected(Where(between=("heat", ""))), "I130"),
        (lambda: selected(Where(between=("head", "stem.act"))), "I132"),
        (lambda: Rule(Where(first=1), {"bits": 4}), "I390"),
        (lambda: Scheme(range="best"), "I390"),
        (lambda: Scheme(activations="i4"), "I390"),
        (lambda: Scheme(weights="f32"), "I390"),
        (lambda: Scheme(granularity="row"), "I390"),
        (lambda: Scheme(weight_range="entropy"), "I390"),
        (lambda: Scheme(weight_bits=3), "I390"),
        (lambda: Scheme(percentile=50), "I390"),
        (lambda: clew.quantize(NET, X, keep=7), "I391"),
        (lambda: clew.quantize(NET, X, keep="heat"), "I050"),
        (lambda: clew.quantize(NET, X, max_error=-1), "I390"),
        (lambda: clew.quantize(NET, X, max_error=float("nan")), "I390"),
        (lambda: clew.quantize(NET, X, metric=len), "I390"),
        (lambda: clew.quantize(NET, X, max_drop=1), "I390"),
        (lambda: clew.quantize(NET, X, metric=len, max_drop=1, max_error=1), "I390"),
    ],
)
def test_wrong_rules(make: Any, code: str) -> None:
    with pytest.raises(ClewError) as error:
        make()
    assert error.value.code == code, error.value


def test_the_last_rule_counts() -> None:
    convs = Where(op="nn.conv2d")
    rules = [
        Rule(convs, keep=True),
        Rule(Where(layers=("body.*",)), {"activations": "i8", "granularity": "tensor"}),
        Rule(Where(last=1), {"weight_bits": 7}),
    ]
    found = clew.quantize(NET, X, rules=rules, threads=1)
    by_name = {p.site.name: p for p in found.parameters}
    assert list(by_name) == EVERY[1:]
    assert by_name["body.conv"].grid.dtype == "i8"
    assert by_name["body.conv"].scales.size == 1
    assert abs(by_name["head"].weight).max() <= 63
    assert [r.kept for r in found.layers] == ["asked for", "", ""]
    assert found.recipe.kept == {"stem.conv": "asked for"}


def test_what_keep_takes() -> None:
    edit = clew.edit(NET)
    for keep in ("*conv", ["stem.conv", Where(layers=("body*",))], edit.select(op="nn.conv2d")):
        found = clew.quantize(NET, X, keep=keep, threads=1)
        assert [p.site.name for p in found.parameters] == ["head"]
    every = clew.quantize(NET, X, keep="*", threads=1)
    assert (every.parameters, every.error) == ([], 0.0)
    assert printed(every.module, notes=False).text == str(every.original)


def test_a_layer_of_several_products_is_one_name_and_each_of_them_another() -> None:
    text = """clew 1
def @main(%x: f32[4, 8]  // input x
) -> (f32[4, 8],) with outputs=["y"] {
  %a: f32[8, 8] = const @a
  %b: f32[8, 8] = const @b
  %0 = nn.dense(%x, %a)  // pair:Pair
  %1 = nn.dense(%0, %b)  // pair:Pair#0
  %2 = nn.dense(%1, %a)  // last:MatMul#0
  %3 = (%2,)
  return %3
}
"""
    module = clew.parse(text, {"a": drawn(8, 8), "b": drawn(8, 8, seed=1)})
    assert [s.name for s in sites_of(module)] == ["pair#1", "pair#2", "last"]
    assert selected(Where(layers=("pair",)), module) == ["pair#1", "pair#2"]
    assert selected(Where(layers=("pair#2", "last")), module) == ["pair#2", "last"]


def test_models_without_products() -> None:
    relu = """clew 1
def @main(%x: f32[4, 8]  // input x
) -> (f32[4, 8],) with outputs=["y"] {
  %0 = nn.relu(%x)  // relu:Relu#0
  %1 = (%0,)
  return %1
}
"""
    with pytest.raises(ClewError) as error:
        clew.quantize(clew.parse(relu), drawn(4, 8))
    assert error.value.code == "I402"


def test_a_pattern_rule_in_a_recipe_is_data() -> None:
    rule = Rule(Where(pattern="nn.dense(*, *)", first=1), {"range": "minmax"})
    assert Rule.of_json(rule.to_json()) == rule
    kept = Rule(Where(between=("", "fc1")), keep=True)
    assert Rule.of_json(kept.to_json()) == kept
    found = clew.quantize(
        stack([drawn(8, 8, seed=n) for n in range(3)]), drawn(8, 8), rules=[kept], threads=1
    )
    assert [p.site.name for p in found.parameters] == ["fc2"]
