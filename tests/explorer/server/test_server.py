"""What the server's URLs answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from clew.explorer.bundle import Bundle
from clew.explorer.schema import Options


def with_external_weights(folder: Path) -> tuple[bytes, bytes]:
    """Returns a model of one matrix product, and the file of its weights, `w.data`."""
    weights = np.ones((3, 2), np.float32)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.data")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), weights.tobytes()


def test_the_start_and_a_route(shared: Any) -> None:
    assert shared.ended("j1")["kind"] == "done"
    start = shared.get("api/start").json
    (build,) = start["builds"]
    assert (build["id"], build["model"], build["state"]) == ("a", "tiny.txt", "ready")
    assert start["live"] is True
    assert "cpu" in start["choices"]["targets"]
    assert start["choices"]["passes"]["FuseOps"]
    assert start["choices"]["models"] == ["tiny.txt"]
    overview = shared.get("api/a/overview").json
    assert [layer["name"] for layer in overview["layers"]] == ["relu", "tanh"]
    assert shared.get("api/jobs/j1/result").json["state"] == "ready"


def test_a_route_waits_for_the_build(start: Callable[..., Any], tiny: Path) -> None:
    answer = start(tiny).get("api/a/stage/0")
    assert answer.status == 200
    assert "nn.relu" in answer.json["text"]


def test_answers_are_compressed_for_who_takes_that(shared: Any) -> None:
    plain = shared.get("api/a/overview")
    packed = shared.get("api/a/overview", accept_encoding="br, gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(plain.body) > 2048


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("api/a/nonsense", 404, "I201"),
        ("api/a/code/99", 404, "I200"),
        ("api/a/stage/99", 404, "I071"),
        ("api/a/", 404, "I201"),
        ("api/zz/overview", 404, "I211"),
        ("api/jobs/j99/result", 404, "I211"),
        ("api/jobs/j99/events", 404, "I211"),
        ("api/diff", 404, "I211"),
        ("api/diff/a/b", 404, "I211"),
        ("api/nothing", 404, "I211"),
        ("static/none.js", 404, "I211"),
    ],
)
def test_what_is_not_there_is_a_coded_error(shared: Any, path: str, status: int, code: str) -> None:
    answer = shared.get(path)
    assert (answer.status, answer.json["code"]) == (status, code)


def test_the_page_and_its_files(shared: Any) -> None:
    page = shared.get("")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    script = shared.get("static/app.js")
    assert script.body == b"start()"
    assert script.headers["content-type"].startswith("text/javascript")
    without_slash = shared.request("GET", f"/{shared.token}", raw_path=True)
    assert without_slash.status == 307
    assert without_slash.headers["location"] == f"/{shared.token}/"


def test_a_missing_page_says_how_to_build_it(
    start: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    client = start(bundle=tmp_path / "none")
    page = client.get("")
    assert page.status == 503
    assert "error[I222]" in page.body.decode()
    assert "tools/build_explorer.py" in page.body.decode()
    assert client.get("api/start").status == 200


def test_page_routes_answer_json_or_lead_to_the_page(shared: Any) -> None:
    as_json = shared.get("a/overview.json", accept="text/html")
    assert as_json.json == shared.get("api/a/overview").json
    assert shared.get("a/overview", accept="application/json").json == as_json.json
    page = shared.get("a/stage/3", accept="text/html,*/*")
    assert page.status == 303
    assert page.headers["location"] == "../../#p=a%2Fstage%3A3"
    story = shared.get("a/story/layer:%2Fenc%2Fx", accept="text/html")
    assert story.headers["location"] == "../../#at=a%2Flayer%3A%2Fenc%2Fx"
    assert shared.get("zz/overview", accept="text/html").status == 404


def test_a_build_with_other_options(start: Callable[..., Any], tiny: Path) -> None:
    client = start(tiny)
    options = {"opt_level": 0, "threads": 1, "fuse": False}
    made = client.post("api/builds", {"model": "tiny.txt", "options": options})
    assert made.status == 201
    assert (made.json["id"], made.json["state"]) == ("b", "compiling")
    assert client.ended(made.json["job"])["kind"] == "done"
    assert client.get("api/b/overview").json["options"]["opt_level"] == 0
    assert client.request("DELETE", "api/builds/b").status == 204
    assert client.get("api/b/overview").status == 404
    assert [b["id"] for b in client.get("api/start").json["builds"]] == ["a"]


def test_a_model_that_is_uploaded(start: Callable[..., Any], texts: Any) -> None:
    client = start()
    options = json.dumps({"threads": 1}).replace(" ", "")
    made = client.upload(texts.tiny, "dropped.txt", f"&options={options}")
    assert made.status == 201, made.body
    assert made.json["model"] == "dropped.txt"
    assert client.ended(made.json["job"])["kind"] == "done"
    assert client.get("api/a/overview").json["model"] == "dropped.txt"
    again = client.post("api/builds", {"model": "dropped.txt"})
    assert again.status == 201
    second = client.upload(texts.tiny, "dropped.txt")
    assert second.json["model"] == "dropped.txt (2)"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bad.onnx", "bad.onnx"),
        ("Two%20words.ONNX", "Two words.onnx"),
        (".hidden.onnx", "hidden.onnx"),
        ("%E2%80%AEbad.onnx", "bad.onnx"),
        ("name-" * 13 + ".onnx", "'…/" + "name-" * 13 + ".onnx'"),
        # Longer than file systems take, in bytes: its end is kept.
        ("%E5%B1%A4" * 90 + ".onnx", "'…/" + "\u5c64" * 66 + ".onnx'"),
    ],
)
def test_errors_of_an_upload_name_its_file(start: Callable[..., Any], name: str, told: str) -> None:
    client = start()
    event = client.ended(client.upload(b"no model", name).json["job"])
    assert event["kind"] == "failed"
    assert told in event["error"]["message"]
    assert "model.onnx" not in event["error"]["message"]


def test_a_model_with_weights_in_a_file_of_their_own(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    client = start()
    model, weights = with_external_weights(tmp_path)
    parts = json.dumps([["m.onnx", len(model)], ["w.data", len(weights)]]).replace(" ", "")
    made = client.upload(model + weights, "m.onnx", f"&parts={parts}")
    assert client.ended(made.json["job"])["kind"] == "done", made.body
    alone = client.upload(model, "m.onnx")
    event = client.ended(alone.json["job"])
    assert event["kind"] == "failed"
    assert event["error"]["code"] == "M005"


def test_a_model_that_fails_says_where(start: Callable[..., Any], texts: Any) -> None:
    client = start()
    made = client.upload(texts.tiny.replace("tanh(", "tanhh("))
    event = client.ended(made.json["job"])
    assert event["kind"] == "failed"
    assert event["error"]["code"].startswith("P")
    failed = client.get("api/a/overview")
    assert (failed.status, failed.json["code"]) == (422, event["error"]["code"])
    (build,) = client.get("api/start").json["builds"]
    assert (build["state"], build["error"]["code"]) == ("failed", event["error"]["code"])


def test_events_are_replayed_and_end(shared: Any) -> None:
    first, second = shared.events("j1"), shared.events("j1")
    assert [e["text"] for e in first] == [e["text"] for e in second]
    assert first[0]["text"] == "reading tiny.txt"
    assert [e["kind"] for e in first[:-1]] == ["progress"] * (len(first) - 1)
    assert first[-1]["kind"] == "done"
    fractions = [e["fraction"] for e in first if e["fraction"] is not None]
    assert fractions == sorted(fractions)
    count = len(first)
    assert shared.get("api/jobs/j1/events", last_event_id=str(count)).status == 204
    some = shared.get("api/jobs/j1/events", last_event_id=str(count - 1))
    assert some.body.count(b"data: ") == 1


def test_the_bundle_lists_files_and_no_links(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.css").write_text("x")
    (tmp_path / "secret.bin").write_text("x")
    (tmp_path / "link.js").symlink_to("/etc/passwd")
    bundle = Bundle(tmp_path)
    assert bundle.get("sub/x.css") is not None
    assert bundle.get("link.js") is None
    assert bundle.get("secret.bin") is None
    file = bundle.get("sub/x.css")
    assert file is not None
    file.path.unlink()
    file.path.symlink_to("/etc/passwd")
    assert file.read() is None


def test_two_models_are_compared(start: Callable[..., Any], tiny: Path) -> None:
    client = start((tiny, Options(threads=1)), (tiny, Options(threads=1, opt_level=0)))
    found = client.get("api/diff")
    assert found.status == 200, found.body
    assert client.get("api/diff/a/b").json == found.json
    assert client.get("api/start").json["diff"] is True
    again = client.post("api/diff", {"a": "a", "b": "b"})
    assert client.get(f"api/jobs/{again.json['job']}/result").json == found.json
    only = client.post("api/diff", {"a": "a", "b": "b", "time": False, "numerics": False})
    assert only.json["job"] != again.json["job"]
    assert client.ended(only.json["job"])["kind"] == "done"
    assert client.get("api/diff/a/b").json["a_wall_ns"] is None
    assert client.post("api/diff", {"a": "a", "b": "c"}).status == 404
