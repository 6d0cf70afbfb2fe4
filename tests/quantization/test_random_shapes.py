"""Quantized layers of random shapes, for all schemes and kinds of CPU: equal to NumPy, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from onnx import ModelProto
from reference import Array, convolved, data_integers, expected, weight_integers
from small_models import drawn, model, node

import clew
from clew.cost.policy.precision import NEIGHBORS_TO_PAIR
from clew.ir.interpret import interpret
from clew.machine.needs import check_machine, needs_of
from clew.machine.target import Target, target_of
from clew.quantization import Scheme
from clew.support.errors import ClewError

_AVX512: Final = target_of("cpu-avx512")
TARGETS: Final = {
    "avx2": target_of("cpu-avx2"),
    "avx512": _AVX512,
    "vnni": replace(_AVX512, features=f"{_AVX512.features},+avx512vnni"),
    "amx": replace(_AVX512, features=f"{_AVX512.features},+avx512vnni,+amx-tile,+amx-int8"),
}
SCHEMES: Final = [
    {"activations": data, "weights": weights, "granularity": granularity, "weight_bits": bits}
    for data in ("u8", "i8")
    for weights in ("i8", "u8")
    for granularity in ("channel", "tensor")
    for bits in (8, 7)
]  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A layer by a seed: the network, calibration data, and the reference. With `few_neighbors`, it
    is a convolution that no instruction for integers makes faster.
    """

    network: ModelProto
    data: Array
    axis: int
    sums: Callable[[Array, Array], Array]
    channels_first: bool
    few_neighbors: bool = False


def dense(rng: np.random.Generator) -> Drawn:
    """A product of up to 9 rows."""
    rows, depth, units = (int(rng.integers(1, most)) for most in (10, 71, 41))
    seed = int(rng.integers(1 << 16))
    constants = {"w": drawn(depth, units, seed=seed, scale=depth**-0.5)}
    if rng.random() < 0.7:
        constants["b"] = drawn(units, seed=seed, scale=0.3)
    nodes = [node("Gemm", ["x", *constants], ["y"], name="fc")]
    network = model(nodes, {"x": [rows, depth]}, {"y": [rows, units]}, constants)
    return Drawn(network, drawn(4 * rows, depth, seed=seed), 1, np.matmul, False)


def conv(rng: np.random.Generator) -> Drawn:
    """A convolution: plain or depthwise, of 1 or 3 taps, with strides and padding."""
    channels, outputs = int(rng.integers(1, 20)), int(rng.integers(1, 34))
    taps, stride = int(rng.choice([1, 3])), int(rng.integers(1, 3))
    pad, groups = int(rng.integers(0, 1 + taps // 2)), 1
    if rng.random() < 0.3:
        groups = outputs = channels
    height, width = (int(n) for n in rng.integers(taps, 11, 2))
    seed = int(rng.integers(1 << 16))
    inner = channels // groups
    w = drawn(outputs, inner, taps, taps, seed=seed, scale=(inner * taps**2) ** -0.5)
    constants = {"w": w}
    if rng.random() < 0.7:
        constants["b"] = drawn(outputs, seed=seed, scale=0.3)
    attrs = {"group": groups, "pads": [pad] * 4, "strides": [stride] * 2}
    nodes = [node("Conv", ["x", *constants], ["y"], name="conv", **attrs)]
    out = [(n + 2 * pad - taps) // stride + 1 for n in (height, width)]
    shapes = {"x": [1, channels, height, width]}, {"y": [1, outputs, *out]}

    def sums(x: Array, k: Array) -> Array:
        return convolved(x, k, stride, pad, groups)

    data = drawn(4, channels, height, width, seed=seed)
    few = groups == 1 and inner * taps < NEIGHBORS_TO_PAIR
    return Drawn(model(nodes, *shapes, constants), data, 0, sums, True, few)


def runs_here(target: Target) -> bool:
    """Whether this machine has the target's instructions."""
    try:
        check_machine(needs_of(target.triple, target.cpu, target.features))
    except ClewError:
        return False
    return True


def results(module: Any, target: Target, x: Array, folder: Path) -> list[Array]:
    """Returns what is computed on a target: by kernels between guard pages, by those that were
    saved and loaded, and by the module as text. On other machines, the kernels are compiled, and
    the graph for them is interpreted.
    """
    module.save(folder / "q.txt")
    again = clew.load(folder / "q.txt")
    if not runs_here(target):
        compiled = clew.compile(again, target=target, threads=1)
        assert all(k.object_code for k in compiled.kernels)
        return list(interpret(compiled.build.stages[-1].module, {"x": x}).values())
    compiled = clew.compile(
        module.module, target=target, threads=1, diagnostics=clew.Diagnostics(guard=True)
    )
    compiled.save(folder / "model.clew")
    models = (
        compiled,
        clew.load_compiled(folder / "model.clew"),
        clew.compile(again, target=target, threads=1),
    )
    return [m.run({"x": x})["y"] for m in models]


def check(kind: str, target: str, seed: int, folder: Path) -> None:
    rng = np.random.default_rng([seed, kind == "conv"])
    layer = (dense if kind == "dense" else conv)(rng)
    changes = SCHEMES[int(rng.integers(len(SCHEMES)))]
    scheme = Scheme(**changes, bias_correction=False, migration=False, weight_range="minmax")
    q = clew.quantize(layer.network, layer.data, scheme=scheme, threads=1)
    (p,) = q.parameters
    w, scales, zeros = weight_integers(p.site.weight.data, layer.axis, scheme)
    np.testing.assert_array_equal(p.weight, w)
    along = [1] * w.ndim
    along[layer.axis] = -1
    whole = (w - zeros.reshape(along)).astype(np.int64)
    count = len(layer.data) // 4
    bias = p.site.bias_constant
    for number, x in enumerate((layer.data[:count], 3 * layer.data[-count:])):
        # The second one is beyond the range.
        sums = layer.sums(data_integers(x, p), whole)
        wanted = expected(sums, p, scales, None if bias is None else bias.data.reshape(-1))
        if layer.channels_first:
            wanted = np.moveaxis(wanted, -1, 1)
        # Where bytes are multiplied, convolutions with a zero point in the weight stay in floats.
        bytes_ = bool(TARGETS[target].dot_lanes("u8", "i8"))
        floats = layer.few_neighbors or (kind == "conv" and bytes_ and zeros.any())
        near = 1e-6 * np.abs(wanted).max() if floats else 0
        here = folder / str(number)
        here.mkdir()
        for found in results(q, TARGETS[target], x, here):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=near, err_msg=f"{changes}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["dense", "conv"])
@pytest.mark.parametrize("seed", range(34))
def test_layers_of_random_shapes(kind: str, target: str, seed: int, tmp_path: Path) -> None:
    check(kind, target, seed, tmp_path)
