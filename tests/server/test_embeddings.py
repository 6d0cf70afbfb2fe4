"""The server of a text encoder."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.generation.folders import ENCODER_HIDDEN, write_encoder
from tests.server.running import KEY, Running

import clew
from clew.server import Asked

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> clew.TextEncoder:
    return clew.text_encoder(write_encoder(tmp_path_factory.mktemp("encoder"), 12), threads=1)


@pytest.fixture(scope="module")
def running(encoder: clew.TextEncoder) -> Iterator[Running]:
    made = Running(Asked(encoder, "tiny", port=0, token=KEY, most_waiting=2))
    yield made
    made.stop()


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_the_official_client_gets_the_vectors(
    running: Running, encoder: clew.TextEncoder, form: Any
) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=running.url, api_key=KEY, max_retries=0)
    more = {} if form is None else {"encoding_format": form}
    texts = ["hello", "he", "hell and hello"]
    found = client.embeddings.create(model="tiny", input=texts, **more)
    vectors = [
        np.frombuffer(base64.b64decode(d.embedding), "<f4")
        if isinstance(d.embedding, str)
        else d.embedding
        for d in found.data
    ]
    np.testing.assert_allclose(vectors, encoder.embed(texts), 1e-6, 1e-7)
    assert found.usage.prompt_tokens == encoder.embed_counted(texts)[1]
    lone = client.embeddings.create(model="tiny", input="hello")
    assert len(lone.data) == 1
    assert len(lone.data[0].embedding) == ENCODER_HIDDEN


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "'input'"),
        ({"input": []}, 400, "'input'"),
        ({"input": [[1, 2]]}, 400, "'input'"),
        ({"input": ["a"] * 3000}, 400, "3000 texts"),
        ({"input": "a", "dimensions": 3}, 400, "'dimensions'"),
        ({"input": "a", "encoding_format": "hex"}, 400, "'encoding_format'"),
        ({"input": "a", "model": "other"}, 404, "'tiny'"),
        (b"[", 400, "not JSON"),
    ],
)
def test_what_is_refused(running: Running, body: Any, status: int, message: str) -> None:
    found, answer = running.ask("/v1/embeddings", body)
    assert (found, message in answer["error"]["message"]) == (status, True)


def test_an_encoder_generates_no_text(running: Running) -> None:
    assert running.ask("/v1/completions", {"prompt": "a"})[0] == 404
    assert running.ask("/v1/embeddings", {"input": "a"}, key=None)[0] == 401


def test_too_many_requests_are_refused(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()
    embed = clew.TextEncoder.embed_counted

    def slow(*given: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return embed(*given, **options)

    monkeypatch.setattr(clew.TextEncoder, "embed_counted", slow)
    found: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(running.ask("/v1/embeddings", {"input": "a"})[0])
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    while running.figures()["running"] < 3:
        pass
    assert running.ask("/v1/embeddings", {"input": "a"})[0] == 429
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [200] * 3
