"""`clew bench`: what it reports, not how fast anything is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import zoo
from clew.bench import engines as bench_engines
from clew.bench import session
from clew.bench.engines import Engine, Runner
from clew.cli import app
from clew.machine.probes.bandwidth import Bandwidth, Level


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        app.main(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return int(left.value.code or 0), captured.out, captured.err


@pytest.fixture(autouse=True)
def _quick_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = [Level("L2", 1 << 20, 50.0), Level("memory", 1 << 62, 10.0)]
    monkeypatch.setattr(Bandwidth, "levels", lambda self, threads: levels)


def peers(monkeypatch: pytest.MonkeyPatch, **prepares: Any) -> None:
    """Replaces the peers: a prepare each, or None for one that is not installed."""
    known = {
        name: Engine(name, prepare or bench_engines._clew, () if prepare else ("no_such_module",))
        for name, prepare in prepares.items()
    }
    monkeypatch.setattr(session, "engines", lambda: known)


def refuses(*_: Any) -> Runner:
    raise RuntimeError("cannot")


def test_engines_and_kernels_are_reported_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers(monkeypatch, onnxruntime=bench_engines._onnxruntime, openvino=refuses)
    path = zoo.path("keyword_spotting")
    code, out, err = command(capsys, path, "--threads", "1,2", "--rounds", 1, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["machine"]["vector_bits"] >= 128
    assert [run["threads"] for run in report["runs"]] == [1, 2]
    for run in report["runs"]:
        clew, onnxruntime, openvino = run["engines"]
        assert [e["engine"] for e in run["engines"]] == ["clew", "onnxruntime", "openvino"]
        assert clew["error"] < 1e-5
        assert clew["median_ms"] > 0
        assert onnxruntime["error"] == 0
        assert openvino["failure"] == "RuntimeError: cannot"
        assert run["gflop"] == pytest.approx(0.0053, rel=0.01)
        assert run["peak_gflops"] > 0
        assert sum(k["share"] for k in run["kernels"]) == pytest.approx(1)
        roof, times = run["roof"], [k["microseconds"] for k in run["kernels"]]
        assert roof["kernels_ms"] == pytest.approx(sum(times) / 1e3)
        assert 0 < roof["limits_ms"] <= roof["kernels_ms"]
        assert roof["limit_share"] == pytest.approx(roof["limits_ms"] / roof["kernels_ms"])
        assert set(roof["low"]) <= {k["kernel"] for k in run["kernels"]}
        assert {k["limit"] for k in run["kernels"]} <= {"compute", "L2", "memory"}


def test_a_missing_peer_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers(monkeypatch, onnxruntime=None, openvino=None)
    path = zoo.path("keyword_spotting")
    code, out, err = command(capsys, path, "--threads", 1, "--rounds", 1, "--kernels", 2)
    assert code == 0, err
    assert err.count("which is not installed: pip install 'clew[bench]'") == 2
    assert "1 thread, 0.00531 GFLOP" in out
    assert "fastest" not in out
    assert "FMA peak" in out
    assert re.search(r"kernels [\d.]+ ms; limits [\d.]+ ms: \d+ % of the roof", out)
    assert "more kernels: --kernels 0" in out


def test_outputs_that_disagree_are_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any) -> Runner:
        right = bench_engines._onnxruntime(*arguments)
        return Runner(lambda feed: [value + 1 for value in right.run(feed)])

    peers(monkeypatch, onnxruntime=wrong, openvino=None)
    path = zoo.path("keyword_spotting")
    code, out, err = command(capsys, path, "--threads", 1, "--rounds", 1)
    assert code == 1
    assert "error[C091]" in err
    assert "clew runs at" in out


def test_named_sizes_are_settled_by_shapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers(monkeypatch, onnxruntime=bench_engines._onnxruntime, openvino=None)
    shapes = [f"--shape={name}=2,8" for name in ("input_ids", "attention_mask")]
    path = zoo.path("bert_tiny_dynamic")
    code, out, err = command(capsys, path, *shapes, "--rounds", 1, "--threads", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["runs"][0]["gflop"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["model.clew"],
        ["model.onnx", "--threads", "1,x"],
        ["model.onnx", "--threads", "0"],
        ["model.onnx", "--precision", "f64"],
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, _, err = command(capsys, *arguments)
    assert code == 2, err


def test_a_model_that_clew_refuses_is_its_coded_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    code, _, err = command(capsys, tmp_path / "m.onnx")
    assert code == 1
    assert "error[M" in err


def test_kernels_are_simulated_on_more_threads(capsys: pytest.CaptureFixture[str]) -> None:
    path = zoo.path("resnet_tiny")
    code, out, err = command(capsys, path, "--threads", "1,8", "--simulate", "--json")
    assert code == 0, err
    one, eight = json.loads(out)["simulated"]
    assert one["makespan_ms"] == pytest.approx(one["one_thread_ms"])
    assert eight["one_thread_ms"] == one["one_thread_ms"]
    assert eight["makespan_ms"] <= eight["one_thread_ms"]
    for kernel in eight["kernels"]:
        assert 1 <= kernel["speedup"] <= min(8, kernel["tasks"]) * 1.001
    code, out, err = command(capsys, path, "--threads", "8", "--simulate")
    assert code == 0, err
    assert "8 threads, simulated" in out
