"""Convolutions and matrix products on the simulator, against NumPy."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from clew.backends.vta import (
    Builder,
    Config,
    Convolution,
    Epilogue,
    Memory,
    Operands,
    Program,
    Simulator,
    Tile,
    choose_tile,
    emit_convolution,
    pack_bias,
    pack_data,
    pack_weights,
    time,
    unpack_data,
)
from clew.backends.vta.packing import blocks
from clew.backends.vta.tiles import fits
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
DEFAULT = Config.default()
SMALL = DEFAULT.replace(
    block_in=4, block_out=4, inp_bytes=128 * 4, wgt_bytes=64 * 16, acc_bytes=128 * 16
)


def program_of(
    conv: Convolution, config: Config, tile: Tile | None, epilogue: Epilogue, biased: bool
) -> Program:
    """Returns the program of a convolution whose operands are inputs."""
    b = Builder(config)
    ins, outs = blocks(conv.inputs, config.block_in), blocks(conv.outputs, config.block_out)
    images = blocks(conv.images, config.batch)
    x = b.input("x", Memory.INP, images * ins * conv.height * conv.width)
    w = b.input("w", Memory.WGT, outs * ins * conv.taps)
    bias = b.input("bias", Memory.ACC, outs) if biased else None
    y = b.output("y", images * outs * conv.out_height * conv.out_width)
    with b.origin("conv"):
        emit_convolution(b, conv, Operands(x, w, y, bias), epilogue, tile)
    return b.program()


def expected(conv: Convolution, x: Array, w: Array, bias: Array, epilogue: Epilogue) -> Array:
    pad, stride = conv.padding, conv.stride
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    sums = np.zeros((conv.images, conv.outputs, conv.out_height, conv.out_width), np.int64)
    for ky in range(conv.kernel):
        for kx in range(conv.kernel):
            rows = slice(ky, ky + stride * (conv.out_height - 1) + 1, stride)
            columns = slice(kx, kx + stride * (conv.out_width - 1) + 1, stride)
            taps = w[:, :, ky, kx].astype(np.int64)
            sums += np.einsum("nchw,oc->nohw", padded[:, :, rows, columns], taps)
    sums += bias[:, None, None]
    return np.clip(sums >> epilogue.shift, epilogue.low, epilogue.high).astype(np.int8)


def run(
    conv: Convolution,
    config: Config,
    tile: Tile | None = None,
    epilogue: Epilogue | None = None,
    *,
    seed: int = 0,
    biased: bool = True,
) -> Program:
    """Runs a convolution, compares it with NumPy, and returns its program."""
    epilogue = epilogue or Epilogue(shift=6)
    rng = np.random.default_rng(seed)
    x = rng.integers(-128, 128, (conv.images, conv.inputs, conv.height, conv.width)).astype(np.int8)
    w = rng.integers(-128, 128, (conv.outputs, conv.inputs, conv.kernel, conv.kernel))
    w = w.astype(np.int8)
    bias = rng.integers(-(2**16), 2**16, conv.outputs) if biased else np.zeros(conv.outputs, int)
    program = program_of(conv, config, tile, epilogue, biased)
    values = {"x": pack_data(x, config), "w": pack_weights(w, config)}
    if biased:
        values["bias"] = pack_bias(bias, config)
    out = Simulator(config).run(program, values)["y"]
    shape = (conv.images, conv.outputs, conv.out_height, conv.out_width)
    want = expected(conv, x, w, bias, epilogue)
    np.testing.assert_array_equal(unpack_data(out, shape, config), want)
    return program


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_random_convolutions(seed: int, parts: int) -> None:
    """Of random sizes and in random tiles, which often do not divide the sizes."""
    rng = np.random.default_rng(seed)
    kernel = int(rng.integers(1, 4))
    conv = Convolution(
        inputs=int(rng.integers(1, 14)),
        outputs=int(rng.integers(1, 14)),
        height=int(rng.integers(kernel, 11)),
        width=int(rng.integers(kernel, 11)),
        kernel=kernel,
        stride=int(rng.integers(1, 3)),
        padding=int(rng.integers(0, kernel)),
        images=int(rng.integers(1, 4)),
    )
    config = SMALL.replace(batch=1 + seed % 2, inp_bytes=128 * 4 * (1 + seed % 2),
                           acc_bytes=128 * 16 * (1 + seed % 2))  # fmt: skip
    tile = Tile(*(int(n) for n in rng.integers(1, 5, 4)), parts=parts)
    while not fits(conv, tile, config):
        tile = Tile(*(max(1, n - 1) for n in astuple(tile)[:4]), parts=parts)
    run(conv, config, tile, Epilogue(int(rng.integers(0, 9)), low=-100), seed=seed)
    run(conv, config, choose_tile(conv, config, parts), seed=seed, biased=seed % 3 > 0)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 70), (33, 16, 16), (50, 48, 100)])
def test_matrix_products(m: int, n: int, k: int) -> None:
    conv = Convolution.of_product(m, n, k)
    program = run(conv, DEFAULT)
    assert time(program).macs == m * blocks(n, 16) * blocks(k, 16) * 256


def test_a_row_of_inputs_is_no_longer_than_a_factor() -> None:
    """The factor of a loop over rows has 11 bits."""
    conv = Convolution(16, 16, 3, 600, stride=2)
    wide = Tile(1, 2, 300, 1, parts=1)
    assert fits(conv, wide, DEFAULT)
    assert not fits(Convolution(16, 16, 1, 2000, stride=2), Tile(1, 1, 1000, 1, 1), DEFAULT)
    run(conv, DEFAULT, wide)
    run(Convolution(16, 16, 1, 2000, stride=2), DEFAULT)


def test_relu_and_rounding() -> None:
    run(Convolution(16, 16, 6, 6, kernel=3, padding=1), DEFAULT, epilogue=Epilogue(11, low=0))


# The 3×3 layers of ResNet-18, and the share of the matrix unit's peak that they reach at least.
LAYERS = {
    "conv2": (Convolution(64, 64, 56, 56, kernel=3, padding=1), 0.80),
    "conv3": (Convolution(128, 128, 28, 28, kernel=3, padding=1), 0.85),
    "conv4": (Convolution(256, 256, 14, 14, kernel=3, padding=1), 0.85),
    "conv5": (Convolution(512, 512, 7, 7, kernel=3, padding=1), 0.80),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_matrix_unit_is_busy_in_layers_of_resnet(name: str) -> None:
    conv, least = LAYERS[name]
    epilogue = Epilogue(shift=10, low=0)
    timings = {}
    for parts in (1, 2):
        tile = choose_tile(conv, DEFAULT, parts)
        timings[parts] = time(program_of(conv, DEFAULT, tile, epilogue, biased=True))
    assert timings[2].utilization >= least
    assert timings[2].cycles < timings[1].cycles


def test_a_layer_of_resnet_is_exact() -> None:
    run(LAYERS["conv4"][0], DEFAULT, epilogue=Epilogue(shift=10, low=0))


def test_two_layers_in_one_program() -> None:
    """The second reads what the first stores; between them, all engines wait."""
    config = DEFAULT
    first = Convolution(16, 32, 8, 8, kernel=3, padding=1)
    second = Convolution(32, 16, 8, 8, kernel=1)
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (1, 16, 8, 8)).astype(np.int8)
    weights = [
        rng.integers(-128, 128, (c.outputs, c.inputs, c.kernel, c.kernel)).astype(np.int8)
        for c in (first, second)
    ]
    zero = [np.zeros(c.outputs, int) for c in (first, second)]
    for waits in (True, False):
        b = Builder(config)
        data, between = b.input("x", Memory.INP, 64), b.scratch("between", 128)
        result = b.output("y", 64)
        packed = [
            b.constant(f"w{i}", Memory.WGT, pack_weights(w, config)) for i, w in enumerate(weights)
        ]
        with b.origin("first"):
            emit_convolution(b, first, Operands(data, packed[0], between), Epilogue(9, low=0))
        if waits:
            b.barrier()
        with b.origin("second"):
            emit_convolution(b, second, Operands(between, packed[1], result), Epilogue(7))
        program, simulator = b.program(), Simulator(config)
        if not waits:
            with pytest.raises(ClewError) as caught:
                simulator.run(program, {"x": pack_data(x, config)})
            assert caught.value.code in ("I437", "I438")
            assert caught.value.layer == "second"
            continue
        out = simulator.run(program, {"x": pack_data(x, config)})["y"]
        middle = expected(first, x, weights[0], zero[0], Epilogue(9, low=0))
        want = expected(second, middle, weights[1], zero[1], Epilogue(7))
        np.testing.assert_array_equal(unpack_data(out, (1, 16, 8, 8), config), want)


def test_packing_round_trip() -> None:
    rng = np.random.default_rng(2)
    config = SMALL.replace(batch=2, inp_bytes=1024, acc_bytes=4096)
    data = rng.integers(-128, 128, (3, 6, 5, 4)).astype(np.int8)
    packed = pack_data(data, config)
    assert packed.shape == (2 * 2 * 20, 2, 4)
    np.testing.assert_array_equal(packed[21, 1, 1], data[1, 5, 0, 1])
    np.testing.assert_array_equal(unpack_data(packed, data.shape, config), data)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"height": 2}, "has no result"),
        ({"padding": 3}, "the padding is 3, not from 0 to 2"),
        ({"outputs": 0}, "has no result"),
    ],
)
def test_convolutions_that_make_no_sense_are_refused(changes: dict[str, int], text: str) -> None:
    with pytest.raises(ClewError, match=text) as caught:
        Convolution(**{"inputs": 1, "outputs": 1, "height": 9, "width": 9, "kernel": 3, **changes})
    assert caught.value.code == "I445"


def test_memories_may_be_too_small() -> None:
    conv = Convolution(4, 4, 40, 40, kernel=13)
    with pytest.raises(ClewError, match=r"hold no tile .* with a 13×13 kernel"):
        choose_tile(conv, SMALL)
    with pytest.raises(ClewError, match=r"do not hold Tile\(outputs=1, height=40"):
        program_of(LAYERS["conv2"][0], DEFAULT, Tile(1, 40, 56, 4), Epilogue(), biased=False)
