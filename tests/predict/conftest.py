"""Tables: one of a few small networks, measured here, and one whose times follow a known law."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.frontends import onnx
from clew.ir.module import Module
from clew.machine.target import host
from clew.predict import predictor
from clew.predict.dataset import Subject, Wanted, collect
from clew.predict.network import Network
from clew.predict.table import COLUMNS, read_table, write_table
from clew.version import VERSION


def _small_network(seed: int, channels: int = 8) -> Any:
    """Returns an ONNX model of a few small layers."""
    net = Network(f"small{seed}", seed)
    x = net.input("x", (1, 3, 12, 12))
    weight = net.weight(channels, 3, 3, 3, scale=0.2)
    y = net.add(
        "Conv", [x, weight, net.weight(channels)], (1, channels, 12, 12), pads=[1] * 4,
        kernel_shape=[3, 3], strides=[1, 1], group=1,
    )  # fmt: skip
    y = net.unary("Relu", y)
    y = net.add("GlobalAveragePool", [y], (1, channels, 1, 1))
    y = net.reshape(y, (1, channels))
    y = net.add("Gemm", [y, net.weight(channels, 10), net.weight(10)], (1, 10))
    return net.model(net.unary("Softmax", y, axis=-1))


def _small_module(seed: int) -> Module:
    return onnx.load(_small_network(seed, 8 + 4 * seed))


def _subjects(count: int) -> list[Subject]:
    return [Subject(f"small-{n}", "small", lambda n=n: _small_module(n), n) for n in range(count)]


@pytest.fixture(scope="session")
def small_network() -> Any:
    """Makes ONNX models of a few small layers, by a number."""
    return _small_network


@pytest.fixture(scope="session")
def small_module() -> Any:
    """Makes them imported."""
    return _small_module


@pytest.fixture(scope="session")
def subjects() -> Any:
    """Makes a number of them for `collect`."""
    return _subjects


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of two small networks on one thread."""
    path = tmp_path_factory.mktemp("measured") / "table.parquet"
    collect(path, Wanted(threads=(1,), turns=1), subjects=_subjects(2))
    return path


@pytest.fixture(scope="session")
def lawful(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of thirty networks whose kernels' times are those of a law and 3 % of noise, half of
    which a network's kernels share.
    """
    rng = np.random.default_rng(0)
    like = [r for r in read_table(measured).to_pylist() if r["mode"] == "program"]
    rows = []
    for network in range(30):
        shared = rng.normal(0, 0.02)
        for number in range(12):
            row = dict(like[rng.integers(len(like))])
            size = 10 ** rng.uniform(3, 7)
            row |= {
                "network": f"lawful-{network}",
                "kernel": f"kernel_{number}",
                "key": f"{network:04x}{number:04x}",
                "cycles": (cycles := size * rng.uniform(0.5, 1.5)),
                "core_cycles": cycles,
                "count_fma": size,
                "lines_2_2": size * rng.uniform(0, 4) / 64,
                "constant_bytes_14": int(size * rng.uniform(0, 2)),
                "span": 1.0,
                "fma_gflops": 200.0,
                "steady": True,
            }
            ns = 500 + row["cycles"] / 3 + row["constant_bytes_14"] / 20
            row["latency_ns"] = ns * np.exp(shared + rng.normal(0, 0.02))
            rows.append(row)
        own = rows[-12:]
        total = sum(r["latency_ns"] for r in own)
        for row in own:
            row |= {"network_sum_ns": total, "network_call_ns": total + 5000}
    path = tmp_path_factory.mktemp("lawful") / "table.parquet"
    write_table(path, rows)
    return path


@pytest.fixture(scope="module", autouse=True)
def few_trees() -> Iterator[None]:
    """Learns quickly, and roughly; in fixtures of modules, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "_TURNS", 40)
        patch.setattr(predictor, "_SEEDS", 1)
        patch.setattr(predictor, "_FOLDS", 2)
        yield


@pytest.fixture(scope="session")
def blank_row() -> Any:
    """Makes rows with all columns, those not given empty."""
    return _blank_row


def _blank_row(**given: Any) -> dict[str, Any]:
    empty = {"string": "", "list<string>": [], "int64": 0, "double": 1.0, "bool": True}
    made = {name: empty[kind] for name, (kind, _) in COLUMNS.items()}
    return {**made, "target": host().key, "clew": VERSION, "mode": "program", **given}
