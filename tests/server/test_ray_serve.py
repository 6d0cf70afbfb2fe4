"""The program of `docs/ray_serve.py` in a local Ray: two replicas, one of which is killed."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.generation.folders import write_model, write_tokenizer

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")
_URL = "http://127.0.0.1:{}"
_PORT = 8765
_DOCS = Path(__file__).parents[2] / "docs"


def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns the program, as a module that Ray pickles by value."""
    monkeypatch.syspath_prepend(str(_DOCS))
    made = importlib.import_module("ray_serve")
    ray.cloudpickle.register_pickle_by_value(made)
    return made


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Returns the answer to a request as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def servers(folder: Path) -> list[int]:
    """Returns the ids of the processes that serve a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if {"serve", str(folder), "--no-key"} <= set(words):
                found.append(int(process.name))
    return found


@pytest.mark.exhaustive
def test_a_killed_server_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model")
    write_tokenizer(folder)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": _PORT})
        serve.run(program(monkeypatch).app({"folder": str(folder), "options": "--threads 1"}))
        url = _URL.format(_PORT)
        prompt = {"model": "model", "prompt": [5, 9, 7], "max_tokens": 8, "temperature": 0}
        expected = asked(url, "/v1/completions", prompt)["choices"][0]["text"]
        assert asked(url, "/v1/models")["data"][0]["id"] == "model"
        before = set(servers(folder))
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        answers, failed, begin = 0, 0, time.monotonic()
        while time.monotonic() - begin < 120:
            try:
                text = asked(url, "/v1/completions", prompt)["choices"][0]["text"]
            except urllib.error.HTTPError:  # of the replica whose server is gone
                failed += 1
            else:
                answers += 1
                assert text == expected
            now = set(servers(folder))
            if len(now) == 2 and min(before) not in now and answers > 20:
                break
            time.sleep(0.2)
        print(f"{answers} answers, {failed} failed, {time.monotonic() - begin:.1f} s")
        assert len(now) == 2
        assert now != before
        for _ in range(10):  # both replicas answer again
            assert asked(url, "/v1/completions", prompt)["choices"][0]["text"] == expected
    finally:
        serve.shutdown()
        ray.shutdown()
    end = time.monotonic() + 30
    while servers(folder) and time.monotonic() < end:
        time.sleep(0.2)
    assert not servers(folder)
