"""The search: what is said, in which order, for how long. Measurements are stated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

import clew
from clew.advice import AdviceRule, Candidate, Change, Subject
from clew.advice.advising import Session, chosen_rules, found_again
from clew.advice.graphs import constant, op, replacing
from clew.advice.rule import _rules
from clew.support.errors import ClewError

from ..advised_models import Stated, subject_of, two_linear_layers

GAIN = (0.8, 0.75, 0.85)
NONE = (0.99, 0.9, 1.1)
WORSE = (1.2, 1.1, 1.3)


@pytest.fixture
def two_layers() -> Any:
    """A model of two consecutive linear layers, and a slice of one row of a third."""
    return two_linear_layers()


def session(model: Any, runner: Stated, *rules: str, **more: Any) -> Session:
    """Returns a search by some rules."""
    return Session(subject_of(model), chosen_rules(rules), lambda text: None, runner=runner, **more)


def test_a_gain_whose_interval_is_above_0_is_advice(two_layers: Any) -> None:
    found = session(two_layers, Stated([GAIN]), "linear-chain").advice(60)
    (item,) = found.items
    assert item.effect.gain == pytest.approx(0.2)
    assert (item.effect.low, item.effect.high) == pytest.approx((0.15, 0.25))
    assert item.effect.error is not None
    assert item.effect.error < 1e-5
    assert "20.0 % of a call (15.0 to 25.0): 1.000 → 0.800 ms" in str(found)


@pytest.mark.parametrize("ratio", [NONE, WORSE])
def test_any_other_interval_is_not(two_layers: Any, ratio: tuple[float, float, float]) -> None:
    found = session(two_layers, Stated([ratio]), "linear-chain").advice(60)
    assert not found.items
    assert found.others[0].effect.state == "no gain"
    assert "no advice" in str(found)


def test_the_best_prediction_is_tried_first_and_the_largest_gain_is_shown_first(
    two_layers: Any,
) -> None:
    runner = Stated([GAIN, (0.5, 0.45, 0.55)])
    search = session(two_layers, runner, "late-selection", "linear-chain")
    predicted = [row.predicted for row in search.ranked()]
    assert predicted == sorted(predicted, reverse=True)
    found = search.advice(60)
    assert [item.effect.gain for item in found.items] == pytest.approx([0.5, 0.2])


def test_what_does_not_fit_in_the_time_is_said_to_be_not_tried(two_layers: Any) -> None:
    now = [0.0]
    runner = Stated([GAIN], at=lambda: now.__setitem__(0, now[0] + 100))
    search = session(two_layers, runner, "late-selection", "linear-chain", clock=lambda: now[0])
    found = search.advice(60)
    assert len(runner.ran) == 1
    assert [one.effect.state for one in found.others] == ["not tried"]
    assert "give more --minutes" in str(found)


def test_an_interrupt_ends_the_search_with_what_it_has(two_layers: Any) -> None:
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    search = session(two_layers, Stated([GAIN], at=stop), "late-selection", "linear-chain")
    found = search.advice(60)
    assert found.stopped
    assert len(found.items) == 1


class _Doubled(AdviceRule):
    """Computes something else."""

    name: ClassVar[str] = "doubled"
    title: ClassVar[str] = "wrong changes"
    licence: ClassVar[Any] = "exact"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields one candidate that doubles the result."""
        last = subject.calls[-1]
        edits = replacing(self.name, last, [last], lambda x: x)
        _ = edits
        build = replacing(self.name, last, last.args, lambda x: op(
            "multiply", op("slice", x, **last.attrs.plain), constant(2.0)))  # fmt: skip
        yield Candidate(
            self.name, "double it", "it is wrong", "do not", (), "graph", self.licence,
            Change(build), share=0.5,
        )  # fmt: skip


class _Failing(AdviceRule):
    """Fails."""

    name: ClassVar[str] = "failing"
    title: ClassVar[str] = "failures"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Raises an error."""
        raise ValueError("no idea")


@pytest.mark.parametrize("licence", ["exact", "approximation"])
def test_a_change_whose_outputs_differ_is_not_measured(two_layers: Any, licence: Any) -> None:
    rule = type("Rule", (_Doubled,), {"licence": licence})()
    runner = Stated([GAIN])
    found = Session(subject_of(two_layers), [rule], lambda text: None, runner=runner).advice(60)
    assert not runner.ran
    assert found.others[0].effect.state == "differs"
    assert found.others[0].effect.error == pytest.approx(1.0)


def test_a_rule_of_a_user_that_fails_leaves_the_others(two_layers: Any) -> None:
    rules = [_Failing(), *chosen_rules(["linear-chain"])]
    found = Session(subject_of(two_layers), rules, lambda text: None, runner=Stated([GAIN])).advice(
        60
    )
    assert len(found.items) == 1
    assert found.notes == ("the rule failing failed: ValueError: no idea",)


def _fails(*_: Any) -> Any:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("change", "share", "state"),
    [
        (Change(edits=_fails), 0.5, "failed"),
        (Change(edits=_fails), None, ""),
        (Change(module=_fails), 0.5, "failed"),
        (Change(given=_fails), 0.5, "failed"),
        (Change(inputs=lambda inputs: {}), 0.5, "failed"),
        (Change(outputs=lambda outputs: {"other": outputs["y"]}), 0.5, "failed"),
        (Change(outputs=lambda outputs: {}), 0.5, "differs"),
    ],
)
def test_a_change_of_a_user_that_fails_leaves_the_others(
    two_layers: Any, change: Change, share: float | None, state: str
) -> None:
    class Rule(_Failing):
        def find(self, subject: Subject) -> Iterator[Candidate]:
            yield Candidate("r", "w", "y", "h", (), "option", "exact", change, share=share)

    rules = [Rule(), *chosen_rules(["linear-chain"])]
    runner = Stated([GAIN])
    found = Session(subject_of(two_layers), rules, lambda text: None, runner=runner).advice(60)
    assert [one.candidate.rule for one in found.items] == ["linear-chain"]
    assert [one.effect.state for one in found.others] == [state] * bool(state)
    assert found.notes == (() if state else ("r: w: ValueError: no idea",))


@pytest.mark.parametrize(
    "wrong",
    [
        {"effort": "none"}, {"licence": "none"}, {"share": float("nan")}, {"share": "half"},
        {"least": float("inf")}, {"change": Change(calls=0)},
    ],
)  # fmt: skip
def test_candidates_that_no_page_can_show_are_refused(wrong: dict[str, Any]) -> None:
    fields = {"effort": "option", "licence": "exact", "change": Change(), **wrong}
    with pytest.raises(ClewError) as raised:
        Candidate("r", "w", "y", "h", (), **fields)
    assert raised.value.code == "I516"


def test_advice_is_applied_by_number_also_together(two_layers: Any) -> None:
    runner = Stated([(0.5, 0.4, 0.6), GAIN])
    found = session(two_layers, runner, "late-selection", "linear-chain").advice(60)
    changed = found.apply([1, 2])
    assert len(changed.what) == 2
    inputs = found.subject.inputs_of(0)
    (expected,) = found.subject.compiled.run(inputs).values()
    (value,) = changed.compile().run(inputs).values()
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
    again = found.measured([1, 2])
    assert again.state == "advice"
    with pytest.raises(ClewError) as raised:
        found.apply([3])
    assert raised.value.code == "I514"


def test_two_changes_of_one_value_do_not_go_together(two_layers: Any) -> None:
    subject = subject_of(two_layers)
    rules = [_Doubled(), type("Other", (_Doubled,), {"name": "other"})()]
    found = Session(subject, rules, lambda text: None, runner=Stated([GAIN])).advice(60)
    both = dataclasses.replace(found, items=found.others[:2])
    with pytest.raises(ClewError) as raised:
        both.apply([1, 2])
    assert raised.value.code == "I514"
    assert "same value" in raised.value.message


def test_a_candidate_keeps_its_identity_in_another_process(two_layers: Any) -> None:
    found = session(two_layers, Stated([GAIN]), "linear-chain").advice(60)
    changed = found_again(two_layers, [found[0].candidate.key], threads=1)
    assert changed.what == (found[0].candidate.what,)
    with pytest.raises(ClewError) as raised:
        found_again(two_layers, ["0" * 16], threads=1)
    assert raised.value.code == "I514"


def test_the_data_are_json(two_layers: Any) -> None:
    found = session(two_layers, Stated([GAIN]), "late-selection", "linear-chain").advice(60)
    data = json.loads(json.dumps(found.to_json()))
    assert data["schema"] == "clew.advice/1"
    assert [one["number"] for one in data["advice"]] == [1, 2]
    first = data["advice"][0]
    assert first["effect"]["gain"] == pytest.approx(0.2)
    assert first["where"][0]["op"]
    assert data["ceiling"]["kernels"]
    assert data["ceiling"]["roof_ns"] > 0


def test_the_changed_model_is_written(two_layers: Any, tmp_path: Any) -> None:
    found = session(two_layers, Stated([GAIN]), "linear-chain").advice(60)
    changed = found.apply([1])
    changed.save(tmp_path / "better.onnx")
    inputs = found.subject.inputs_of(0)
    (expected,) = found.subject.compiled.run(inputs).values()
    (value,) = clew.compile(tmp_path / "better.onnx", threads=1).run(inputs).values()
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
    changed.save(tmp_path / "better.txt")
    assert (tmp_path / "better.txt").exists()
    with pytest.raises(ClewError) as raised:
        changed.save(tmp_path / "better.pt")
    assert raised.value.code == "I515"


def test_wrong_use(two_layers: Any) -> None:
    for code, options in (("I511", {"minutes": 0}), ("I513", {"rules": ["linear-chains"]})):
        with pytest.raises(ClewError) as raised:
            clew.advise(two_layers, **options)
        assert raised.value.code == code
    with pytest.raises(ClewError) as raised:
        clew.register_advice(int)  # type: ignore[type-var]
    assert raised.value.code == "I510"


def test_a_rule_of_a_user_is_registered_by_its_name() -> None:
    before = dict(_rules)
    try:
        assert clew.register_advice(_Failing) is _Failing
        assert chosen_rules(["failing"])[0].title == "failures"
    finally:
        _rules.clear()
        _rules.update(before)


def test_free_sizes_need_samples() -> None:
    text = """clew 1, frontend text
def @main(%x: f32[n, 4]) -> (f32[n, 4],) with outputs=["y"] {
  %0: f32[n, 4] = nn.relu(%x)
  %1: (f32[n, 4],) = (%0,)
  return %1
}
"""
    module = clew.parse(text)
    with pytest.raises(ClewError) as raised:
        clew.advise(module, threads=1)
    assert raised.value.code == "I512"
