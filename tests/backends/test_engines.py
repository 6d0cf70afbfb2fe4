"""Other engines as backends: whole models and parts, what they take, records, threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.backends import registry
from clew.backends.registry import backend_names, backends_of
from clew.ir.expr import Call
from clew.ir.parser import parse_module
from clew.ir.visit import post_order
from clew.placement.agreement import disagreement, tolerance_for
from clew.support.errors import ClewError, InputError
from random_partitions import Subject

pytest.importorskip("onnxruntime")


def installed(name: str) -> bool:
    return name == "numpy" or find_spec(name) is not None


ENGINES = [
    pytest.param(n, marks=[] if installed(n) else pytest.mark.skip(f"{n} is not installed"))
    for n in ("onnxruntime", "openvino", "numpy")
]
NAMES = [n for n in ("onnxruntime", "openvino", "numpy") if installed(n)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "model",
    [
        *("resnet_tiny", "bert_tiny", "qdq_resnet_tiny"),
        pytest.param("gpt2_tiny", marks=pytest.mark.exhaustive),  # much like BERT
    ],
)
def test_whole_models(engine: str, model: str) -> None:
    module = clew.load(zoo.path(model))
    compiled = clew.compile(module, threads=1, backends=[engine])
    assert {r.backend for r in compiled.regions} == {engine}
    plain = clew.compile(zoo.path(model), threads=1)
    for seed in range(2):
        inputs = zoo.inputs(model, seed)
        expected = plain.run(inputs)
        found = compiled.run(inputs)
        values = list(found.values()), list(expected.values())
        assert not disagreement(*values, tolerance_for(module))
    assert compiled.trace.check() == []
    profile = compiled.profile(*zoo.inputs(model).values(), repeats=5)
    rows = [k for k in profile.kernels if k.kind == "region"]
    assert {k.name.partition(":")[0] for k in rows} == {engine}


@pytest.mark.parametrize(
    "model",
    [
        *("resnet_tiny", "bert_tiny", "encoder_small_free"),
        pytest.param("vit_tiny", marks=pytest.mark.exhaustive),  # much like BERT
    ],
)
def test_random_partitions(model: str) -> None:
    """More models and partitions: `python -m random_partitions`."""
    subject = Subject(model, NAMES)
    for seed in range(3):
        assert subject.outcome(seed).problem == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", [n for n in zoo.names("quick") if n not in zoo.names("dynamic")])
def test_more_random_partitions(model: str) -> None:
    subject = Subject(model, NAMES)
    for seed in range(10, 20):
        assert subject.outcome(seed).problem == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_saved_model_runs_on_its_engine(engine: str, tmp_path: Path) -> None:
    inputs = zoo.inputs("resnet_tiny")
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, backends=[engine])
    compiled.save(tmp_path / "model.clew")
    for threads in (1, 2):
        loaded = clew.load_compiled(tmp_path / "model.clew", threads, backends=[engine])
        for name, value in compiled.run(inputs).items():
            np.testing.assert_allclose(loaded.run(inputs)[name], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_may_call_at_once(engine: str) -> None:
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, backends=[engine])
    feeds = [zoo.inputs("resnet_tiny", seed) for seed in range(6)]
    expected = [list(compiled.run(f).values()) for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda f: list(compiled.run(f).values()), feeds * 3))
    for number, values in enumerate(found):
        assert not disagreement(values, expected[number % len(feeds)])


@pytest.mark.parametrize("engine", ENGINES)
def test_results_do_not_change_in_later_calls(engine: str) -> None:
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, backends=[engine])
    first = list(compiled.run(zoo.inputs("resnet_tiny", 0)).values())
    kept = [np.array(v) for v in first]
    for seed in range(1, 4):
        compiled.run(zoo.inputs("resnet_tiny", seed))
    for value, before in zip(first, kept, strict=True):
        np.testing.assert_array_equal(value, before)


ODD = """
clew 1
def @main(
  %x: f32[2, 3]  // input x
) -> (f32[3, 2], f32[2, 3], f32[2, 3]) with outputs=["a", "b", "c"] {
  %0 = transpose(%x, axes=[1, 0])  // turn:Transpose#0
  %1 = flip(%x, axes=[1])  // mirror:Flip#0
  %2 = nn.relu(%1)  // act:Relu#0
  %3 = (%0, %1, %2)
  return %3
}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", ["numpy", "onnxruntime"])
def test_values_with_other_strides_and_views_pass_between_engines(engine: str, first: str) -> None:
    """NumPy's results may be views of its operands, and read from the end."""
    compiled = clew.compile(
        parse_module(ODD),
        backends=list(dict.fromkeys([first, engine])),
        place={first: ["turn", "mirror"]} if first == engine else
        {first: ["turn", "mirror"], engine: ["act"]},
        cache=False,
    )  # fmt: skip
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    a, b, c = compiled(x)
    np.testing.assert_array_equal(a, x.T)
    np.testing.assert_array_equal(b, x[:, ::-1])
    np.testing.assert_array_equal(c, np.maximum(x[:, ::-1], 0))


@pytest.mark.parametrize("engine", [e for e in ENGINES if e.values[0] != "numpy"])
def test_what_an_engine_does_not_take_stays_on_the_cpu_with_the_reason(engine: str) -> None:
    module = parse_module(ODD.replace("nn.relu(%1)", "cumprod(%1, axis=1)"))
    (backend,) = backends_of([engine])
    compiled = clew.compile(module, backends=[engine], cache=False)
    taken = {op for region in compiled.regions for op in region.ops}
    assert taken == {"transpose", "flip"}
    calls = [n for n in post_order(module.main.body) if isinstance(n, Call)]
    reasons = {call.op_name: backend.why_not(call) for call in calls}
    assert {op for op, why in reasons.items() if why} == {"cumprod"}
    with pytest.raises(InputError, match="takes nothing of act: cumprod: ") as caught:
        clew.compile(module, place={engine: ["act"]}, cache=False)
    assert caught.value.code == "I354"


def test_unknown_and_missing_backends_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        clew.compile(parse_module(ODD), backends=["onnxrumtime"])
    assert caught.value.code == "I353"
    assert "onnxruntime" in caught.value.hint
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "clew.backends.onnxruntime.backend", raising=False)
    registry._made.cache_clear()
    with pytest.raises(InputError) as caught:
        clew.compile(parse_module(ODD), backends=["onnxruntime"])
    registry._made.cache_clear()
    assert caught.value.code == "I356"
    assert "clew[onnxruntime]" in caught.value.hint


def test_a_registered_backend_is_found_by_name() -> None:
    @clew.backend("doubling", key="1", takes=lambda call: call.op_name == "nn.relu")
    def doubling(region: Any, target: Any) -> Any:
        return lambda x: 2 * x

    assert "doubling" in backend_names()
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    for given in ("doubling", doubling):
        c = clew.compile(parse_module(ODD), backends=[given], cache=False)(x)[2]
        np.testing.assert_array_equal(c, 2 * x[:, ::-1])

    @clew.backend
    class Tripling(clew.Backend):
        name = "tripling"

        def takes(self, call: Any) -> bool:
            return bool(call.op_name == "nn.relu")

        def compile(self, region: Any, target: Any) -> Any:
            return lambda x: 3 * x

    c = clew.compile(parse_module(ODD), backends=["tripling"], cache=False)(x)[2]
    np.testing.assert_array_equal(c, 3 * x[:, ::-1])
    with pytest.raises(ClewError, match="clew itself has a backend numpy"):
        clew.backend("numpy", takes=lambda call: True)(lambda region, target: None)


def test_importing_clew_imports_no_engine() -> None:
    code = (
        "import clew, sys; clew.compile; clew.place; "
        "print([m for m in ('onnxruntime', 'openvino', 'torch') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
