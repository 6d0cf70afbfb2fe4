"""A server in a thread, for tests."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from typing import Any

from clew.server import Asked, Serving, serve

KEY = "the key"


class Running:
    """A server in a thread."""

    def __init__(self, asked: Asked) -> None:
        self._ready = threading.Event()
        self.serving: Serving | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(serve(asked, self._note)))
        self._thread.start()
        assert self._ready.wait(30)

    def _note(self, serving: Serving) -> None:
        self.serving = serving
        self._loop = asyncio.get_running_loop()
        self._ready.set()

    @property
    def url(self) -> str:
        assert self.serving is not None
        return self.serving.url

    def stop(self) -> None:
        assert self.serving is not None
        self._loop.call_soon_threadsafe(self.serving.stop)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def ask(self, path: str, body: Any = None, key: str | None = KEY) -> tuple[int, Any]:
        """Returns the status and the JSON of an answer."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.removesuffix("/v1") + path, data)
        if key is not None:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("/health", key=None)[1]
        return found
