"""`compiled.explore()`: the page of a model that this process has compiled."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import clew
import zoo
from clew.explorer.serving import Explored
from clew.support.errors import ClewError, InputError


@clew.schedule_for(op="nn.max_pool2d")
def left_alone(schedule: Any, target: Any) -> bool:
    return False


@pytest.fixture(scope="module")
def page() -> Iterator[Explored]:
    module = clew.load(zoo.path("resnet_tiny"))
    compiled = clew.compile(
        module,
        threads=1,
        precision=clew.Precision("bf16", keep_f32=["*fc*"]),
        passes=clew.Passes(disabled=["SelectConvAlgorithm"]),
        extend=[left_alone],
    )
    with compiled.explore() as made:
        yield made


def ask(page: Explored, path: str, body: Any = None, method: str = "", **headers: str) -> Any:
    """Returns a status and what is answered."""
    parts = urlsplit(page.url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    try:
        own = {"content-type": "application/json", "accept": "application/json"}
        data = None if body is None else json.dumps(body)
        asked = method or ("GET" if body is None else "POST")
        connection.request(asked, parts.path + path, data, {**own, **headers})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text
    finally:
        connection.close()


def result(page: Explored, job: str) -> Any:
    for _ in range(2400):
        status, found = ask(page, f"api/jobs/{job}/result")
        if status != 409:
            return status, found
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def test_it_is_served_on_this_machine_under_a_secret(page: Explored):
    assert page.url.startswith("http://127.0.0.1:")
    assert page.is_served
    assert page.url in repr(page)
    parts = urlsplit(page.url)
    for path, headers in (("/", {}), (parts.path, {"Host": "evil.example"}), ("/x/api/start", {})):
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        connection.request("GET", path, headers=headers)
        assert connection.getresponse().status in (403, 404, 421)
        connection.close()
    status, _ = ask(page, "api/builds", {"model": "model", "options": {}}, Origin="http://evil")
    assert status in (403, 404)


def test_the_build_is_the_one_that_was_compiled(page: Explored):
    status, start = ask(page, "api/start")
    assert status == 200
    (build,) = [b for b in start["builds"] if b["id"] == "a"]
    _, overview = ask(page, "api/a/overview")
    options = overview["options"]
    assert build["options"] == options
    assert (options["precision"], options["threads"], options["fuse"]) == ("bf16", 1, True)
    assert options["keep_f32"] == ["*fc*"]
    assert options["disabled"] == ["SelectConvAlgorithm"]
    assert len(overview["kernels"]) > 3
    status, stage = ask(page, "api/a/stage/0")
    assert status == 200
    assert stage
    status, error = ask(page, "api/a/nonsense")
    assert status == 404
    assert error["code"] == "I201"


def test_actions_work_in_this_process(page: Explored):
    status, started = ask(page, "api/a/actions/profile", {})
    assert status == 202
    status, found = result(page, started["job"])
    assert status == 200, found
    assert "profile" in ask(page, "api/a/overview")[1]["measured"]


def test_other_builds_of_the_model_are_compiled_and_compared(page: Explored):
    options = {"threads": 1, "opt_level": 1}
    status, made = ask(page, "api/builds", {"model": "model", "options": options})
    assert status == 201
    status, overview = ask(page, f"api/{made['id']}/overview")
    assert status == 200, overview
    assert overview["options"]["opt_level"] == 1
    names = [layer["name"] for layer in overview["layers"]]
    assert names == [layer["name"] for layer in ask(page, "api/a/overview")[1]["layers"]]
    pair = {"a": "a", "b": made["id"], "time": False, "numerics": True}
    status, started = ask(page, "api/diff", pair)
    assert status == 202
    status, found = result(page, started["job"])
    assert status == 200, found
    assert found["layers"]
    assert ask(page, f"api/builds/{made['id']}", method="DELETE")[0] == 204


def test_files_cannot_be_named_by_a_page(page: Explored):
    for name in ("mine.py", "/tmp/mine.py", "../mine.py"):
        body = {"model": "model", "options": {"extend": [name]}}
        status, error = ask(page, "api/builds", body)
        assert status == 400
        assert error["code"] == "I342"
        assert name.rpartition("/")[2] in error["message"]
    for key, value in (("links", "snapshot"), ("cache", False), ("budgets", {})):
        status, error = ask(page, "api/builds", {"model": "model", "options": {key: value}})
        assert (status, error["code"]) == (400, "I210")


def test_stopping():
    compiled = clew.compile(clew.load(zoo.path("if_branches")), threads=1)
    before = threading.active_count()
    made = compiled.explore()
    host, port = urlsplit(made.url).hostname, urlsplit(made.url).port
    made.stop()
    made.stop()
    assert not made.is_served
    assert "stopped" in repr(made)
    assert threading.active_count() <= before
    with pytest.raises(OSError, match=r"."):
        http.client.HTTPConnection(str(host), port, timeout=5).request("GET", "/")
    compiled(*(np.asarray(v) for v in zoo.inputs("if_branches").values()))


def test_what_does_not_fit():
    compiled = clew.compile(clew.load(zoo.path("if_branches")), threads=1)
    with pytest.raises(InputError) as caught:
        compiled.explore(port=99_999)
    assert caught.value.code == "I343"
    assert "99999" in caught.value.message
    with pytest.raises(InputError) as caught:
        compiled.explore(host="256.1.1.1")
    assert caught.value.code == "I225"
    untraced = clew.compile(
        clew.load(zoo.path("if_branches")), threads=1, diagnostics=clew.Diagnostics(trace=False)
    )
    with pytest.raises(ClewError) as refused:
        untraced.explore()
    assert refused.value.code == "I045"


def test_blocking_ends_with_an_interrupt():
    program = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
import clew
page = clew.compile({str(zoo.path("if_branches"))!r}, threads=1).explore(block=True)
print("served" if page.is_served else "stopped")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "stopped\n"), err
