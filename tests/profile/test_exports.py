"""What a profile is written as says what the profile says."""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from models import profiled

from clew.profile.chrome import KERNELS_TRACK, LAYERS_TRACK
from clew.profile.frames import (
    COLUMNS,
    KERNEL_COLUMNS,
    LAYER_COLUMNS,
    METADATA,
    MODULE_COLUMNS,
    OPERATOR_COLUMNS,
)
from clew.profile.report import Profile
from clew.support.errors import InputError

NAMES = ["keyword_spotting", "loop_recurrence"]
BOTH = [(name, mode) for name in NAMES for mode in ("fused", "both")]


@pytest.fixture(params=BOTH, ids=lambda p: "-".join(p))
def profile(request: pytest.FixtureRequest) -> Profile:
    return profiled(*request.param)


# The document that `docs/profile.md` describes: fields and their types.
_TIME = dict.fromkeys(("ns", "median_ns", "q1_ns", "q3_ns", "best_ns", "spread"), float)
FACTS: Any = object()  # described by `docs/correlate.md`
_PART = {"layer": str, "ns": float, "basis": str}
_OPERATOR = {
    "kernel": str, "position": int, "op": str, "layers": [str], "ns": float, "share": float,
    "basis": str, "samples": float, "measured": (float, type(None)),
    "by_flops": (float, type(None)), "by_bytes": (float, type(None)), "parts": [_PART],
    "facts": FACTS,
}  # fmt: skip
_ROOF = {
    "flops": int, "bytes": int, "gflops": float, "peak_share": float, "gbps": float,
    "bandwidth_share": float, "limit": str, "limit_share": float,
}  # fmt: skip
_KERNEL = {
    "name": str, "kind": str, "ops": [str], "layers": [str], "runs": float, "time": _TIME,
    "share": float, "operators": [_OPERATOR], "samples": int, "error": float,
    "lines": [{"line": int, "text": str, "samples": float, "share": float}],
    "instructions": {"place": [int], "address": [int], "line": [int], "samples": [float]},
    "roof": (_ROOF, type(None)), "facts": FACTS,
}  # fmt: skip
_LAYER_PART = {"kernel": str, "position": int, "op": str, "ns": float, "basis": str}
_LAYER = {
    "layer": str, "op": str, "ns": float, "share": float, "alone_ns": float, "measured_ns": float,
    "estimated_ns": float, "undivided_ns": float, "kernels": [str], "parts": [_LAYER_PART],
    "facts": FACTS,
}  # fmt: skip
_GAIN = {
    "layer": (str, type(None)), "op": str, "unfused_ns": float, "fused_ns": float,
    "unfused_kernels": int, "fused_kernels": int, "saved_ns": float, "speedup": (float, type(None)),
}  # fmt: skip
_MODULE = {
    "module": str, "kind": str, "ns": float, "share": float, "layers": [str], "kernels": [str],
}  # fmt: skip
_OUTSIDE = {"what": str, "count": int, "ns": float}
_LIMITS = {
    "threads": int, "peak_gflops": float, "tile_gflops": (float, type(None)),
    "bandwidth_gbps": dict,
}  # fmt: skip
_PROFILE: dict[str, Any] = {
    "schema": str, "mode": str, "target": str, "threads": int, "warmup": int, "rounds": int,
    "runs_a_round": int, "wall": _TIME, "timed_wall": _TIME, "overhead": float,
    "kernels_ns": float, "outside_ns": float, "outside": [_OUTSIDE],
    "limits": (_LIMITS, type(None)), "notes": [str],
    "kernels": [_KERNEL], "layers": [_LAYER], "modules": [_MODULE], "gains": [_GAIN],
}  # fmt: skip
_PROFILE["unfused"] = (_PROFILE, type(None))


def check(value: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, tuple):
        if value is not None:
            check(value, wanted[0], where)
    elif isinstance(wanted, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            check(item, wanted[0], f"{where}[{number}]")
    elif isinstance(wanted, dict):
        assert isinstance(value, dict), where
        assert set(value) == set(wanted), where
        for name, inner in wanted.items():
            check(value[name], inner, f"{where}.{name}")
    elif wanted is FACTS:
        assert isinstance(value, dict), where
    elif wanted is float:
        assert isinstance(value, (float, int)), where
    else:
        assert isinstance(value, wanted), where


def test_json_has_the_documented_fields(profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "p.json")
    read = json.loads((tmp_path / "p.json").read_text())
    assert read == json.loads(json.dumps(profile.to_json(), allow_nan=False))
    check(read, _PROFILE, "profile")
    assert read["schema"] == "clew.profile/2"
    assert sum(k["time"]["ns"] for k in read["kernels"]) == profile.kernels_ns
    assert sum(la["ns"] for la in read["layers"]) == profile.kernels_ns


def test_the_page_lists_every_field_and_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "profile.md").read_text()
    tables = (_PROFILE, _KERNEL, _OPERATOR, _PART, _ROOF, _LAYER, _GAIN, _LIMITS, _OUTSIDE, _TIME)
    tables += (_LAYER_PART, _MODULE)
    fields = {name for table in tables for name in table}
    columns = {*COLUMNS, *MODULE_COLUMNS}
    assert [f for f in sorted(fields | columns) if f"`{f}`" not in page] == []


def test_frames(profile: Profile) -> None:
    kernels, layers, operators = profile.to_pandas()
    assert list(kernels.columns) == KERNEL_COLUMNS
    assert list(layers.columns) == LAYER_COLUMNS
    assert list(operators.columns) == OPERATOR_COLUMNS
    assert kernels["ns"].sum() == layers["ns"].sum() == operators["ns"].sum()
    assert kernels["ns"].sum() == profile.kernels_ns
    assert kernels["kernel"].tolist() == [k.name for k in profile.kernels]
    assert operators.groupby("kernel")["ns"].sum().to_dict() == {
        k.name: k.ns for k in profile.kernels
    }


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_one_table_of_all_rows(profile: Profile, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"p.{suffix}"
    getattr(profile, f"to_{suffix}")(path)
    read = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path)
    fused = read[read["mode"] == "fused"]
    by_level = fused.groupby("level")["ns"].sum()
    assert by_level["kernel"] == by_level["layer"] == by_level["operator"] == profile.kernels_ns
    assert by_level["run"] == profile.wall.ns
    assert by_level["outside"] == pytest.approx(max(0, by_level["run"] - by_level["kernel"]))
    assert set(read["mode"]) == ({"fused", "unfused"} if profile.unfused else {"fused"})
    rows = fused[fused["level"] == "kernel"]
    ops = [list(k.ops) for k in profile.kernels]
    if suffix == "parquet":
        assert [list(cell) for cell in rows["ops"]] == ops
        about = json.loads(pq.read_metadata(path).metadata[METADATA])
        assert about["schema"] == "clew.profile/2"
        assert about["threads"] == 1
        assert "kernels" not in about
    else:
        assert rows["ops"].tolist() == ["; ".join(names) for names in ops]


COLUMNS_OF = {
    "kernel": KERNEL_COLUMNS,
    "layer": LAYER_COLUMNS,
    "operator": OPERATOR_COLUMNS,
    "module": MODULE_COLUMNS,
}


@pytest.mark.parametrize("by", COLUMNS_OF)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_table_of_one_level(profile: Profile, by: Any, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"p.{suffix}"
    getattr(profile, f"to_{suffix}")(path, by=by)
    read = pd.read_parquet(path) if suffix == "parquet" else pd.read_csv(path)
    assert list(read.columns) == ["mode", *COLUMNS_OF[by]]
    both = [profile] if profile.unfused is None else [profile, profile.unfused]
    assert read["ns"].tolist() == [row.ns for one in both for row in getattr(one, f"{by}s")]


def test_csv_needs_no_pandas(profile: Profile, tmp_path: Path) -> None:
    profile.to_parquet(tmp_path / "p.parquet")
    with_pandas = pd.read_parquet(tmp_path / "p.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        profile.to_csv(tmp_path / "p.csv")
        with pytest.raises(InputError, match="I112"):
            profile.to_pandas()
    read = pd.read_csv(tmp_path / "p.csv")
    assert list(read.columns) == list(with_pandas.columns)
    assert len(read) == len(with_pandas)
    times = [c for c in read.columns if c.endswith("ns")]
    np.testing.assert_array_equal(read[times], with_pandas[times].astype(float))
    assert not (read[times] < 0).any().any()


def test_slices_nest_on_each_track_and_add_up(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.trace.json"
    made = profile.to_chrome_trace(path)
    assert json.loads(path.read_text()) == made
    slices = [e for e in made["traceEvents"] if e["ph"] == "X"]
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append(event)
    processes = [1, 2] if profile.unfused else [1]
    assert sorted(tracks) == [(p, t) for p in processes for t in (LAYERS_TRACK, KERNELS_TRACK)]
    for (process, track), events in tracks.items():
        of = profile if process == 1 else profile.unfused
        assert of is not None
        kinds = ["layer", "kernel"] if track == LAYERS_TRACK else ["kernel", "operator"]
        depths = nesting(events)
        expected = {"model": 0, kinds[0]: 1, "host": 1, kinds[1]: 2, "outside": 1}
        for event, depth in zip(events, depths, strict=True):
            if track == LAYERS_TRACK or event["cat"] != "host":
                assert depth == expected[event["cat"]], event
        for kind in kinds:
            total = sum(e["args"]["ns"] for e in events if e["cat"] in (kind, "host"))
            assert total == of.kernels_ns
    named = {(e["pid"], e["args"]["name"]) for e in made["traceEvents"] if e["ph"] == "M"}
    assert {(1, "layers"), (1, "kernels")} <= named


def nesting(events: list[dict[str, Any]]) -> list[int]:
    """Returns how deep each slice lies; none may overlap another without lying in it.

    Edges are compared as the whole nanoseconds that Perfetto reads.
    """
    depths: list[int] = []
    stack: list[tuple[int, int, str]] = []
    for event in events:
        begin = round(event["ts"] * 1e3)
        end = begin + round(event["dur"] * 1e3)
        while stack and event["cat"] in _LEVEL[stack[-1][2]]:
            assert stack.pop()[1] <= begin, event
        if stack:
            assert stack[-1][0] <= begin, event
            assert end <= stack[-1][1], event
        depths.append(len(stack))
        stack.append((begin, end, event["cat"]))
    return depths


# What cannot lie in a slice of a kind.
_LEVEL = {
    "model": {"model"},
    "layer": {"layer", "outside"},
    "kernel": {"kernel", "layer", "host", "outside"},
    "host": {"kernel", "layer", "host", "outside"},
    "operator": {"operator", "kernel", "host", "outside"},
    "outside": {"outside"},
}


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    profile = profiled("loop_recurrence")
    for write in (profile.save, profile.to_csv, profile.to_parquet, profile.to_chrome_trace):
        with pytest.raises(InputError) as caught:
            write(tmp_path / "nowhere" / "p")
        assert caught.value.code == "I115"


@pytest.mark.parametrize("missing", ["pandas", "pyarrow"])
def test_without_the_libraries(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    profile = profiled("loop_recurrence")
    with pytest.raises(InputError, match=f"{missing} is not installed") as caught:
        profile.to_parquet(tmp_path / "p.parquet")
    assert caught.value.code == "I112"
    assert "clew[profile]" in caught.value.hint
    profile.save(tmp_path / "p.json")  # needs neither
    profile.to_chrome_trace()
    assert profile.table()
