"""Whole models in narrow floats: on targets with instructions for them and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
import clew.ops  # registers the operators
import zoo
from clew.api.loaded_model import load_compiled
from clew.cost.products import fastest_float
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType, to_numpy
from clew.machine.target import host, target_of
from clew.ops.registry import get_op
from clew.support.errors import ClewError

MODELS = ("resnet_tiny", "bert_tiny")
WORST = {"bf16": 3e-2, "f16": 3e-3}


def plain_host(*lacking: str) -> Any:
    features = host().features.split(",")
    kept = [f"-{f[1:]}" if f[1:].startswith(lacking) else f for f in features]
    return replace(host(), features=",".join(kept))


TARGETS = {
    "host": host,
    "no tiles": lambda: plain_host("amx"),
    "no dots": lambda: plain_host("amx", "avx512bf16", "avx512vnni"),
    "cpu-avx2": lambda: target_of("cpu-avx2"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["bf16", "f16"])
@pytest.mark.parametrize("target", TARGETS)
def test_results_are_near_those_in_f32(
    name: str, precision: str, target: str, runs_here: Callable[[Any], None]
) -> None:
    feed = zoo.inputs(name)
    exact = clew.compile(zoo.path(name), threads=1).run(feed)
    machine = TARGETS[target]()
    runs_here(machine)
    compiled = clew.compile(zoo.path(name), target=machine, threads=1, precision=precision)
    found = compiled.run(feed)
    for output, value in exact.items():
        error_of = np.abs(np.asarray(found[output]) - value).max() / np.abs(value).max()
        assert error_of < WORST[precision], output
        assert found[output].dtype == value.dtype


@pytest.mark.parametrize("name", MODELS)
def test_threads_and_files_change_no_bit(name: str, tmp_path: Path) -> None:
    feed = zoo.inputs(name)
    one, two = (clew.compile(zoo.path(name), threads=n, precision="bf16") for n in (1, 2))
    expected = one.run(feed)
    two.save(tmp_path / "model.clew")
    loaded = load_compiled(tmp_path / "model.clew", threads=2)
    for found in (two.run(feed), loaded.run(feed)):
        for output, value in expected.items():
            np.testing.assert_array_equal(found[output], value)


def test_behind_guard_pages() -> None:
    feed = zoo.inputs("resnet_tiny")
    compiled = clew.compile(
        zoo.path("resnet_tiny"),
        threads=1,
        precision="bf16",
        diagnostics=clew.Diagnostics(guard=True),
    )
    expected = clew.compile(zoo.path("resnet_tiny"), threads=1, precision="bf16").run(feed)
    for output, value in compiled.run(feed).items():
        np.testing.assert_array_equal(value, expected[output])


@pytest.mark.parametrize(
    ("shape", "filters", "taps", "attrs"),
    [
        ((1, 3, 37, 41), 64, (7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
        ((2, 3, 9, 70), 32, (3, 3), {"padding": (1, 0, 0, 2)}),
        ((1, 1, 19, 33), 48, (3, 5), {"strides": (1, 2)}),
        ((1, 3, 32, 20), 40, (4, 4), {"strides": (4, 4)}),
        ((1, 6, 8, 19), 16, (1, 3), {"dilation": (1, 2)}),
    ],
)
def test_image_layers(
    shape: tuple[int, ...], filters: int, taps: tuple[int, int], attrs: dict[str, Any]
) -> None:
    """Few channels, where a matrix unit sums over the columns of a filter as well, and elsewhere,
    behind guard pages.
    """
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((filters, shape[1], *taps)).astype(np.float32)
    module = _weighted("nn.conv2d", TensorType(shape, "f32"), weight, **attrs)
    x = rng.standard_normal(shape).astype(np.float32)
    (exact,) = interpret(module, {"x": x}).values()
    for name in ("host", "no tiles"):
        compiled = clew.compile(
            module,
            target=TARGETS[name](),
            threads=1,
            precision="bf16",
            diagnostics=clew.Diagnostics(guard=True),
        )
        found = np.asarray(compiled(x))
        assert np.abs(found - exact).max() < WORST["bf16"] * np.abs(exact).max(), name


def test_auto_is_bf16_where_that_is_faster() -> None:
    compiled = clew.compile(zoo.path("resnet_tiny"), precision="auto", threads=1)
    assert any("bf16" in k.loops for k in compiled.kernels) == (fastest_float(host()) == "bf16")
    assert fastest_float(target_of("cpu-avx2")) == "f32"


def test_layers_stay_in_f32_by_name() -> None:
    compiled = clew.compile(
        zoo.path("resnet_tiny"), threads=1, precision=clew.Precision("bf16", keep_f32=["*"])
    )
    assert not any("bf16" in k.loops for k in compiled.kernels)


def _image_network() -> Module:
    """All that a bf16 network of images meets: channels that fill no block, a norm over channels,
    both poolings, a concatenation, and a gelu.
    """
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Constant:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return Constant((rng.standard_normal(shape) * scale).astype(np.float32))

    def layer(op: str, *args: Any, **attrs: Any) -> Any:
        return get_op(op)(*args, **attrs)

    same = {"padding": (1, 1, 1, 1)}
    x = Var("x", TensorType((1, 3, 19, 21), "f32"))
    y = layer("nn.relu", layer("nn.conv2d", x, weight(32, 3, 3, 3), **same))
    y = layer("nn.lrn", y, size=5, alpha=0.1)
    y = layer("nn.max_pool2d", y, kernel=(3, 3), strides=(2, 2), **same)
    y = layer("nn.relu", layer("nn.conv2d", y, weight(24, 32, 3, 3), **same))
    y = layer("add", layer("nn.conv2d", y, weight(24, 24, 1, 1)), y)
    pooled = layer("nn.avg_pool2d", y, kernel=(3, 3), **same)
    parts = [layer("nn.conv2d", v, weight(n, 24, 1, 1)) for v, n in ((y, 16), (pooled, 48))]
    y = layer("concatenate", *parts, axis=1)
    y = layer("nn.relu", layer("nn.conv2d", y, weight(40, 64, 1, 1), strides=(2, 2)))
    y = layer("reshape", layer("nn.global_avg_pool2d", y), shape=(1, 40))
    y = layer("nn.gelu", layer("nn.dense", y, weight(64, 40)))
    y = layer("nn.dense", y, weight(10, 64))
    return Module({"main": Function([x], Tuple([y]), {"outputs": ("y",)})})


@pytest.mark.parametrize("keep", [(), ("*4*",)], ids=["all", "some in f32"])
def test_an_image_network(keep: tuple[str, ...]) -> None:
    module = _image_network()
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 19, 21)).astype(np.float32)}
    (expected,) = clew.compile(module, threads=1).run(feed).values()
    runs = [
        clew.compile(
            module,
            threads=n,
            precision=clew.Precision("bf16", keep_f32=keep),
            diagnostics=clew.Diagnostics(guard=guard),
        )
        for n, guard in ((1, False), (2, False), (1, True))
    ]
    found, *others = (next(iter(run.run(feed).values())) for run in runs)
    assert np.abs(found - expected).max() < 3e-2 * np.abs(expected).max()
    for other in others:
        np.testing.assert_array_equal(other, found)
    assert runs[0].trace.verify(feed, rtol=2e-2).ok  # as far apart as roundings take them


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ClewError, match=r"I013.*fp4") as caught:
        clew.compile(zoo.path("resnet_tiny"), precision="fp4")
    assert "bf16" in caught.value.hint


def _weighted(op: str, data: TensorType, weight: Any, **attrs: Any) -> Module:
    x = Var("x", data)
    return Module(
        {
            "main": Function(
                [x], Tuple([get_op(op)(x, Constant(weight), **attrs)]), {"outputs": ("y",)}
            )
        }
    )


INTEGERS = [
    ("nn.conv2d", (1, 64, 9, 7), (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}),
    ("nn.conv2d", (2, 32, 8, 20), (96, 32, 1, 1), {"strides": (2, 2)}),
    ("nn.conv2d", (1, 24, 6, 6), (20, 24, 3, 3), {"dilation": (2, 2)}),
    ("nn.conv2d", (1, 3, 9, 9), (16, 3, 3, 3), {}),
    ("nn.conv2d", (1, 32, 6, 6), (32, 1, 3, 3), {"groups": 32}),
    ("nn.conv2d", (1, 16, 6, 6), (32, 4, 3, 3), {"groups": 4}),
    ("nn.dense", (37, 128), (50, 128), {}),
    ("nn.dense", (2, 3, 30), (40, 30), {}),
    ("nn.dense", (1, 33), (64, 33), {}),
]


@pytest.mark.parametrize("dtypes", [("u8", "i8"), ("i8", "i8")], ids="-".join)
@pytest.mark.parametrize("target", ["host", "no tiles", "no dots"])
@pytest.mark.parametrize(("op", "data", "weight", "attrs"), INTEGERS)
def test_integer_products(
    op: str,
    data: tuple[int, ...],
    weight: tuple[int, ...],
    attrs: dict[str, Any],
    target: str,
    dtypes: tuple[str, str],
) -> None:
    rng = np.random.default_rng(0)
    low = 0 if dtypes[0] == "u8" else -128
    x = rng.integers(low, low + 256, data).astype(to_numpy(dtypes[0]))
    w = rng.integers(-128, 128, weight).astype(np.int8)
    module = _weighted(op, TensorType(data, dtypes[0]), w, **attrs)
    expected = interpret(module, {"x": x})["y"]
    compiled = clew.compile(
        module, target=TARGETS[target](), threads=2, diagnostics=clew.Diagnostics(guard=True)
    )
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)
