"""Each line of docs/explorer-safety.md, attacked."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from clew.explorer import models, server
from clew.explorer.builds import processes
from clew.explorer.builds.builds import Limits
from clew.explorer.models import Models, Part, display_name
from clew.explorer.reading import parsed, read
from clew.explorer.schema import NewBuild, Options
from clew.explorer.security import CONTENT_SECURITY_POLICY, HEADERS, Hosts
from clew.support.errors import InputError
from clew.web import hosting

# --- who may ask ---


def raw(client: Any, text: str, timeout: float = 30) -> bytes:
    """Returns what comes back on bytes sent as they are, until the server closes."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=timeout) as connection:
        connection.sendall(text.encode("latin-1"))
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1:{port}@evil.example",
        "127.0.0.1.evil.example:{port}",
        "10.0.0.1:{port}",
        "",
    ],
)
def test_hosts_that_are_not_ours(shared: Any, host: str) -> None:
    """DNS rebinding: the attacker's name leads to this machine, his page asks under that name."""
    name = host.replace("{port}", str(shared.port))
    answer = raw(
        shared,
        f"GET /{shared.token}/api/start HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n",
    )
    assert status_of(answer) in (400, 421)
    assert b"live" not in answer


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_hosts_that_are_ours(shared: Any, host: str) -> None:
    name = host.replace("{port}", str(shared.port))
    assert shared.get("api/start", host=name).status == 200


def test_two_hosts_or_none(shared: Any) -> None:
    path = f"GET /{shared.token}/api/start HTTP/1.1\r\nConnection: close\r\n"
    ours = f"Host: {shared.host}\r\n"
    assert status_of(raw(shared, f"{path}{ours}Host: evil.example\r\n\r\n")) in (400, 421)
    assert status_of(raw(shared, f"{path}\r\n")) in (400, 421)
    old = f"GET /{shared.token}/api/start HTTP/1.0\r\n\r\n"
    assert status_of(raw(shared, old)) in (400, 421)


def test_hosts_of_servers_for_others() -> None:
    named = Hosts("box.example", 80)
    assert named.allow(b"box.example")
    assert named.allow(b"box.example:80")
    assert not named.allow(b"other.example:80")
    every = Hosts("0.0.0.0", 99)
    assert every.allow(b"192.168.1.5:99")
    assert every.allow(b"[fe80::1]:99")
    assert not every.allow(b"evil.example:99")
    assert not Hosts("127.0.0.1", 99).allow(b"192.168.1.5:99")
    assert Hosts("::1", 99).allow(b"[::1]:99")


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: t + "x", lambda t: "", str.swapcase]
)
def test_wrong_tokens_get_nothing(shared: Any, change: Callable[[str], str]) -> None:
    token = change(shared.token)
    for path in (f"/{token}/api/start", f"/{token}/", f"/{token}", f"/{token}/static/app.js"):
        answer = shared.request("GET", path, raw_path=True)
        assert (answer.status, answer.body) == (404, b"not found")
        assert "location" not in answer.headers


def test_the_token_is_long_and_new_each_time(start: Callable[..., Any]) -> None:
    one, other = start(), start()
    assert len(one.token) * 6 >= 128
    assert one.token != other.token
    assert other.request("GET", f"/{one.token}/api/start", raw_path=True).status == 404


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "file://"],
)
def test_other_origins_are_refused(shared: Any, origin: str) -> None:
    named = origin.replace("{port}", str(shared.port))
    for method, path in (
        ("GET", "api/start"),
        ("GET", "api/a/overview"),
        ("POST", "api/builds"),
        ("DELETE", "api/builds/a"),
        ("DELETE", "api/jobs/j1"),
        ("GET", "static/app.js"),
        ("GET", "api/jobs/j1/events"),
    ):
        answer = shared.request(method, path, origin=named)
        assert answer.status == 403, (method, path)
        assert "access-control-allow-origin" not in answer.headers
    assert shared.get("api/start", origin=f"http://{shared.host}").status == 200
    crossed = shared.get("api/start", origin=f"http://localhost:{shared.port}")
    assert crossed.status == 403  # the page came from another name of ours


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_other_sites_are_refused(shared: Any, site: str) -> None:
    """Another server on this machine is of the same *site*, and is not the page."""
    for method, path in (("GET", "api/start"), ("POST", "api/builds"), ("GET", "static/app.js")):
        assert shared.request(method, path, sec_fetch_site=site).status == 403
    fetched = {"sec_fetch_site": site, "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"}
    assert shared.get("", **fetched).status == 403
    framed = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
    assert shared.get("", **framed).status == 403
    followed = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert shared.get("", **followed).status == 200
    assert shared.get("api/start", **followed).status == 403


def test_no_leave_is_given_to_other_origins(shared: Any) -> None:
    asked = shared.request(
        "OPTIONS",
        "api/builds",
        origin="http://evil.example",
        access_control_request_method="POST",
    )
    assert asked.status in (403, 405)
    for answer in (asked, shared.get("api/start"), shared.get(""), shared.get("api/none")):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_forwarding_headers_change_nothing(shared: Any) -> None:
    answer = shared.get("api/start", host="evil.example", x_forwarded_host=shared.host)
    assert answer.status == 421


@pytest.mark.parametrize("path", ["", "static/app.js", "api/start", "api/none", "api/a/overview"])
def test_headers_of_every_answer(shared: Any, path: str) -> None:
    answer = shared.get(path)
    for name, value in HEADERS:
        assert answer.headers[name.decode()] == value.decode()
    if path.startswith("api/"):
        assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


def test_the_policy_lets_nothing_in() -> None:
    rules = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "http" not in CONTENT_SECURITY_POLICY


# --- what may be asked ---


@pytest.mark.parametrize(
    "path",
    [
        "static/../start",
        "static/..%2f..%2fexplorer%2fserver.py",
        "static/%2e%2e/%2e%2e/explorer/server.py",
        "static/%252e%252e%252fserver.py",
        "static//etc/passwd",
        "static/%2fetc%2fpasswd",
        "static/app.js%00.css",
        "static/..\\..\\server.py",
        "static/./app.js",
        "static/",
        "static/index.html/",
        "..%2f..%2fetc%2fpasswd",
    ],
)
def test_paths_lead_nowhere(shared: Any, path: str) -> None:
    answer = shared.get(path)
    assert answer.status == 404, answer.body
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


@pytest.mark.parametrize(
    "model",
    [
        "/etc/passwd",
        "../tiny.txt",
        "./tiny.txt",
        "tiny.txt/",
        "file:///etc/passwd",
        "http://evil.example/m.onnx",
        "",
        "tiny.txt\u0000",
    ],
)
def test_models_are_no_paths(shared: Any, model: str) -> None:
    answer = shared.post("api/builds", {"model": model})
    assert (answer.status, answer.json["code"]) == (404, "I216")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "expected an object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"model": NaN}', "not JSON"),
        (b'{"model": "a", "model": "b"}', "twice"),
        (b"[" * 100_000, "not JSON"),
        (b'{"model": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"{}", "model is missing"),
        (b'{"model": 1}', "expected str"),
        (b'{"model": "tiny.txt", "path": "/etc"}', "unknown key 'path'"),
        (b'{"model": "tiny.txt", "options": {"cache": false}}', "unknown key 'cache'"),
        (b'{"model": "tiny.txt", "options": {"opt_level": true}}', "expected int"),
        (b'{"model": "tiny.txt", "options": {"opt_level": "3"}}', "expected int"),
        (b'{"model": "tiny.txt", "options": {"opt_level": 1e0}}', "expected int"),
        (b'{"model": "tiny.txt", "options": {"threads": 99999999999999999999}}', "too large"),
        (b'{"model": "tiny.txt", "options": {"disabled": "FuseOps"}}', "expected list"),
        (b'{"model": "tiny.txt", "options": {"disabled": [null]}}', "expected str"),
        (b'{"model": "tiny.txt", "options": {"shapes": {"x": [1, "2"]}}}', "expected int"),
        (b'{"model": "tiny.txt", "options": {"shapes": []}}', "expected dict"),
    ],
)
def test_bodies_that_do_not_fit(shared: Any, body: bytes, says: str) -> None:
    answer = shared.request("POST", "api/builds", body, content_type="application/json")
    assert (answer.status, answer.json["code"]) == (400, "I210")
    assert says in answer.json["message"]
    assert len(answer.json["message"]) < 300


def test_other_kinds_of_bodies(shared: Any) -> None:
    """A form of another site can send these without asking: they are not read."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = shared.request("POST", "api/builds", b'{"model": "tiny.txt"}', content_type=kind)
        assert (answer.status, answer.json["code"]) == (415, "I214")


def test_bodies_that_are_too_large(shared: Any) -> None:
    body = json.dumps({"model": "x" * (2 << 20)}).encode()
    answer = shared.request("POST", "api/builds", body, content_type="application/json")
    assert (answer.status, answer.json["code"]) == (413, "I212")


def test_heads_that_are_too_large(shared: Any) -> None:
    assert shared.get("api/a/" + "x" * 10_000).status == 414
    assert shared.get("api/start?" + "x" * 10_000).status == 414
    assert shared.get("api/a/" + "x" * 4_000).status == 404
    head = f"GET /{shared.token}/api/start HTTP/1.1\r\nHost: {shared.host}\r\n"
    head += "Connection: close\r\n"
    many = "".join(f"X-{n}: {'y' * 1000}\r\n" for n in range(100))
    assert status_of(raw(shared, f"{head}{many}\r\n")) in (400, 431)


def test_actions_and_their_parameters(shared: Any) -> None:
    unknown = shared.post("api/a/actions/__class__", {})
    assert (unknown.status, unknown.json["code"]) == (404, "I223")
    refused = shared.get("api/a/actions/profile")
    assert refused.status == 404
    bad = shared.post("api/a/actions/profile", {"seconds": "1; import os"})
    assert (bad.status, bad.json["code"]) == (400, "I210")


def test_reading_is_strict() -> None:
    assert read(NewBuild, parsed(b'{"model": "m"}')) == NewBuild("m", Options())
    assert read(Options, {"threads": None}).threads is None
    assert read(float, 3, "x") == 3.0
    assert read(int | str, "x", "x") == "x"
    with pytest.raises(InputError, match="more than"):
        read(list[int], [0] * 20_000, "x")
    with pytest.raises(InputError, match="characters"):
        read(str, "x" * 200_000, "x")


# --- uploads ---


def test_uploads_that_are_too_large(shared: Any) -> None:
    data = b"x" * ((1 << 20) + 1)
    before = session_files(shared)
    announced = shared.upload(data)
    assert (announced.status, announced.json["code"]) == (413, "I212")

    def chunks() -> Any:
        yield from (data[n : n + 65536] for n in range(0, len(data), 65536))

    streamed = shared.request(
        "POST", "api/builds?name=m.txt", chunks(), content_type="application/octet-stream"
    )
    assert (streamed.status, streamed.json["code"]) == (413, "I212")
    assert session_files(shared) == before


def session_files(client: Any) -> set[Path]:
    folder = client.serving.builds.models.folder
    return {path for path in folder.rglob("*") if path.is_file()}


def test_uploads_to_a_full_disk(
    shared: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = session_files(shared)
    monkeypatch.setattr(models, "create", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    answer = shared.upload(b"x" * 20_000)
    assert (answer.status, answer.json["code"]) == (507, "C163")
    monkeypatch.undo()
    assert session_files(shared) == before
    assert "Traceback" not in capfd.readouterr().err


def test_no_more_files(shared: Any, texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can a worker be started."""

    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(processes.socket, "socketpair", refused)
    event = shared.ended(shared.upload(texts.tiny).json["job"])
    assert event["kind"] == "failed"
    assert event["error"]["code"] == "C163"


@pytest.mark.parametrize(
    "name",
    ["../../x.onnx", "/etc/cron.d/x.onnx", "..\\x.onnx", "a%00b.onnx", "%2e%2e%2fx.onnx", ".onnx"],
)
def test_names_of_uploads_are_no_paths(
    start: Callable[..., Any], name: str, tmp_path: Path
) -> None:
    client = start()
    made = client.upload(b"not a model", name)
    folder = client.serving.builds.models.folder
    for path in session_files(client):
        assert path.parent.parent == folder
        assert not path.name.startswith(".")
    if made.status == 201:
        assert "/" not in made.json["model"]
        assert "\\" not in made.json["model"]
    else:
        assert made.json["code"] == "I228"


@pytest.mark.parametrize(
    "parts",
    [
        '[["../x.onnx",3]]',
        '[["a/b.onnx",3]]',
        '[["/etc/x.onnx",3]]',
        '[["m.onnx",1],["..",2]]',
        '[["m.onnx",1],[".hidden",2]]',
        '[["m.onnx",1],["a%5Cb",2]]',
        '[["m.onnx",1],["m.onnx",2]]',
        '[["m.onnx",-1],["w",4]]',
        '[["m.onnx",2]]',
        '[["m.onnx",4]]',
        '[["m.onnx"]]',
        '[["m.onnx",1],["x%00",2]]',
        '{"m.onnx":3}',
        "[[3,3]]",
    ],
)
def test_parts_of_uploads_are_no_paths(shared: Any, parts: str) -> None:
    before = session_files(shared)
    answer = shared.upload(b"abc", "m.onnx", f"&parts={parts}")
    assert (answer.status, answer.json["code"]) == (400, "I210"), answer.body
    assert session_files(shared) == before


def test_too_many_parts_are_refused(shared: Any) -> None:
    parts = ",".join(f'["m{n}.onnx",0]' for n in range(100))
    assert shared.upload(b"", "m.onnx", f"&parts=[{parts}]").status == 400


def test_only_models_are_taken(shared: Any) -> None:
    for name in ("m.py", "m", "m.clew", "m.onnx.sh", ""):
        answer = shared.upload(b"x", name)
        assert (answer.status, answer.json["code"]) == (415, "I228")


def test_uploaded_models_read_nothing_else(start: Callable[..., Any], tmp_path: Path) -> None:
    """Weights outside the upload's folder: another upload's, a file of the machine, a link."""
    client = start()
    secret = tmp_path / "w.data"
    secret.write_bytes(bytes(24))
    for location in (str(secret), "../w.data", "w.data"):
        made = client.upload(weights_at(location), "m.onnx")
        event = client.ended(made.json["job"])
        assert event["kind"] == "failed"
        assert event["error"]["code"] == "M005"


def weights_at(location: str) -> bytes:
    """Returns a model whose weights are said to lie in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def test_uploads_at_once_are_bounded(start: Callable[..., Any]) -> None:
    client = start()
    head = (
        f"POST /{client.token}/api/builds?name=m.txt HTTP/1.1\r\nHost: {client.host}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nsome"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
            stack.enter_context(connection)
            connection.sendall(head.encode())
        while client.call(lambda: client.serving.builds.models._uploading) < 2:
            time.sleep(0.001)
        refused = client.upload(b"x")
        assert (refused.status, refused.json["code"]) == (429, "I215")


def test_names_for_display() -> None:
    assert display_name("../a\\b\u202e\n.onnx") == "b.onnx"
    assert display_name("<img src=x onerror=alert(1)>.onnx") == "<img src=x onerror=alert(1)>.onnx"
    assert len(display_name("x" * 500 + ".onnx")) == 100


def test_hostile_names_are_data(start: Callable[..., Any], texts: Any) -> None:
    name = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E.txt"
    client = start()
    made = client.upload(texts.tiny, name)
    assert made.headers["content-type"] == "application/json"
    assert made.json["model"] == "<img src=x onerror=alert(1)>.txt"
    missing = client.get(f"api/{name}/overview")
    assert missing.headers["content-type"] == "application/json"


def test_errors_show_no_folders(start: Callable[..., Any], texts: Any) -> None:
    client = start()
    for data, name in ((b"garbage", "m.onnx"), (b"garbage", "m.txt"), (b"", "m.onnx")):
        event = client.ended(client.upload(data, name).json["job"])
        assert event["kind"] == "failed"
        text = json.dumps(event)
        assert str(Path.home()) not in text
        assert "/tmp" not in text
        assert "Traceback" not in text


def test_uploads_together_are_bounded(tmp_path: Path) -> None:
    models = Models(tmp_path, 100)
    models._models["big"] = models.add(tmp_path / "x.onnx").__class__(
        "big", tmp_path, tmp_path, 390
    )
    with pytest.raises(Exception, match="too large"):
        models._check(11)
    models._check(10)
    assert Part("a", 1).bytes == 1


# --- who takes his time ---


def test_heads_that_stall(shared: Any) -> None:
    """Slowloris: a request that never gets anywhere is cut off, others are served meanwhile."""
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", shared.port), timeout=60))
            for _ in range(20)
        ]
        for connection in slow:
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: ")
        assert shared.get("api/start").status == 200
        for connection in slow:
            assert read_all(connection) == b""


def test_second_heads_that_stall(shared: Any) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        head = f"GET /{shared.token}/static/app.js HTTP/1.1\r\nHost: {shared.host}\r\n\r\n"
        connection.sendall(head.encode())
        found = b""
        while not found.endswith(b"start()"):
            found += connection.recv(4096)
        connection.sendall(b"GET /")
        assert read_all(connection) == b""


@pytest.mark.parametrize(
    ("kind", "path"),
    [("application/json", "api/builds"), ("application/octet-stream", "api/builds?name=m.txt")],
)
def test_bodies_that_stall(shared: Any, kind: str, path: str) -> None:
    before = session_files(shared)
    head = (
        f"POST /{shared.token}/{path} HTTP/1.1\r\nHost: {shared.host}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: 1000\r\nConnection: close\r\n\r\nsome"
    )
    answer = raw(shared, head, timeout=60)
    assert status_of(answer) == 408
    assert b"I213" in answer
    assert session_files(shared) == before


def test_uploads_that_break_off(shared: Any) -> None:
    before = session_files(shared)
    head = (
        f"POST /{shared.token}/api/builds?name=m.txt HTTP/1.1\r\nHost: {shared.host}\r\n"
        "Content-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nsome"
    )
    with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as connection:
        connection.sendall(head.encode())
    until = time.monotonic() + 60
    while session_files(shared) != before and time.monotonic() < until:
        shared.get("api/start")
    assert session_files(shared) == before


def test_followers_of_jobs_are_bounded(start: Callable[..., Any], texts: Any) -> None:
    client = start(limits=Limits(compile_at_once=0))  # the job waits for ever
    job = client.upload(texts.tiny).json["job"]
    with contextlib.ExitStack() as stack:
        head = f"GET /{client.token}/api/jobs/{job}/events HTTP/1.1\r\nHost: {client.host}\r\n\r\n"
        for _ in range(32):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=60)
            stack.enter_context(connection)
            connection.sendall(head.encode())
            assert connection.recv(15).startswith(b"HTTP/1.1 200")
        refused = client.get(f"api/jobs/{job}/events")
        assert (refused.status, refused.json["code"]) == (429, "I215")


def test_loopback_is_the_default() -> None:
    assert server.Asked().host == "127.0.0.1"
    assert hosting.is_loopback("localhost")
    assert hosting.is_loopback("::1")
    assert not hosting.is_loopback("0.0.0.0")
    assert not hosting.is_loopback("box.example")
    with pytest.raises(InputError, match="I225"):
        hosting.listening("256.1.1.1", 0)
