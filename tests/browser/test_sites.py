"""A page of another server on this machine, which knows the URL, gets at nothing."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser

# Each way in gives what came of it: a text that says so where it was refused.
_ATTACKS = """async (home) => {
  const tried = {};
  const fetched = async (name, path, options) => {
    try {
      const response = await fetch(home + path, options);
      tried[name] = response.type === "opaque" ? "opaque" : `read: ${await response.text()}`;
    } catch { tried[name] = "refused"; }
  };
  await fetched("read", "api/start");
  await fetched("blind", "api/start", { mode: "no-cors" });
  const body = '{"model":"known.onnx"}';
  const headers = { "content-type": "application/json" };
  await fetched("json", "api/builds", { method: "POST", headers, body });
  const blind = { method: "POST", mode: "no-cors" };
  await fetched("form", "api/builds", { ...blind, body });
  await fetched("upload", "api/builds?name=m.onnx", { ...blind, body: new Blob(["x"]) });
  await fetched("delete", "api/builds/a", { method: "DELETE" });
  const loaded = (name, element, source) => new Promise((resolve) => {
    element.onload = () => { tried[name] = "loaded"; resolve(); };
    element.onerror = () => { tried[name] = "refused"; resolve(); };
    element.src = source;
    document.body.append(element);
  });
  await loaded("script", document.createElement("script"), home + "static/app.js");
  await loaded("image", document.createElement("img"), home + "api/start");
  await new Promise((resolve) => {
    const events = new EventSource(home + "api/jobs/j1/events");
    events.onmessage = () => { tried.events = "read"; events.close(); resolve(); };
    events.onerror = () => { tried.events = "refused"; events.close(); resolve(); };
  });
  const frame = document.createElement("iframe");
  await loaded("frame", frame, home);
  try { tried.frame = `read ${frame.contentWindow.document.title}`; }
  catch { tried.frame = "refused"; }
  return tried;
}"""


@contextlib.contextmanager
def other_server() -> Iterator[str]:
    """Serves an empty page at another port of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title><body></body>")

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def builds(url: str) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("GET", f"{parts.path}api/start")
    return json.loads(connection.getresponse().read())["builds"]


def test_another_site_gets_at_nothing(
    browser: Browser, serve: Callable[..., str], models: dict[str, Path]
) -> None:
    url = serve(models["known"])
    before = [build["id"] for build in builds(url)]
    with other_server() as other:
        page = browser.new_page()
        page.goto(other)
        tried = page.evaluate(_ATTACKS, url)
        page.close()
    opaque = {name for name, outcome in tried.items() if outcome == "opaque"}
    assert opaque <= {"blind", "form", "upload"}  # sent, refused by the server, and unreadable
    assert {outcome for name, outcome in tried.items() if name not in opaque} == {"refused"}
    assert [build["id"] for build in builds(url)] == before
