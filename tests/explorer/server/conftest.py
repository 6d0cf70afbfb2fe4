"""A server of its own for tests, in a thread, and what asks it: a plain HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from clew.explorer import server
from clew.explorer.builds.builds import Limits
from clew.explorer.schema import Options

TINY = """clew 1
def @main(
  %x: f32[4, 64]  // input x
) -> (f32[4, 64],) with outputs=["y"] {
  %0: f32[4, 64] = nn.relu(%x)  // relu:Relu#0
  %1: f32[4, 64] = tanh(%0)  // tanh:Tanh#0
  %2: (f32[4, 64],) = (%1,)
  return %2
}
"""


def long_text(kernels: int) -> str:
    """Returns a model whose kernels all differ, so that each is compiled."""
    lines = ["clew 1", "def @main("]
    shapes = [(n // 50 + 2, n % 50 + 17) for n in range(kernels)]
    lines += [f"  %x{n}: f32[{a}, {b}],  // input x{n}" for n, (a, b) in enumerate(shapes)]
    lines[-1] = lines[-1].replace(",  //", "  //")
    results = ", ".join(f"f32[{a}, {a}]" for a, _ in shapes)
    names = json.dumps([f"y{n}" for n in range(kernels)])
    lines.append(f") -> ({results},) with outputs={names} {{")
    for n, (a, b) in enumerate(shapes):
        weight = f"%w{n}"
        lines.append(f"  {weight}: f32[{b}, {a}] = const splat 0.5  // parameter w{n}")
        lines.append(f"  %y{n}: f32[{a}, {a}] = nn.matmul(%x{n}, {weight})  // mm{n}:MatMul#0")
    fields = ", ".join(f"%y{n}" for n in range(kernels))
    lines += [f"  %all: ({results},) = ({fields},)", "  return %all", "}"]
    return "\n".join(lines) + "\n"


@dataclass
class Response:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Asks a running server."""

    serving: server.Serving
    loop: asyncio.AbstractEventLoop
    port: int = field(init=False)
    token: str = field(init=False)

    def __post_init__(self) -> None:
        _, _, place, self.token, _ = self.serving.url.split("/")
        self.port = int(place.rpartition(":")[2])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        json_body: Any = None,
        raw_path: bool = False,
        timeout: float = 120,
        **headers: str,
    ) -> Response:
        """Asks for a path below the token; `raw_path` is one from the root."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            if json_body is not None:
                body = json.dumps(json_body).encode()
                given.setdefault("content-type", "application/json")
            target = path if raw_path else f"/{self.token}/{path}"
            connection.request(method, target, body, given)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, **headers)

    def post(self, path: str, value: Any, **headers: str) -> Response:
        return self.request("POST", path, json_body=value, **headers)

    def upload(self, text: str | bytes, name: str = "m.txt", query: str = "") -> Response:
        data = text.encode() if isinstance(text, str) else text
        headers = {"content-type": "application/octet-stream"}
        return self.request("POST", f"api/builds?name={name}{query}", data, **headers)

    def events(self, job: str, until: Callable[[Any], bool] = lambda _: False) -> list[Any]:
        """Returns a job's events until it ends, or one fulfils `until`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        found = []
        try:
            connection.request("GET", f"/{self.token}/api/jobs/{job}/events")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    found.append(json.loads(line.removeprefix(b"data: ")))
                    if until(found[-1]):
                        break
        finally:
            connection.close()
        return found

    def ended(self, job: str) -> Any:
        """Returns a job's last event, when it is there."""
        return self.events(job)[-1]

    def call(self, function: Callable[[], Any]) -> Any:
        """Returns what a function gives in the server's thread."""

        async def asked() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(asked(), self.loop).result(60)


class Running:
    """A server in a thread."""

    def __init__(self, asked: server.Asked) -> None:
        self._ready: asyncio.Future[Any] | None = None
        self._started = threading.Event()
        self.error: BaseException | None = None
        self.client: Client
        self._thread = threading.Thread(target=self._run, args=(asked,))
        self._thread.start()
        assert self._started.wait(60)
        if self.error is not None:
            raise self.error

    def _run(self, asked: server.Asked) -> None:
        async def serve() -> None:
            loop = asyncio.get_running_loop()

            def on_ready(serving: server.Serving) -> None:
                self.client = Client(serving, loop)
                self._started.set()

            await server.serve(asked, on_ready)

        try:
            asyncio.run(serve())
        except BaseException as error:
            self.error = error
            self._started.set()

    def stop(self) -> None:
        self.client.loop.call_soon_threadsafe(self.client.serving.stop)
        self._thread.join(60)
        assert not self._thread.is_alive()


def bundle_in(folder: Path) -> Path:
    """Returns a folder with a page of a few bytes."""
    made = folder / "static"
    made.mkdir()
    (made / "index.html").write_text("<!doctype html><title>page</title>")
    (made / "app.js").write_text("start()")
    return made


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.txt"
    path.write_text(TINY)
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Starts servers that end with the test; arguments are those of `server.Asked`."""
    running: list[Running] = []

    def begin(*models: Path | tuple[Path, Options], **options: Any) -> Client:
        pairs = tuple(m if isinstance(m, tuple) else (m, Options(threads=1)) for m in models)
        running.append(Running(server.Asked(models=pairs, **options)))
        return running[-1].client

    yield begin
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def shared(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server with the tiny model and a page, for tests that leave it as it is."""
    running = Running(
        server.Asked(
            models=((tiny, Options(threads=1)),),
            bundle=bundle_in(tmp_path_factory.mktemp("bundle")),
            most_upload_bytes=1 << 20,
            limits=Limits(seconds=300.0),
            body_wait_s=1.0,
            chunk_wait_s=1.0,
            head_wait_s=1.0,
        )
    )
    yield running.client
    running.stop()


@pytest.fixture
def texts() -> Any:
    """Models as text: `tiny`, `long(kernels)`."""

    class Texts:
        tiny = TINY
        long = staticmethod(long_text)

    return Texts
