"""The server of a language model, asked by the official client and by hand."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from tests.generation.folders import write_model, write_tokenizer
from tests.server.running import KEY, Running

import clew
from clew.generation.batch import Batch
from clew.generation.reading import Reading
from clew.server import Asked
from clew.server.answers import Answer
from clew.server.asked import Question
from clew.server.common import failed
from clew.server.engine import Engine, Event, Work
from clew.server.texts import _Events, _streamed
from clew.support.errors import InputError

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = write_model(tmp_path_factory.mktemp("model"))
    write_tokenizer(made)
    return clew.language_model(made, threads=1)


@pytest.fixture(scope="module")
def running(model: Any) -> Iterator[Running]:
    made = Running(Asked(model, "tiny", port=0, token=KEY, most_running=3, most_waiting=2))
    yield made
    made.stop()


@pytest.fixture
def client(running: Running) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=running.url, api_key=KEY, max_retries=0)


_ASKED = [{"role": "user", "content": "hello"}]


def test_the_official_client_gets_the_texts_of_generate(client: Any, model: Any) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "clew"
    wanted = clew.generate(model, "hello", max_tokens=20)
    text = client.completions.create(model="tiny", prompt="hello", max_tokens=20)
    assert text.choices[0].text == wanted.text
    assert text.choices[0].finish_reason == ("length" if wanted.finish == "length" else "stop")
    assert text.usage.prompt_tokens == wanted.prompt_tokens
    assert text.usage.completion_tokens == len(wanted.ids)
    chat = client.chat.completions.create(model="tiny", messages=_ASKED, max_tokens=20)
    assert chat.choices[0].message.content == clew.generate(model, _ASKED, max_tokens=20).text
    assert chat.choices[0].message.role == "assistant"


def test_streams_are_the_same_texts(client: Any, model: Any) -> None:
    wanted = clew.generate(model, _ASKED, max_tokens=20)
    stream = client.chat.completions.create(
        model="tiny", messages=_ASKED, max_tokens=20, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *parts, last = list(stream)
    assert "".join(p.choices[0].delta.content or "" for p in parts) == wanted.text
    assert [p.choices[0].finish_reason for p in parts][-1] in ("length", "stop")
    assert last.usage.completion_tokens == len(wanted.ids)
    pieces = client.completions.create(
        model="tiny", prompt=model.encode("hello"), max_tokens=9, stream=True, echo=True
    )
    text = "".join(p.choices[0].text for p in pieces)
    assert text == "hello" + clew.generate(model, "hello", max_tokens=9).text


def test_several_prompts_and_answers(client: Any, model: Any) -> None:
    found = client.completions.create(
        model="tiny", prompt=["hello", "he"], n=2, max_tokens=8, temperature=1.0, seed=3
    )
    assert [c.index for c in found.choices] == [0, 1, 2, 3]
    for index, choice in enumerate(found.choices):
        prompt = ["hello", "he"][index // 2]
        alone = clew.generate(model, prompt, max_tokens=8, temperature=1.0, seed=3 + index % 2)
        assert choice.text == alone.text
    stop = clew.generate(model, "hello", max_tokens=20).text[4:6]
    cut = client.completions.create(model="tiny", prompt="hello", max_tokens=20, stop=stop)
    assert stop not in cut.choices[0].text
    ids = clew.generate(model, "hello", max_tokens=1).ids
    other = client.completions.create(
        model="tiny", prompt="hello", max_tokens=1, logit_bias={str(ids[0]): -100}
    )
    assert other.choices[0].text != model.decode(ids)


def test_many_clients_get_their_own_texts(running: Running, model: Any) -> None:
    prompts = [f"he{'llo' * n}" for n in range(12)]
    found: dict[str, Any] = {}

    def ask(prompt: str) -> None:
        while True:
            body = {"prompt": prompt, "max_tokens": 30}
            status, answer = running.ask("/v1/completions", body)
            if status != 429:
                found[prompt] = answer["choices"][0]["text"]
                return
            time.sleep(0.01)

    threads = [threading.Thread(target=ask, args=[prompt]) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for prompt in prompts:
        assert found[prompt] == clew.generate(model, prompt, max_tokens=30).text


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_ends_its_generation(running: Running, streams: bool) -> None:
    before = running.figures()
    host, port = running.url.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps({"prompt": "hello", "stream": streams, "logit_bias": {"2": -100}}).encode()
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if streams:
            connection.recv(100)
    ends = time.monotonic() + 20
    while time.monotonic() < ends:
        now = running.figures()
        done = sum(now[n] - before[n] for n in ("cancelled", "finished"))
        if done and not now["running"]:
            break
        time.sleep(0.02)
    assert now["running"] == now["waiting"] == 0
    assert running.ask("/v1/completions", {"prompt": "he", "max_tokens": 2})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("completions", b"{", 400, "not JSON"),
        ("completions", b"[]", 400, "not a JSON object"),
        ("completions", b"[" * 100000, 400, "nested too deeply"),
        ("completions", {}, 400, "'prompt'"),
        ("completions", {"prompt": ""}, 400, "no tokens"),
        ("completions", {"prompt": [7, 100000]}, 400, "100000"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ("completions", {"prompt": "a", "max_tokens": 5000}, 400, "at most 4096"),
        ("completions", {"prompt": "a", "max_tokens": 4000}, 400, "context"),
        ("completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
        ("completions", {"prompt": "a", "n": 0}, 400, "'n'"),
        ("completions", {"prompt": "a", "stream": 1}, 400, "'stream'"),
        ("completions", {"prompt": "a", "logprobs": 3}, 400, "'logprobs'"),
        ("completions", {"prompt": "a", "suffix": "b"}, 400, "'suffix'"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, 400, "'logit_bias'"),
        ("completions", {"prompt": "a", "model": "gpt-9"}, 404, "'tiny'"),
        ("chat/completions", {"messages": []}, 400, "'messages'"),
        ("chat/completions", {"messages": [{"role": "user", "content": [1]}]}, 400, "texts"),
        ("chat/completions", {"messages": _ASKED, "tools": [{}]}, 400, "'tools'"),
        ("embeddings", {"input": "a"}, 404, "there is no POST /v1/embeddings"),
        ("models", {}, 405, "there is no POST"),
        ("completions", {"prompt": [-1], "echo": True}, 400, "-1"),
        ("completions", {"prompt": [1 << 70]}, 400, "out of range"),
        ("completions", {"prompt": "a", "temperature": 10**400}, 400, "temperature"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "0 or more"),
        ("completions", {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, 400, "'logit_bias'"),
        ("completions", {"prompt": "a", "n": 6}, 400, "at most 5 answers"),
        ("completions", {"prompt": ["a"] * 6}, 400, "at most 5 answers"),
        ("completions", {"prompt": "\ud800"}, 400, "Unicode"),
        ("completions", {"prompt": "a" * (5 << 20)}, 400, "bytes"),
    ],
)
def test_what_is_refused(running: Running, path: str, body: Any, status: int, message: str) -> None:
    found, answer = running.ask(f"/v1/{path}", body)
    assert (found, message in json.dumps(answer)) == (status, True), answer


def test_clients_need_the_key(running: Running) -> None:
    for key in (None, "another", ""):
        status, answer = running.ask("/v1/models", key=key)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    assert running.figures()["status"] == "ok"


def test_values_of_templates_do_not_reach_python(running: Running) -> None:
    values = {"messages": 1, "self": 2, "template": 3, "values": 4, "answer": False}
    body = {"messages": _ASKED, "max_tokens": 2, "temperature": 0}
    plain = running.ask("/v1/chat/completions", body)[1]
    status, answer = running.ask("/v1/chat/completions", {**body, "chat_template_kwargs": values})
    assert (status, answer["choices"]) == (200, plain["choices"])


def test_answers_may_hold_lone_surrogates() -> None:
    error = InputError("I487", "the template refuses '\ud800'")
    assert json.loads(failed(error).body)["error"]["message"] == "the template refuses '?'"


class Held:
    """An engine whose generations make no progress before `free`."""

    def __init__(self, model: Any, running: int, waiting: int) -> None:
        self.free = threading.Event()

        def wait(ids: Any, scores: Any) -> Any:
            assert self.free.wait(30)
            return scores

        self.hold = {"max_tokens": 2, "logits": wait}
        self.engine = Engine(model, running, waiting)

    def work(self, **options: Any) -> Work:
        return Work([5, 6], {"max_tokens": 2, **options}, lambda event: None)


def test_an_error_of_the_engine_fails_those_that_run(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later requests are answered, and figures count a prompt while it is read."""
    engine, told, counts = Engine(model, 2, 4), queue.Queue[Event](), list[tuple[int, int]]()
    real = Reading.advance

    def noted(reading: Reading, most: int) -> bool:
        counts.append((engine.figures.running, engine.figures.reading))
        return real(reading, most)

    def broken(batch: Batch) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Reading, "advance", noted)
    with monkeypatch.context() as patched:
        patched.setattr(Batch, "step", broken)
        assert engine.accept([Work([5, 6], {"max_tokens": 3}, told.put)])
        assert str(told.get(timeout=10).error) == "broken"
    assert counts == [(1, 1)]
    assert engine.accept([Work([5, 6], {"max_tokens": 3}, told.put)])
    while (event := told.get(timeout=10)).result is None:
        assert event.error is None
    assert event.result.ids == clew.generate(model, [5, 6], max_tokens=3).ids
    assert (engine.figures.failed, engine.figures.finished) == (1, 1)
    engine.end()


def test_too_many_requests_are_refused(model: Any) -> None:
    held = Held(model, 1, 2)
    try:
        assert held.engine.accept([held.work(**held.hold)])
        while not held.engine.figures.running:
            time.sleep(0.001)
        waiting = [held.work(), held.work()]
        assert held.engine.accept(waiting)
        assert not held.engine.accept([held.work()])
        waiting[0].cancel()  # those whose clients have left make room
        assert held.engine.accept([held.work()])
        assert (held.engine.figures.waiting, held.engine.figures.cancelled) == (2, 1)
        assert not held.engine.accept([held.work()])
    finally:
        held.free.set()
        held.engine.end()


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_whose_client_has_left_ends_before_its_first_text(begun: bool) -> None:
    """No text of a stream was sent yet: while it waits, or just before the first event."""
    work = Work([5], {}, lambda event: None)
    told: Any = asyncio.Queue()
    question = Question([([5], {})], [""], True, False, "")

    async def left() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    async def ask() -> None:
        scope = {"type": "http", "method": "POST", "headers": [], "path": "/"}
        request = Request(scope, left)
        if begun:
            told.put_nowait((0, Event(piece="a")))
        response = await _streamed(request, question, [work], told, Answer("tiny", False))
        await response(scope, left, send)

    asyncio.run(ask())
    assert work.is_cancelled


def test_a_stream_learns_between_events_that_its_client_has_left() -> None:
    """Events that wait in the queue are not written one after the other to a lost connection."""
    gone: list[bool] = []
    sent: list[Any] = []

    async def events() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"data: {}\n\n"

    async def stay() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        if gone:
            raise OSError("the client has left")
        sent.append(message)
        if message.get("body"):
            asyncio.get_running_loop().call_soon(gone.append, True)

    async def ask() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "method": "POST"}
        await _Events(events(), [])(scope, stay, send)

    with pytest.raises(ClientDisconnect):
        asyncio.run(ask())
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
