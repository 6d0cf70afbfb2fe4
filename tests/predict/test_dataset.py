"""Kernels are measured into a table that can be added to at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew.frontends import onnx
from clew.predict.convnets import convnet
from clew.predict.dataset import Subject, Wanted, collect, drawn_networks
from clew.predict.table import COLUMNS, read_table, schema
from clew.predict.transformers import transformer
from clew.support.errors import ClewError, GraphTypeError
from zoo import loops


def test_a_row_says_what_a_kernel_is_and_how_long_it_took(measured: Path) -> None:
    table = read_table(measured)
    assert table.schema.equals(schema())
    rows = [r for r in table.to_pylist() if r["mode"] == "program"]
    assert {r["network"] for r in rows} == {"small-0", "small-1"}
    conv = next(r for r in rows if "nn.conv2d" in r["ops"])
    facts = json.loads(conv["operators"])
    first = next(f for f in facts if f["op"] == "nn.conv2d")
    assert (first["channels_in"], first["channels_out"], first["kernel"]) == (3, 8, [3, 3])
    assert conv["product_flops"] == 2 * 8 * 12 * 12 * 27
    assert conv["bytes"] > 0
    assert conv["count_fma"] > 0
    for row in rows:
        assert 0 < row["best_ns"] <= row["q1_ns"] <= row["median_ns"] <= row["q3_ns"]
        assert row["latency_ns"] > 0
        assert row["fma_gflops"] > 0
        assert abs(sum(json.loads(row["shares"]).values()) - 1) < 1e-9
    whole = {r["network"]: r["network_sum_ns"] for r in rows}
    for network, total in whole.items():
        parts = sum(r["latency_ns"] for r in rows if r["network"] == network)
        assert parts == pytest.approx(total)


def test_kernels_are_measured_alone_too(measured: Path) -> None:
    rows = read_table(measured).to_pylist()
    names = [{r["kernel"] for r in rows if r["mode"] == mode} for mode in ("program", "alone")]
    assert names[0] == names[1]


def test_a_kernel_in_a_loop_is_measured_by_the_iteration(tmp_path: Path) -> None:
    def latency(iterations: int) -> float:
        model = loops.scan(tmp_path / f"scan{iterations}.onnx", iterations)
        subject = Subject(f"scan{iterations}", "loops", lambda: onnx.load(model), iterations)
        path = tmp_path / f"{iterations}.parquet"
        collect(path, Wanted(turns=1), subjects=[subject])
        rows = [r for r in read_table(path).to_pylist() if r["mode"] == "program"]
        (row,) = [r for r in rows if "matmul" in "".join(r["ops"]) or "dense" in r["kernel"]]
        return float(row["latency_ns"])

    assert latency(400) < 10 * latency(4)


def test_what_the_table_has_is_left_out(tmp_path: Path, subjects: Any) -> None:
    path = tmp_path / "table.parquet"
    asked = Wanted(threads=(1,), turns=1)
    first = collect(path, asked, subjects=subjects(1))
    before = read_table(path)
    again = collect(path, asked, subjects=subjects(2))
    after = read_table(path)
    assert (first.networks, again.networks, again.skipped) == (1, 1, 1)
    assert after.slice(0, before.num_rows).equals(before)
    assert again.rows == after.num_rows - before.num_rows > 0


def test_an_interruption_keeps_whole_networks(tmp_path: Path, subjects: Any) -> None:
    path = tmp_path / "table.parquet"

    def interrupted() -> Any:
        raise KeyboardInterrupt

    several = [*subjects(1), Subject("other", "small", interrupted)]
    with pytest.raises(KeyboardInterrupt):
        collect(path, Wanted(threads=(1,), turns=1), subjects=several)
    assert set(read_table(path).column("network").to_pylist()) == {"small-0"}
    assert not [p for p in tmp_path.iterdir() if p != path]


def test_a_network_that_cannot_be_compiled_is_named_and_left_out(
    tmp_path: Path, subjects: Any
) -> None:
    def refused() -> Any:
        raise GraphTypeError("T103", "the channels differ")

    said: list[str] = []
    several = [Subject("odd", "small", refused), *subjects(1)]
    path = tmp_path / "table.parquet"
    result = collect(path, Wanted(threads=(1,), turns=1), subjects=several, note=said.append)
    assert result.networks == 1
    assert said == ["odd is left out: error[T103] the channels differ"]


def test_one_operator_per_kernel(tmp_path: Path, subjects: Any) -> None:
    path = tmp_path / "table.parquet"
    collect(path, Wanted(threads=(1,), turns=1, fuses=("none",)), subjects=subjects(1))
    rows = read_table(path).to_pylist()
    assert {r["fuse"] for r in rows} == {"none"}
    assert {"nn.relu"} <= {op for r in rows for op in r["ops"]}
    assert max(len(r["ops"]) for r in rows) == 1


def test_a_table_that_cannot_be_written_is_named(tmp_path: Path, subjects: Any) -> None:
    path = tmp_path / "folder.parquet"
    path.mkdir()
    with pytest.raises(ClewError) as caught:
        collect(path, Wanted(threads=(1,), turns=1), subjects=subjects(1))
    assert caught.value.code in ("I181", "I189")


# One of each kind; the others are larger.
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (2, 3))]
)
def test_a_drawn_network_is_the_same_each_time_and_has_no_wild_values(seed: int) -> None:
    make = convnet if seed % 2 else transformer
    (kind, model), (other, again) = make(seed), make(seed)
    assert kind == other
    assert model.SerializeToString() == again.SerializeToString()


def test_drawn_networks_are_numbered_from_the_seed() -> None:
    names = [subject.name for subject in drawn_networks(3, 4)]
    assert names == ["convnet-3", "convnet-4", "transformer-5", "convnet-6"]


def test_every_column_says_what_it_is() -> None:
    assert all(text for _, text in COLUMNS.values())
