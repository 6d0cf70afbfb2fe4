"""Models wholly and partly on torch; the memory of results, threads, errors and records."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import clew
import zoo
from clew.backends.torch.backend import Torch
from clew.backends.torch.region import TorchRegion
from clew.ir.expr import Call, Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.registry import get_op
from clew.support.errors import ClewError
from overwriting import overwritten

Array = np.ndarray[Any, Any]


class _Some(Torch):
    """Torch for every third kind of call."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.key += " some"

    def at_threads(self, threads: int) -> Torch:
        return _Some(threads)

    def why_not(self, call: Call) -> str:
        reason = super().why_not(call)
        return reason or ("left out" if sum(map(ord, call.op_name)) % 3 == 0 else "")


@pytest.mark.parametrize("name", ["mobilenet_tiny", "bert_tiny", "gpt2_tiny", "qdq_resnet_tiny"])
@pytest.mark.parametrize("backend", [Torch, _Some], ids=["wholly", "partly"])
def test_networks(name: str, backend: Callable[[], Torch]) -> None:
    path, feed = zoo.path(name), zoo.inputs(name)
    expected = clew.compile(path, threads=1).run(feed)
    compiled = clew.compile(path, threads=1, backends=[backend()])
    regions = len(compiled.regions)
    assert regions == 1 if backend is Torch else regions > 1
    for key, found in compiled.run(feed).items():
        scale = float(np.abs(expected[key]).max())
        np.testing.assert_allclose(found, expected[key], rtol=0, atol=3e-5 * scale)


def _function(build: Callable[..., Any], *types: TensorType) -> Function:
    params = [Var(f"x{n}", t) for n, t in enumerate(types)]
    return Function(params, build(*params))


_F32 = TensorType((4, 6), "f32")


def _views(x: Var) -> Tuple:
    """Results that torch makes as views: of the input, of each other, and of constants."""
    held = Constant(np.arange(24, dtype=np.float32).reshape(4, 6))
    turned = get_op("transpose")(x, axes=(1, 0))
    half = get_op("slice")(x, begin=(0,), end=(2,), axes=(0,))
    double = get_op("add")(x, x)
    same = get_op("identity")(double)
    full = get_op("full")(shape=(2,), value=3.0, dtype="f32")
    wide = get_op("broadcast_to")(get_op("identity")(held), shape=(2, 4, 6))
    return Tuple([x, turned, half, double, same, full, wide, held])


def test_the_program_copies_results_that_share_memory() -> None:
    function = _function(_views, _F32)
    body = function.body
    assert isinstance(body, Tuple)
    names = {"outputs": tuple(f"y{n}" for n in range(len(body.fields)))}
    module = Module({"main": Function(function.params, body, names)})
    compiled = clew.compile(module, threads=1, opt_level=0, backends=[Torch()])
    assert compiled.regions
    x = np.random.default_rng(0).standard_normal((4, 6), "f4")
    assert overwritten(compiled.run, {"x0": x}) == ""


def test_inputs_of_all_kinds_are_read_where_they_are() -> None:
    region = TorchRegion(_function(lambda x: get_op("add")(x, x), _F32), 1)
    x = np.random.default_rng(0).standard_normal((4, 6), "f4")
    fixed = x.copy()
    fixed.flags.writeable = False
    kinds = [
        fixed,
        np.asfortranarray(x),
        np.repeat(x, 2, 1)[:, ::2],
        np.ascontiguousarray(x[::-1])[::-1],
        np.frombuffer(x.tobytes(), "f4").reshape(4, 6),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for array in kinds:
            (found,) = region(array)
            np.testing.assert_array_equal(found, x + x)
        row = np.broadcast_to(x[:1], (4, 6))
        np.testing.assert_array_equal(region(row)[0], row + row)
    np.testing.assert_array_equal(fixed, x)


def test_bf16() -> None:
    type_ = TensorType((4, 6), "bf16")
    region = TorchRegion(_function(lambda x: get_op("multiply")(x, x), type_), 1)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    (found,) = region(x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x * x)


def test_values_are_freed_after_their_last_use() -> None:
    region = TorchRegion(
        _function(lambda x: get_op("exp")(get_op("tanh")(get_op("exp")(x))), _F32), 1
    )
    alive: list[Any] = []
    most = 0
    steps = region._instructions

    def watched(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*xs: Any) -> Any:
            nonlocal most
            most = max(most, sum(r() is not None for r in alive))
            made = step(*xs)
            alive.append(weakref.ref(made))
            return made

        return run

    for one in steps:
        object.__setattr__(one, "step", watched(one.step))
    region(np.zeros((4, 6), "f4"))
    assert len(steps) == 3
    assert most == 1


def test_two_threads_at_once() -> None:
    path, feed = zoo.path("mobilenet_tiny"), zoo.inputs("mobilenet_tiny")
    compiled = clew.compile(path, threads=1, backends=["torch"])
    expected = compiled.run(feed)
    wrong: list[str] = []

    def work() -> None:
        for _ in range(10):
            for name, array in compiled.run(feed).items():
                if not np.array_equal(array, expected[name]):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_number_of_threads_is_set_for_the_call() -> None:
    seen: list[int] = []
    region = TorchRegion(_function(lambda x: get_op("exp")(x), _F32), 3)
    (one,) = region._instructions
    run = one.step

    def watched(x: Any) -> Any:
        seen.append(torch.get_num_threads())
        return run(x)

    object.__setattr__(one, "step", watched)
    before = torch.get_num_threads()
    region(np.zeros((4, 6), "f4"))
    assert (seen, torch.get_num_threads()) == ([3], before)
    with pytest.raises(TypeError):
        region(np.zeros((4, 6), "f8"))
    assert torch.get_num_threads() == before
    assert Torch(1).key == Torch(2).key  # records are for any number of threads


def test_a_wrong_dtype_is_a_coded_error() -> None:
    path, feed = zoo.path("mobilenet_tiny"), zoo.inputs("mobilenet_tiny")
    compiled = clew.compile(path, threads=1, backends=["torch"])
    (name,) = feed
    with pytest.raises(ClewError) as error:
        compiled.run({name: feed[name].astype("f8")})
    assert error.value.code == "I043"


def test_an_index_out_of_range_is_the_error_of_the_reference() -> None:
    types = (_F32, TensorType((3,), "i64"))
    region = TorchRegion(_function(lambda x, i: get_op("gather")(x, i, axis=0), *types), 1)
    x = np.zeros((4, 6), "f4")
    with pytest.raises(ClewError) as error:
        region(x, np.array([0, 4, 1]))
    assert error.value.code == "I320"
    np.testing.assert_array_equal(region(x, np.array([0, -4, 3]))[0], x[[0, -4, 3]])


def test_records_are_read_back() -> None:
    backend = Torch()
    function = _function(lambda x: get_op("nn.softmax")(x), _F32)
    record = backend.to_record(backend.compile(function, host()))
    assert record is not None
    x = np.random.default_rng(0).standard_normal((4, 6), "f4")
    expected = TorchRegion(function, 1)(x)
    np.testing.assert_array_equal(backend.of_record(record)(x)[0], expected[0])


def test_saved_models(tmp_path: Path) -> None:
    path, feed = zoo.path("mobilenet_tiny"), zoo.inputs("mobilenet_tiny")
    compiled = clew.compile(path, threads=1, backends=["torch"])
    compiled.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", backends=[Torch(1)])
    expected = compiled.run(feed)
    for name, array in loaded.run(feed).items():
        np.testing.assert_array_equal(array, expected[name])


def test_without_torch_the_backend_is_a_coded_error() -> None:
    code = """
import sys

sys.modules["torch"] = None
from clew.backends.registry import backends_of
from clew.support.errors import ClewError

try:
    backends_of(["torch"])
except ClewError as error:
    print(error.code, error.message)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "I356 the backend torch needs torch, which is not installed\n"
