"""A predictor learns from a table, says how sure it is, and is kept in files that run nothing."""

from __future__ import annotations

import io
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.frontends import onnx
from clew.machine.target import host
from clew.predict import Forecast, extras, forecast, load_predictors, save_predictors, train
from clew.predict.predictor import LEVEL, Predictor, quantile, select, train_columns
from clew.predict.table import columns_of, columns_of_table, read_table, write_table
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError, InputError
from zoo import loops


@pytest.fixture(scope="module")
def columns(lawful: Path) -> Any:
    return columns_of_table(read_table(lawful))


@pytest.fixture(scope="module")
def trained(lawful: Path) -> Predictor:
    return train(lawful, host(), 1)


@pytest.fixture(scope="module")
def unchecked(lawful: Path) -> Predictor:
    return train(lawful, host(), 1, checked=False)


def _code(call: Any) -> str:
    with pytest.raises(ClewError) as caught:
        call()
    assert caught.value.hint or caught.value.code in ("I189", "I186")
    return caught.value.code


def test_a_table_gives_the_same_predictor_each_time(
    lawful: Path, columns: Any, trained: Predictor
) -> None:
    again = train(lawful, host(), 1)
    assert again.errors == trained.errors
    assert (again.predict(columns).kernels_ns == trained.predict(columns).kernels_ns).all()


def test_times_that_follow_a_law_are_found(columns: Any) -> None:
    out = np.array([n in ("lawful-3", "lawful-7") for n in columns["network"]])
    made = train_columns(select(columns, ~out), host(), 1, checked=False)
    for network in ("lawful-3", "lawful-7"):
        given = select(columns, np.array([n == network for n in columns["network"]]))
        found = made.predict(given)
        assert not found.looked_up.any()
        assert found.total_ns == pytest.approx(given["network_call_ns"][0], rel=0.15)


def test_intervals_hold_for_networks_left_out(columns: Any) -> None:
    names = sorted(set(columns["network"]))
    inside: list[bool] = []
    totals: list[bool] = []
    for fold in range(3):
        out = set(names[fold::3])
        left = np.array([n in out for n in columns["network"]])
        made = train_columns(select(columns, ~left), host(), 1)
        for network in out:
            given = select(columns, np.array([n == network for n in columns["network"]]))
            found = made.predict(given)
            times = given["latency_ns"]
            inside += list((found.low_ns <= times) & (times <= found.high_ns))
            call = given["network_call_ns"][0]
            totals.append(bool(found.total_low_ns <= call <= found.total_high_ns))
    assert np.mean(inside) > LEVEL - 0.1
    assert np.mean(totals) > LEVEL - 0.15


def test_a_measured_kernel_may_be_looked_up(columns: Any) -> None:
    made = train_columns(columns, host(), 1, checked=False)
    found = made.predict(columns)
    assert found.looked_up.all()
    assert found.kernels_ns == pytest.approx(columns["latency_ns"])
    assert not made.predict(columns, lookup=False).looked_up.any()


def test_a_bound_leaves_room_where_little_is_known() -> None:
    errors = np.linspace(-1, 1, 101)
    assert quantile(errors) == pytest.approx(0.92, abs=0.03)
    assert quantile(np.array([0.1, -0.2])) == pytest.approx(0.3)


def test_a_predictor_comes_back_from_its_file(
    trained: Predictor, columns: Any, tmp_path: Path
) -> None:
    made = trained
    path = tmp_path / "one.clewp"
    save_predictors(path, [made, replace(made, threads=2)])
    one, two = load_predictors(path)
    assert (one.threads, two.threads) == (1, 2)
    assert one.errors == made.errors
    assert (one.predict(columns).kernels_ns == made.predict(columns).kernels_ns).all()
    with zipfile.ZipFile(path) as archive:
        assert all(name.endswith((".npy", ".json")) for name in archive.namelist())


def test_no_predictor_is_read_from_other_files(tmp_path: Path) -> None:
    path = tmp_path / "odd.clewp"
    assert _code(lambda: load_predictors(path)) == "I186"
    path.write_bytes(b"no zip")
    assert _code(lambda: load_predictors(path)) == "I186"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("predictors.json", '{"format": 99}')
    assert _code(lambda: load_predictors(path)) == "I186"


def test_trees_that_are_none_are_refused(lawful: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.clewp"
    save_predictors(path, [train(lawful, host(), 1, checked=False)])
    stream = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "0/left.npy":  # a circle
                array = np.load(io.BytesIO(data))
                part = io.BytesIO()
                np.save(part, np.zeros_like(array))
                data = part.getvalue()
            new.writestr(name, data)
    assert _code(lambda: load_predictors(stream.getvalue(), "one.clewp")) == "I186"


def test_a_model_is_predicted_without_a_run(trained: Predictor, small_module: Any) -> None:
    found = forecast(small_module(0), [trained], threads=1)
    assert found.low_ns < found.total_ns < found.high_ns
    assert sum(k.ns for k in found.kernels) + found.overhead_ns == pytest.approx(found.total_ns)
    assert sum(found.layers.values()) == pytest.approx(sum(k.ns for k in found.kernels))
    assert not found.notes
    assert [k["kernel"] for k in found.to_json()["kernels"]] == [k.kernel for k in found.kernels]


def test_kernels_in_loops_count_once_an_iteration(unchecked: Predictor, tmp_path: Path) -> None:

    def found(path: Path) -> Forecast:
        return forecast(onnx.load(path), [unchecked], threads=1)

    few, many = (found(loops.nested(tmp_path / "n.onnx", 3, n)) for n in (20, 40))
    assert [k.iterations for k in few.kernels] == [60]
    assert [k.iterations for k in many.kernels] == [120]
    assert many.kernels[0].ns == pytest.approx(2 * few.kernels[0].ns)
    assert many.total_ns - many.overhead_ns == pytest.approx(2 * (few.total_ns - few.overhead_ns))
    beside = found(loops.scan(tmp_path / "s.onnx", 40))
    assert [k.iterations for k in beside.kernels] == [40, 1]


def test_a_loop_that_a_value_ends_has_times_of_one_iteration(
    unchecked: Predictor, tmp_path: Path
) -> None:
    found = forecast(onnx.load(loops.ended(tmp_path / "e.onnx")), [unchecked], threads=1)
    assert {k.iterations for k in found.kernels} == {None}
    assert any("times are of one iteration" in note for note in found.notes)


def test_unfamiliar_kernels_are_named(unchecked: Predictor, small_module: Any) -> None:
    ops = ["nn.other" if op == "nn.softmax" else op for op in unchecked.model.ops]
    strange = replace(unchecked, model=replace(unchecked.model, ops=ops))
    found = forecast(small_module(0), [strange], threads=1)
    assert any("nn.softmax" in k.unfamiliar for k in found.kernels)
    assert "nn.softmax" in found.notes[0]


def test_tables_that_do_not_fit_are_refused(
    tmp_path: Path, blank_row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.parquet"

    def table(**given: Any) -> Path:
        write_table(path, [blank_row(**given)])
        return path

    assert _code(lambda: train(path, host(), 1)) == "I181"
    path.write_text("no table")
    assert _code(lambda: train(path, host(), 1)) == "I181"
    assert _code(lambda: train(table(threads=1), host(), 1)) == "I185"
    assert _code(lambda: train(table(threads=2), host(), 1)) == "I183"
    assert _code(lambda: train(table(threads=1, target="elsewhere"), host(), 1)) == "I183"
    monkeypatch.setattr("clew.predict.table.VERSION", "0.0.1")
    table(threads=1)
    monkeypatch.undo()
    assert _code(lambda: train(path, host(), 1)) == "I184"


def test_disturbed_rows_are_learned_from_where_steady_ones_are_too_few(
    tmp_path: Path, blank_row: Any
) -> None:
    rows = [
        blank_row(threads=1, network=f"n{n % 8}", steady=n < 20, latency_ns=1e3 + n)
        for n in range(80)
    ]
    write_table(tmp_path / "table.parquet", rows)
    made = train(tmp_path / "table.parquet", host(), 1, checked=False)
    assert made.threads == 1


def test_missing_columns_are_named(measured: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "less.parquet"
    parquet.write_table(read_table(measured).drop_columns(["cycles", "key"]), path)
    with pytest.raises(ClewError) as caught:
        train(path, host(), 1)
    assert caught.value.code == "I182"
    assert "key, cycles" in caught.value.message


def test_a_predictor_of_other_threads_or_machines_is_refused(
    unchecked: Predictor, small_module: Any
) -> None:
    assert _code(lambda: forecast(small_module(0), [unchecked], threads=3)) == "I183"
    away: Predictor = replace(unchecked, target="elsewhere")
    assert _code(lambda: forecast(small_module(0), [away], threads=1)) == "I183"


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ClewError) as caught:
        extras.needed("sklearn.ensemble")
    assert caught.value.code == "I180"
    assert "scikit-learn" in caught.value.message
    assert "clew[predict]" in caught.value.hint


def test_rows_become_columns(blank_row: Any) -> None:
    made = columns_of([blank_row(cycles=3.0, rules=["conv"])])
    assert made["cycles"].tolist() == [3.0]
    assert made["rules"] == [["conv"]]


def test_a_predictor_that_gives_no_number(trained: Predictor, columns: Any, tmp_path: Path) -> None:
    for wrong in (
        replace(trained, overhead=float("nan")),
        replace(trained, measured=dict.fromkeys(columns["key"], 1e6)),
        replace(trained, errors=replace(trained.errors, total=1e6)),
    ):
        with pytest.raises(InputError, match=r"I332.*not a finite number") as caught:
            wrong.predict(columns)
        assert "clew predict --train" in caught.value.hint
    save_predictors(tmp_path / "p.clewp", [replace(trained, overhead=float("nan"))])
    assert _code(lambda: load_predictors(tmp_path / "p.clewp")) == "I186"


def test_tables_have_a_budget(lawful: Path) -> None:
    with in_force(Budgets(total_bytes=1000)), pytest.raises(InputError, match="I331") as caught:
        train(lawful, host(), 1)
    assert f"bytes of the table {str(lawful)!r}" in caught.value.message
