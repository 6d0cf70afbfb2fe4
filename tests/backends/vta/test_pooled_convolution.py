"""Convolutions with a max pool of their results as one kernel, bit for bit as in the graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from vta_networks import Network, check, module_of, operand, regions_of

from clew.backends.vta import (
    Builder,
    Config,
    Convolution,
    Epilogue,
    Memory,
    Simulator,
    choose_tile,
    time,
)
from clew.backends.vta.backend import Vta
from clew.backends.vta.pooled_convolution import (
    estimate_pooled,
    fits_pooled,
    likely_pooled_tiles,
    pool_of_convolution,
    why_not_pooled,
)
from clew.backends.vta.pooling import emit_max_pool
from clew.backends.vta.search import convolution_program, search_tile
from clew.ir.expr import Call, Expr, Function
from clew.ir.visit import post_order
from clew.patterns import find_all
from clew.support.errors import ClewError

SMALL = Config.default().replace(
    block_in=4, block_out=4, inp_bytes=128 * 4, wgt_bytes=64 * 16, acc_bytes=128 * 16
)


def names_of(compiled: Any) -> list[str]:
    """Returns the kinds of the layers that VTA runs."""
    bodies = [region.function.body for region in regions_of(compiled)]
    calls = [n for body in bodies for n in post_order(body) if isinstance(n, Call)]
    return [c.op.attrs["composite"] for c in calls if isinstance(c.op, Function)]


def pooled(result: Expr, x: Any, **options: Any) -> Any:
    """Checks a network of one convolution with its pool, which VTA takes as one layer."""
    compiled = check(module_of(x, result), **options)
    assert names_of(compiled) == ["vta_conv2d_max_pool2d"]
    return compiled


@pytest.fixture
def always_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes layers also if two kernels are estimated to be faster."""
    monkeypatch.setattr("clew.backends.vta.backend.why_not_pooled", lambda *_: "")


@pytest.mark.usefixtures("always_one_kernel")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3])
def test_windows(kernel: int, stride: int, padding: int, overlap: bool) -> None:
    net, x = Network(kernel), operand(1, 20, 13, 11)
    value = net.conv(x, 24, relu=padding == 0)
    pooled(net.pool(value, kernel, stride, padding), x, seeds=1, overlap=overlap)


@pytest.mark.usefixtures("always_one_kernel")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_random_layers_on_a_small_machine(seed: int, overlap: bool) -> None:
    """In many tiles, most of which do not divide the sizes; some with an addend."""
    rng = np.random.default_rng(seed)
    kernel, stride = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    padding, size = int(rng.integers(0, 2)), rng.integers(5, 16, 2).tolist()
    channels = int(rng.integers(4, 10))
    net, x = Network(seed), operand(int(rng.integers(1, 3)), channels, *size)
    adds = seed % 3 == 0
    value = net.conv(
        x,
        channels if adds else int(rng.integers(3, 14)),
        int(rng.choice([1, 3])),
        1 if adds else int(rng.integers(1, 3)),
        skip=x if adds else None,
        relu=seed % 2 == 0,
    )
    result = net.pool(value, kernel, stride, padding)
    pooled(result, x, seeds=2, config=SMALL, overlap=overlap)


@pytest.mark.parametrize("out_scale", [2.0**-8, 2.0**3])
def test_the_least_sums_are_kept(out_scale: float) -> None:
    """Corners have windows of one sum, which may be less than the least immediate operand."""
    net, x = Network(1), operand(1, 64, 7, 7)
    value = net.conv(x, 16, relu=False, out_scale=out_scale)
    pooled(net.pool(value, 2, 2, 1), x)


def test_a_result_that_others_read_is_stored() -> None:
    net, x = Network(2), operand(1, 16, 9, 9)
    value = net.conv(x, 16)
    compiled = check(module_of(x, value, net.pool(value, 3, 2, 1)))
    assert names_of(compiled) == ["vta_conv2d", "vta_max_pool2d"]


def test_layers_around_it_are_in_its_region() -> None:
    net, x = Network(3), operand(1, 16, 14, 14)
    value = net.pool(net.conv(x, 32), 3, 2, 1)
    compiled = check(module_of(x, net.conv(net.conv(value, 32), 32, skip=value)))
    assert len(compiled.regions) == 1
    assert names_of(compiled) == ["vta_conv2d_max_pool2d", "vta_conv2d", "vta_conv2d"]


def test_without_a_tile_that_fits_both_stay_apart() -> None:
    """`acc` holds tiles of the convolution, and windows of bytes, but not the sums of a window with
    its maximum, twice, and the biases.
    """
    config = SMALL.replace(acc_bytes=64 * 16)
    net, x = Network(4), operand(1, 8, 10, 10)
    value = net.conv(x, 192)
    module = module_of(x, net.pool(value, 4, 4, 0))
    vta = Vta(config)
    (pattern, *_) = vta.patterns
    (found,) = find_all(pattern.pattern, module.main)
    assert "hold no tile" in vta.why_not_match(found)
    compiled = check(module, seeds=0, config=config)
    assert names_of(compiled) == ["vta_conv2d", "vta_max_pool2d"]


@pytest.mark.parametrize(
    ("size", "window", "is_one"),
    [(56, (2, 2, 0), True), (56, (3, 2, 1), True), (56, (3, 1, 1), False), (28, (3, 3, 0), True)],
)
def test_a_layer_is_one_kernel_where_this_is_faster(
    size: int, window: tuple[int, int, int], is_one: bool
) -> None:
    """Where windows overlap, neighbouring tiles compute the same sums."""
    conv, config = Convolution(64, 64, size, size, kernel=3, padding=1), Config.default()
    pool, epilogue = pool_of_convolution(conv, config, *window), Epilogue(10)
    (tile,) = likely_pooled_tiles(conv, pool, config, 2, 1)
    one = time(convolution_program(conv, config, tile, epilogue, pool=pool), config).cycles
    plain = choose_tile(conv, config)
    two = time(convolution_program(conv, config, plain, epilogue), config).cycles
    builder = Builder(config)
    x = builder.input("x", Memory.INP, pool.planes * pool.height * pool.width)
    y = builder.output("y", pool.planes * pool.out_height * pool.out_width)
    emit_max_pool(builder, pool, x, y)
    two += time(builder.program(), config).cycles
    assert (one < two) == is_one
    why = why_not_pooled(conv, pool, config, 2)
    assert ("cycles" in why) != is_one
    net, operand_ = Network(6), operand(1, 64, size, size)
    result = net.pool(net.conv(operand_, 64), *window)
    kinds = names_of(check(module_of(operand_, result), seeds=0))
    assert kinds == (["vta_conv2d_max_pool2d"] if is_one else ["vta_conv2d", "vta_max_pool2d"])


def test_it_saves_cycles_and_bytes() -> None:
    net, x = Network(5), operand(1, 64, 28, 28)
    value = net.conv(x, 64)
    one = check(module_of(x, net.pool(value, 2, 2, 0)), seeds=1)
    two = check(module_of(x, net.pool(value, 2, 2, 0), value), seeds=1)
    first, second = (regions_of(c)[0].timing for c in (one, two))
    assert first.cycles < 0.95 * second.cycles
    assert sum(first.bytes_moved.values()) < sum(second.bytes_moved.values())


@pytest.mark.parametrize("parts", [1, 2])
def test_a_search_is_never_slower_than_the_estimate(parts: int) -> None:
    conv, config = Convolution(32, 48, 30, 30, kernel=3, padding=1), Config.default()
    pool, epilogue = pool_of_convolution(conv, config, 3, 2, 1), Epilogue(8)
    likely = likely_pooled_tiles(conv, pool, config, parts, 5)
    times = [estimate_pooled(conv, pool, t, config) for t in likely]
    assert times == sorted(times)
    assert all(fits_pooled(conv, pool, t, config) for t in likely)
    found = search_tile(conv, epilogue, config, parts, pool=pool, candidates=5)
    cycles = {
        t: time(convolution_program(conv, config, t, epilogue, pool=pool), config).cycles
        for t in likely
    }
    assert cycles[found] == min(cycles.values())


def test_every_tile_that_fits_runs_without_hazards() -> None:
    conv = Convolution(8, 8, 9, 7, kernel=3, padding=1)
    pool = pool_of_convolution(conv, SMALL, 3, 2, 1)
    found = []
    for tile in likely_pooled_tiles(conv, pool, SMALL, 2, 12):
        program = convolution_program(conv, SMALL, tile, Epilogue(8), pool=pool)
        rng = np.random.default_rng(0)
        values = {}
        for buffer in program.buffers:
            if buffer.role == "input":
                shape = SMALL.element_shape(buffer.memory)
                values[buffer.name] = rng.integers(-128, 128, (buffer.elements, *shape)).astype(
                    np.int32 if buffer.memory is Memory.ACC else np.int8
                )
        found.append(Simulator(SMALL).run(program, values)["y"])
    assert len(found) == 12
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])


def test_a_tile_that_does_not_fit_is_refused() -> None:
    conv = Convolution(16, 16, 64, 64, kernel=3, padding=1)
    config = Config.default()
    pool = pool_of_convolution(conv, config, 3, 2, 1)
    (tile,) = likely_pooled_tiles(conv, pool, config, 2, 1)
    large = dataclasses.replace(tile, height=32, width=32)
    with pytest.raises(ClewError, match="do not hold"):
        convolution_program(conv, config, large, Epilogue(8), pool=pool)
