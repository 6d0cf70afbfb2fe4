"""Layers of two models are paired by name, weights and structure, also where names mislead."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import clew
import zoo
from clew.compare.align import Alignment, align, common_subsequence, rising
from clew.compare.layers import Layer, Spelled, layers_of
from clew.compare.state import Side

from .conftest import Network, Write


def chain(*ops: str, names: Sequence[str] = (), wide: int = 8) -> dict[str, Layer]:
    """Layers one after the other, named by number."""
    given = list(names) or [f"op_{n}" for n in range(len(ops))]
    layers = {
        name: Layer(name, op, n, (Spelled(op, (), (f"f32[{wide}]",)),))
        for n, (name, op) in enumerate(zip(given, ops, strict=True))
    }
    for before, after in pairwise(layers.values()):
        after.reads = (before.name,)
        before.feeds.append(after.name)
    if given:
        layers[given[0]].reads = ("",)
    return layers


def pairs(found: Alignment) -> list[tuple[str, str]]:
    return [(m.a, m.b) for m in found.matches]


def test_a_number_inserted_shifts_no_pair() -> None:
    ops = ["conv", "relu", "pool", "conv", "norm", "relu", "dense", "softmax"]
    longer = [*ops[:3], "abs", *ops[3:]]
    found = align(chain(*ops), chain(*longer))
    assert pairs(found) == [(f"op_{n}", f"op_{n + (n > 2)}") for n in range(len(ops))]
    assert found.only_b == ("op_3",)


def test_other_sizes_under_the_same_names_are_the_same_layers() -> None:
    ops = ["conv", "relu", "conv", "relu", "dense"]
    found = align(chain(*ops), chain(*ops, wide=16))
    assert pairs(found) == [(f"op_{n}",) * 2 for n in range(5)]
    assert {(m.how, m.confidence) for m in found.matches} == {("name", 0.8)}


def test_another_operator_at_the_same_place() -> None:
    names = list("abcde")
    found = align(
        chain("conv", "relu", "conv", "relu", "dense", names=names),
        chain("conv", "relu", "conv", "gelu", "dense", names=[n.upper() for n in names]),
    )
    assert pairs(found) == [(n, n.upper()) for n in names]
    assert [m.how for m in found.matches if m.a == "d"] == ["place"]


def test_long_stretches_between_two_insertions_go_by_order() -> None:
    middle = ["conv", "relu", "norm", "conv", "tanh", "conv", "relu"]
    ops = ["conv", "relu", *middle, "dense"]
    names = [f"a{n}" for n in range(len(ops))]
    longer = ["conv", "relu", "abs", *middle, "abs", "dense"]
    found = align(chain(*ops, names=names), chain(*longer, names=[f"b{n}" for n in range(12)]))
    assert len(found.matches) == len(ops)
    assert found.only_b == ("b2", "b10")


def test_nothing_in_common() -> None:
    found = align(chain("conv", "conv"), chain("gather", names=["x"]))
    assert found.only_a == ("op_0", "op_1")
    assert found.only_b == ("x",)
    assert align({}, {}).matches == ()


@cache
def layers(name: str) -> dict[str, Layer]:
    return layers_of(clew.compile(zoo.path(name), threads=1).trace)


@pytest.mark.parametrize("name", ["resnet_tiny", "bert_tiny"])
def test_a_model_whose_layers_all_have_other_names(name: str) -> None:
    ours = layers(name)
    new = {n: f"layer{k}" for k, n in enumerate(ours)}
    theirs = {}
    for layer in ours.values():
        copy = Layer(new[layer.name], layer.op, layer.position, layer.calls)
        copy.reads = tuple(new.get(n, "") for n in layer.reads)
        copy.feeds = [new[n] for n in layer.feeds]
        theirs[copy.name] = copy  # without parameters: by structure alone
    found = align(ours, theirs)
    assert dict(pairs(found)) == new
    assert min(m.confidence for m in found.matches) >= 0.8


def test_weights_tell_layers_apart_that_look_alike(write: Write) -> None:
    crossed = Network()
    for n, (name, op, reads, attrs) in enumerate(crossed.nodes):
        crossed.nodes[n] = (f"v{n}", op, reads, attrs)
        for _, _, others, _ in crossed.nodes:
            others[:] = [f"v{n}" if r == name else r for r in others]
    crossed.output = (crossed.nodes[-1][0], [1, 10])
    sides = [Side(clew.compile(write(n), threads=1)) for n in (Network(), crossed)]
    found = align(sides[0].layers, sides[1].layers)
    hows = {m.a: m.how for m in found.matches}
    assert [n for n, how in hows.items() if how == "weights"] == ["conv1", "conv2", "conv3", "fc"]


def longest(a: Sequence[int], b: Sequence[int]) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = best
    return int(table[-1, -1])


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_common_subsequence(seed: int) -> None:
    rng = random.Random(seed)
    a = [rng.randrange(1 + seed % 5) for _ in range(rng.randrange(30))]
    b = [rng.randrange(1 + seed % 5) for _ in range(rng.randrange(30))]
    found = common_subsequence(a, b)
    assert len(found) == longest(a, b)
    assert all(a[i] == b[j] for i, j in found)
    assert all(x[0] < y[0] and x[1] < y[1] for x, y in pairwise(found))


def test_a_longest_rising_subsequence() -> None:
    assert rising([]) == []
    assert rising([3, 1, 2, 5, 4]) == [1, 2, 4]
    assert rising([0, 1, 2]) == [0, 1, 2]
    assert len(rising([2, 1, 0])) == 1
