"""Additions and max pools on VTA, bit for bit as in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vta_networks import Network, check, module_of, operand, regions_of

from clew.backends.vta import Config
from clew.backends.vta.backend import Vta
from clew.ir.expr import Expr
from clew.patterns import find_all

SMALL = Config.default().replace(
    block_in=4, block_out=4, inp_bytes=128 * 4, wgt_bytes=64 * 16, acc_bytes=128 * 16
)


def run(net: Network, x: Any, result: Expr, operators: list[str], **options: Any) -> Any:
    """Checks a network of one layer or more, all of which VTA takes, in one region."""
    compiled = check(module_of(x, result), **options)
    (region,) = compiled.regions
    assert [op for op in region.ops if op in ("add", "nn.max_pool2d", "nn.conv2d")] == operators
    return compiled


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("scales", "out_scale"),
    [
        ((1.0, 1.0), 1.0),
        ((1.0, 1.0), 2.0),
        ((2.0**-4, 2.0**-2), 2.0**-1),
        ((2.0**-1, 2.0**-15), 2.0**-1),
        ((2.0**5, 1.0), 1.0),
    ],
)
def test_an_addition(
    scales: tuple[float, float], out_scale: float, relu: bool, overlap: bool
) -> None:
    """Most sums of integers with a shift by 1 are ties or even."""
    net, x = Network(0), operand(1, 20, 13, 11)
    total = net.add(x, net.pool(x, 3, 1, 1), scales, out_scale, relu=relu)
    run(net, x, total, ["nn.max_pool2d", "add"], overlap=overlap)


def test_an_addition_rounds_all_ties_to_even() -> None:
    net, x = Network(1), operand(1, 16, 64, 64)
    module = module_of(x, net.add(x, x, (1.0, 0.5), 4.0, relu=False))
    compiled = check(module, seeds=0)
    values = np.resize(np.arange(-128, 128), (1, 16, 64, 64)).astype("i1")
    (found,) = compiled.run({"x": values}).values()
    np.testing.assert_array_equal(found, np.round(values * 1.5 / 4).astype("i1"))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding"),
    [
        ((1, 16, 8, 8), 2, 2, 0),
        ((1, 32, 30, 30), 3, 2, 1),
        ((2, 20, 9, 7), 3, 1, 1),
        ((1, 64, 5, 5), 3, 2, 1),
        ((1, 16, 7, 90), 5, 3, 2),
        ((1, 16, 4, 4), 3, 4, 2),
    ],
)
def test_a_max_pool(
    shape: tuple[int, ...], kernel: int, stride: int, padding: int, overlap: bool
) -> None:
    net, x = Network(2), operand(*shape)
    run(net, x, net.pool(x, kernel, stride, padding), ["nn.max_pool2d"], overlap=overlap)


@pytest.mark.parametrize("seed", range(10))
def test_random_pools_on_a_small_machine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = int(rng.integers(1, 5))
    stride, padding = int(rng.integers(1, 4)), int(rng.integers(0, kernel))
    shape = (int(rng.integers(1, 3)), int(rng.integers(4, 10)), *rng.integers(4, 20, 2).tolist())
    net, x = Network(seed), operand(*shape)
    run(net, x, net.pool(x, kernel, stride, padding), ["nn.max_pool2d"], config=SMALL)


def test_padding_is_less_than_all_values() -> None:
    net, x = Network(3), operand(1, 16, 6, 6)
    compiled = run(net, x, net.pool(x, 3, 2, 1), ["nn.max_pool2d"])
    (found,) = compiled.run({"x": np.full((1, 16, 6, 6), -128, "i1")}).values()
    assert (found == -128).all()


@pytest.mark.parametrize("seed", range(8))
def test_random_networks_of_all_layers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net, x = Network(seed), operand(1, 24, *rng.integers(6, 14, 2).tolist())
    values: list[Expr] = [x]
    for _ in range(int(rng.integers(3, 7))):
        source = values[rng.integers(len(values))]
        same = [v for v in values if v.tensor.concrete == source.tensor.concrete]
        kind = rng.choice(["conv", "add", "pool"])
        if kind == "conv":
            stride = int(rng.choice([1, 1, 2]))
            values.append(net.conv(source, int(rng.integers(16, 40)), 3, stride))
        elif kind == "add":
            other = same[rng.integers(len(same))]
            scales = tuple(float(2.0**-n) for n in rng.integers(0, 5, 2))
            values.append(net.add(source, other, scales, 0.5, relu=bool(rng.random() < 0.5)))
        else:
            values.append(net.pool(source, 3, int(rng.choice([1, 2])), 1))
    check(module_of(x, *dict.fromkeys(values[-2:])), seeds=2)


def test_overlap_saves_cycles() -> None:
    net, x = Network(4), operand(1, 64, 28, 28)
    module = module_of(x, net.add(x, x, (1.0, 0.5), 2.0))
    cycles = [regions_of(check(module, seeds=1, overlap=o))[0].timing.cycles for o in (False, True)]
    assert cycles[1] < 0.96 * cycles[0]


def why_not(result: Expr, x: Any) -> list[str]:
    """Returns why VTA takes no match of its patterns."""
    vta, module = Vta(), module_of(x, result)
    found = [m for p in vta.patterns for m in find_all(p.pattern, module.main)]
    return [w for w in map(vta.why_not_match, found) if w]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda net, x: net.add(x, x, (0.3, 1.0), 1.0),
            "scale of an operand is not a power of two",
        ),
        (lambda net, x: net.add(x, x, (1.0, 2.0**-15), 1.0), "differ by more than 2**14"),
        (lambda net, x: net.add(x, x, (1.0, 1.0), 0.25), "multiplied by 2**2"),
        (
            lambda net, x: net.call("nn.max_pool2d", x, kernel=[2, 3], strides=[2, 2]),
            "differ in height and width",
        ),
        (
            lambda net, x: net.call("nn.max_pool2d", x, kernel=[2, 2], dilation=[2, 2]),
            "have gaps",
        ),
    ],
)
def test_what_it_does_not_compute_stays_on_the_cpu(make: Any, why: str) -> None:
    net, x = Network(5), operand(1, 16, 7, 7)
    result = make(net, x)
    assert any(why in w for w in why_not(result, x))
    assert not check(module_of(x, result)).regions


def test_few_channels_stay_on_the_cpu() -> None:
    net, x = Network(6), operand(1, 3, 8, 8)
    assert not check(module_of(x, net.add(net.pool(x, 3, 1, 1), x, (1.0, 1.0), 1.0))).regions
