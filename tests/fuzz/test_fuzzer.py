"""The generator: the same graphs for the same seeds, valid ones, and no operator forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from clew.support.errors import CompileError
from fuzz import engines
from fuzz.case import Case, Plan, case_of, cases, model_of
from fuzz.check import Outcome, check
from fuzz.compare import Condition, difference
from fuzz.coverage import WHY_NOT, converted, missing
from fuzz.shrink import shrunk

FIRST, GRAPHS = 0, 100


@pytest.fixture(autouse=True)
def _here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "fuzz-cache"))


@pytest.mark.parametrize("code", ["C080", "T108"])
def test_mistakes_of_clew_are_no_refusals(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: Case) -> None:
        raise CompileError(code, "the pass FuseOps failed")

    monkeypatch.setattr(engines, "imported", fails)
    for case in (c for c in map(case_of, range(200)) if c.hostile or c.symbolic):
        assert check(case).failed == (code == "C080")


def test_a_seed_is_a_case() -> None:
    for seed in range(30):
        first, second = case_of(seed), case_of(seed)
        assert first.model.SerializeToString() == second.model.SerializeToString()
        assert first.plan == second.plan
        for name, array in first.feeds.items():
            assert array.tobytes() == second.feeds[name].tobytes() or array.dtype == object


def test_graphs_are_valid() -> None:
    for seed in range(80):
        case = case_of(seed)
        ranked = all(v.type.tensor_type.HasField("shape") for v in case.model.graph.output)
        if ranked and not case.hostile:
            onnx.checker.check_model(case.for_others(), full_check=True)


def test_every_operator_that_is_converted_is_drawn_or_has_a_reason() -> None:
    assert set(WHY_NOT) <= set(missing())
    assert [n for n in missing() if n not in WHY_NOT] == []
    assert len(set(converted()) - set(missing())) >= 150


def test_a_case_is_kept_and_read_again(tmp_path: Path) -> None:
    for seed in range(25):
        case = case_of(seed)
        case.save(tmp_path / str(seed))
        again = Case.load(tmp_path / str(seed))
        assert again.model.SerializeToString() == case.model.SerializeToString()
        assert again.plan == case.plan
        for name, array in case.feeds.items():
            assert again.feeds[name].dtype == array.dtype
            np.testing.assert_array_equal(again.feeds[name], array)


def test_what_fails_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(case: Case) -> Outcome:
        ops = [n.op_type for n in case.model.graph.node]
        return Outcome("mismatch", "compiled y") if "Add" in ops else Outcome("ok")

    monkeypatch.setattr("fuzz.shrink.check", wrong)
    several = (c for c in map(case_of, range(400)) if 4 <= len(c.model.graph.node) <= 6)
    case = next(c for c in several if wrong(c).failed)
    small = shrunk(case, wrong(case), seconds=600)
    assert len(small.model.graph.node) <= 3 < len(case.model.graph.node)


def test_a_wrong_result_is_seen_and_a_rounded_one_is_not() -> None:
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(4, 16)
    nodes = [
        onnx.helper.make_node("Softmax", ["x"], ["s"]),
        onnx.helper.make_node("Log", ["s"], ["y"]),
    ]
    case = Case(model_of(nodes, {"x": x}, ["y"]), {"x": x}, Plan())
    module = engines.imported(case)
    want = engines.interpreted(case, module)
    condition = Condition(lambda around: engines.interpreted(case, module, around), "f32", 0)
    assert difference(want, want, condition) is None
    assert difference({"y": want["y"] * np.float32(1 + 1e-7)}, want, condition) is None
    for wrong in (
        want["y"] * 1.0001,
        want["y"].astype(np.float64),
        want["y"][:2],
        want["y"] * np.nan,
    ):
        assert difference({"y": wrong}, want, condition) is not None


@settings(max_examples=10, deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(cases())
def test_cases_that_hypothesis_draws(case: Case) -> None:
    outcome = check(case)
    assert not outcome.failed, outcome.what


# Four seconds each; the fuzzer itself draws more.
_FURTHER = (FIRST + 25, FIRST + 75)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.exhaustive] if first in _FURTHER else [])
        for first in range(FIRST, FIRST + GRAPHS, 25)
    ],
)
def test_a_fixed_range_of_seeds(first: int) -> None:
    """`python -m fuzz seed NUMBER` looks at one again, `make fuzz` goes on from here."""
    engines.quiet()
    failed = [(s, o) for s in range(first, first + 25) if (o := check(case_of(s))).failed]
    assert not failed, "\n".join(f"seed {s}: {o.sort}: {o.what[:300]}" for s, o in failed)
