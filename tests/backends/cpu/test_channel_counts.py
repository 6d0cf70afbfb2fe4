"""Convolutions of one structure share code, with their numbers of channel blocks as sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.backends.cpu import lowering
from clew.backends.cpu.kernel_sizes import KernelSizes
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Expr, Function, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op

SIZES = (2, 3), (7, 34), (40, 33)
"""Images for which convolutions of these channels differ in their algorithms."""


def network(channels: Sequence[int]) -> Module:
    """Returns a chain of 3x3 convolutions of an image of free size."""
    rng = np.random.default_rng(3)
    shape = (1, channels[0], SymDim.symbol("h"), SymDim.symbol("w"))
    x = Var("x", TensorType(shape, "f32"))
    image: Expr = x
    for inner, outer in pairwise(channels):
        weight = rng.standard_normal((outer, inner, 3, 3)) * inner**-0.5 / 3
        conv = get_op("nn.conv2d")(image, Constant(weight.astype(np.float32)), padding=(1, 1, 1, 1))
        image = get_op("nn.relu")(conv)
    return Module({"main": Function([x], image)})


def compiled(module: Module) -> clew.CompiledModel:
    model = clew.compile(
        module, threads=1, target="cpu-avx2", cache=False, sizes=clew.Sizes(specialize=False)
    )
    model(images(module.main.params[0].tensor.shape[1])[0])
    return model


def convolutions(model: clew.CompiledModel) -> list[clew.Kernel]:
    return [kernel for kernel in model.kernels if "winograd" in kernel.rules]


def objects(model: clew.CompiledModel) -> list[str]:
    return [model.build.binaries[kernel.key].object.key for kernel in convolutions(model)]


def images(channels: int) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal((1, channels, *size)).astype(np.float32) for size in SIZES]


def test_numbers_of_channels_share_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = network((64, 64, 96, 192, 64))
    model = compiled(module)
    assert len(objects(model)) == 4
    assert len(set(objects(model))) == 1
    assert len({kernel.key for kernel in convolutions(model)}) == 4
    first = convolutions(model)[0].loops
    assert "f32[1, 4*c0, h, w, 8]" in first
    assert "prefetch" in first
    model.save(tmp_path / "chain.clew")
    loaded = clew.load_compiled(tmp_path / "chain.clew")
    found = []
    for image in images(64):
        (wanted,) = interpret(module, {"x": image}).values()
        np.testing.assert_allclose(model(image), wanted, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(loaded(image), model(image))
        found.append(model(image))

    # Kernels that know their channels compute the same bits.
    monkeypatch.setattr(lowering, "with_channel_counts", lambda sizes: sizes)
    apart = compiled(module)
    assert len(set(objects(apart))) == 4
    for image, expected in zip(images(64), found, strict=True):
        np.testing.assert_array_equal(apart(image), expected)


def test_counts_that_need_other_code_are_numbers() -> None:
    """Sums over 80 channels have blocks of other lengths, and schedules for 64 and 256 channels
    differ.
    """
    kernels = objects(compiled(network((80, 64, 256, 64))))
    assert len(kernels) == len(set(kernels)) == 3


def test_one_kernel_has_its_counts_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[KernelSizes] = []
    given = lowering.with_channel_counts
    monkeypatch.setattr(
        lowering, "with_channel_counts", lambda sizes: seen.append(given(sizes)) or seen[-1]
    )
    compiled(network((64, 96)))
    (named,) = (sizes for sizes in seen if sizes.typical)
    assert [named.dims[name] for name in ("c0", "c1")] == [2, 3]
    assert named.typical == {"c0": 4, "c1": 4}
