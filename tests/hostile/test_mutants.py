"""The mutator: what it makes, what it notices, and a short run of it without a defect."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnx import ModelProto

from clew.support.errors import ClewError
from hostile.catalog import model, node
from hostile.corpus import network
from hostile.mutants import mutant
from hostile.probe import Probe, Watch
from mutate import Result, Shepherd

ROOT = Path(__file__).parents[2]


def test_mutants_follow_from_their_seed() -> None:
    data, other = network().SerializeToString(), model([node("Neg", ["x"], ["y"])])
    others = [data, other.SerializeToString()]
    made = [mutant(data, others, random.Random(n)) for n in range(200)]
    assert made == [mutant(data, others, random.Random(n)) for n in range(200)]
    assert sum(m != data for m in made) > 150
    assert sum(_parses(m) for m in made) > 100


def _parses(data: bytes) -> bool:
    try:
        ModelProto.FromString(data)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("count", [300, pytest.param(800, marks=pytest.mark.exhaustive)])  # 10 s
def test_a_short_run_without_a_defect(count: int, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")])
    environment = {**os.environ, "PYTHONPATH": paths, "CLEW_COMPILE_JOBS": "1"}
    program = str(ROOT / "tools" / "mutate.py")
    done = subprocess.run(
        [sys.executable, program, str(count), "--quick", "--out", tmp_path],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["defects"], json.dumps(result["defects"], indent=1)
    assert done.returncode == 0
    assert result["next"] == count
    assert result["kinds"]["coded"] > count / 2
    assert result["kinds"]["ran"] > count / 160


class Probed:
    """Stands in for a probe: each mutant does what a list says."""

    def __init__(self, folder: Path, attacks: list) -> None:
        self.folder, self.attacks = folder, attacks

    def files(self, number: int):
        class Named:
            name = "made"

        return Named(), {"m": b""}, random.Random(0)

    def try_one(self, number: int, watch: Watch):
        class One(Probe):
            def files(self, number):
                return Probed.files(self, number)

            def _attack(self, seed, draw):
                return attacks[number]()

        attacks = self.attacks
        return One([], self.folder, 0, 0.0).try_one(number, watch)


def refuse():
    raise ClewError("M001", "no")


def busy():
    while True:
        pass


def connect():
    with socket.socket() as s:
        s.settimeout(0.1)
        s.connect_ex(("127.0.0.1", 9))
    return "ok"


ATTACKS = {
    "ok": lambda: "ok",
    "coded": refuse,
    "uncoded": lambda: 1 // 0,
    "crash": lambda: os._exit(11),
    "hang": busy,
    "forbidden": lambda: Path("../secret.bin").read_text()[:2],
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_every_end_is_noticed(kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("mutate.LIMIT_S", 0.3)
    result = Result(0, 0, 0, 0.0)
    shepherd = Shepherd([], result, tmp_path)
    attacks = [ATTACKS["ok"], ATTACKS[kind], ATTACKS["ok"]]
    monkeypatch.setattr(shepherd, "_probe", Probed(shepherd._folder, attacks))
    start = time.monotonic()
    shepherd.run(3)
    assert time.monotonic() - start < 30
    expected = {"ok": 3} if kind == "ok" else {"ok": 2, kind: 1}
    assert dict(result.kinds) == expected
    assert len(result.defects) == (kind not in ("ok", "coded"))


@pytest.mark.parametrize(
    ("event", "arguments", "wrong"),
    [
        ("open", ("/a/model/x", "r", 0), False),
        ("open", ("/a/model/x", "w", os.O_WRONLY), False),
        ("open", ("/usr/lib/x", "r", 0), False),
        ("open", ("/usr/lib/x", "w", os.O_CREAT), True),
        ("open", ("/a/secret", "r", 0), True),
        ("open", ("/a/model/../secret", "r", 0), True),
        ("open", ("w.bin", "r", os.O_NOFOLLOW), False),
        ("open", ("..", "r", os.O_NOFOLLOW), True),
        ("open", (3, "r", 0), False),
        ("os.remove", ("/a/model/x", -1), False),
        ("os.remove", ("/a/x", -1), True),
        ("subprocess.Popen", (sys.executable, [], None, None), False),
        ("subprocess.Popen", ("/bin/sh", [], None, None), True),
        ("socket.connect", (None, ("127.0.0.1", 80)), True),
        ("pickle.find_class", ("os", "system"), True),
        ("compile", (None, "x"), False),
    ],
)
def test_the_watch(event: str, arguments: tuple, wrong: bool) -> None:
    watch = Watch(("/a/model",), ("/usr/lib",), active=True)
    watch(event, arguments)
    assert bool(watch.seen) == wrong
