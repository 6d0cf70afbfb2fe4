"""`clew.place`: its result, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.parser import parse_module
from clew.placement.agreement import disagreement
from clew.placement.placing import place as place_module
from clew.support.errors import ClewError, InputError

MODEL = """
clew 1
def @main(
  %x: f32[64, 128],  // input x
  %w: f32[128, 128]  // input w
) -> (f32[64, 128],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // first:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = nn.softmax(%1)  // soft:Softmax#0
  %3 = nn.matmul(%2, %w)  // second:MatMul#0
  %4 = (%3,)
  return %4
}
"""


@pytest.fixture(scope="module")
def module() -> clew.Module:
    return parse_module(MODEL)


@pytest.fixture(scope="module")
def found(module: clew.Module, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A placement over the NumPy backend, and its database."""
    database = tmp_path_factory.mktemp("placed") / "records.db"
    return clew.place(module, ["numpy"], threads=1, seconds=0.3, tuned=database), database


def test_the_fastest_plan_is_chosen_and_each_region_told(found: tuple[Any, Path]) -> None:
    placement, _ = found
    assert {"cpu", "numpy"} <= {plan.name for plan in placement.plans}
    ran = [p.seconds for p in placement.plans if p.seconds is not None and not p.is_mix]
    assert placement.best.seconds <= min(ran)
    layers = [layer for region in placement.regions for layer in region.layers]
    assert sorted(layers) == ["act", "first", "second", "soft"]
    for region in placement.regions:
        assert {a.backend for a in region.others} | {region.backend} == {"cpu", "numpy"}
        assert all(a.seconds is not None for a in region.others)
    assert placement.closest
    for moved in placement.closest:
        assert moved.here != moved.there
        assert moved.change == moved.there_seconds + moved.borders - moved.here_seconds
    text = str(placement)
    assert "if moved alone" in text
    assert "chosen" in text
    assert "the search was exact" in text


def test_a_second_call_reads_the_database(module: clew.Module, found: tuple[Any, Path]) -> None:
    placement, database = found
    kept = clew.place(module, ["numpy"], threads=1, tuned=database)
    assert kept.kept
    assert kept.to_json() == placement.to_json()
    assert json.loads(json.dumps(kept.to_json())) == json.loads(json.dumps(placement.to_json()))
    assert clew.Placement.of_json(json.loads(json.dumps(kept.to_json()))).rule == kept.rule


def test_another_model_or_option_is_measured_anew(
    module: clew.Module, found: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, database = found

    def measures(*_: Any) -> None:
        raise RuntimeError("measured")

    monkeypatch.setattr("clew.placement.placing._Placer.placed", measures)
    other = parse_module(MODEL.replace("64", "32"))
    for args, options in [
        ((other, ["numpy"]), {"threads": 1}),
        ((module, ["numpy"]), {"threads": 2}),
        ((module, ["numpy"]), {"threads": 1, "opt_level": 1}),
        ((module, ["numpy"]), {"threads": 1, "again": True}),
        ((module, []), {"threads": 1}),
    ]:
        with pytest.raises(RuntimeError, match="measured"):
            clew.place(*args, tuned=database, **options)


def test_a_model_is_compiled_as_placed(module: clew.Module, found: tuple[Any, Path]) -> None:
    placement, database = found
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 128), "f4"), rng.standard_normal((128, 128), "f4")
    expected = clew.compile(module, cache=False)(x, w)
    for place in (placement, "auto"):
        compiled = clew.compile(
            module, backends=["numpy"], place=place, threads=1, tuned=database, cache=False
        )
        np.testing.assert_allclose(compiled(x, w), expected, rtol=1e-4, atol=1e-4)
        assert {r.backend for r in compiled.regions} == set(placement.backends)


def test_a_wrong_backend_is_never_chosen(module: clew.Module, tmp_path: Path) -> None:
    """It is fast, but its products are off by a hundredth."""

    @clew.backend("hasty", key="1", takes=lambda call: call.op_name == "nn.matmul")
    def hasty(region: Any, target: Any) -> Any:
        shape = region.body.type.concrete
        return lambda *arrays: np.full(shape, 0.01, np.float32)

    placement = clew.place(module, ["hasty"], threads=1, seconds=0.3, tuned=tmp_path / "r.db")
    assert placement.best.name == "cpu"
    (alone,) = [p for p in placement.plans if p.name == "hasty"]
    assert alone.seconds is None
    assert "differs by" in alone.failure
    assert "differs by" in str(placement)


def test_a_backend_that_fails_in_a_run_is_told(module: clew.Module, tmp_path: Path) -> None:
    @clew.backend("brittle", key="1", takes=lambda call: call.op_name == "nn.softmax")
    def brittle(region: Any, target: Any) -> Any:
        def run(*arrays: Any) -> Any:
            raise OSError("no device")

        return run

    placement = clew.place(module, ["brittle"], threads=1, seconds=0.3, tuned=tmp_path / "r.db")
    assert placement.backends == ()
    (region,) = placement.regions
    (other,) = region.others
    assert other.seconds is None


def test_sizes_must_be_known() -> None:
    free = parse_module(MODEL.replace("f32[64, 128]", "f32[n, 128]"))
    with pytest.raises(InputError) as caught:
        clew.place(free, ["numpy"], tuned=None)
    assert caught.value.code == "I358"


def test_a_placement_is_for_its_graph(module: clew.Module) -> None:
    fixed = clew.partitioning.Fixed({(("first",), "nn.matmul", "f32[1, 1]", 0): "numpy"})
    with pytest.raises(ClewError) as caught:
        clew.compile(module, backends=["numpy"], place=fixed, cache=False)
    assert caught.value.code == "I355"


@pytest.mark.parametrize(
    ("found", "expected", "says"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), ""),
        (np.float32([1, 2]), np.float32([1, 2.01]), "differs by 0.005"),
        (np.float32([1, math.nan]), np.float32([1, math.nan]), ""),
        (np.float32([1, math.nan]), np.float32([1, 2]), "differs by inf"),
        (np.float32([math.inf]), np.float32([-math.inf]), "differs by inf"),
        (np.float32([0, 0]), np.float32([0, 0]), ""),
        (np.float32([1]), np.float64([1]), "is float32[1], not float64[1]"),
        (np.int64([1, 2]), np.int64([1, 3]), "differs"),
        (np.int8([1] * 99 + [2]), np.int8([1] * 100), ""),
        (np.int8([1] * 9 + [2]), np.int8([1] * 10), "differs by up to 1"),
        (np.int8([1] * 99 + [3]), np.int8([1] * 100), "differs by up to 2"),
    ],
)
def test_outputs_agree_or_not(found: Any, expected: Any, says: str) -> None:
    text = disagreement([found], [expected])
    assert (says in text) if says else not text


def test_unknown_options_are_refused(module: clew.Module) -> None:
    for options in ({"guard": True}, {"diagnostics": clew.Diagnostics(guard=True)}):
        with pytest.raises(InputError, match="guard") as caught:
            place_module(module, ["numpy"], tuned=None, **options)
        assert caught.value.code == "I014"
