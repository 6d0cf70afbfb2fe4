"""Firefox through Marionette, its own remote control: a few commands need no driver."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE_S = 60.0
_UNLOADED, _RELOADS = "Document was unloaded", 3
_SETTINGS = {
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.safebrowsing.downloads.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}


class Firefox:
    """A window of a Firefox that runs without a screen."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._count = 0
        self._received()
        self._do("WebDriver:NewSession")
        self._do("WebDriver:SetTimeouts", script=int(_PATIENCE_S * 1000))

    def open(self, url: str) -> None:
        self._do("WebDriver:Navigate", url=url)

    def wait_for(self, condition: str) -> None:
        """Waits until a JavaScript expression is true."""
        script = f"""const done = arguments[0];
          const look = () => ({condition}) ? done(true) : requestAnimationFrame(look);
          look();"""
        for _ in range(_RELOADS):  # a script ends with its document, and waits in the next one
            error = self._answer(
                "WebDriver:ExecuteAsyncScript", script=script, args=[], newSandbox=True
            )[0]
            if error is None or _UNLOADED not in str(error):
                break
        assert error is None, error

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression."""
        script = f"return {expression};"
        found = self._do("WebDriver:ExecuteScript", script=script, args=[], newSandbox=True)
        return found["value"]

    def picture(self) -> bytes:
        """Returns what is seen, as a PNG file."""
        return base64.b64decode(self._do("WebDriver:TakeScreenshot", full=False)["value"])

    def _do(self, name: str, **parameters: Any) -> Any:
        error, result = self._answer(name, **parameters)
        assert error is None, error
        return result

    def _answer(self, name: str, **parameters: Any) -> tuple[Any, Any]:
        """Returns the error of a command, or None, and its result."""
        self._count += 1
        message = json.dumps([0, self._count, name, parameters]).encode()
        self._connection.sendall(str(len(message)).encode() + b":" + message)
        _, _, error, result = self._received()
        return error, result

    def _received(self) -> Any:
        length = b""
        while (digit := self._file.read(1)) not in (b":", b""):
            length += digit
        return json.loads(self._file.read(int(length)))


@contextmanager
def firefox(program: str, folder: Path) -> Iterator[Firefox]:
    """Starts Firefox with a profile of its own in a folder."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    values = {**_SETTINGS, "marionette.port": port}
    lines = [f'user_pref("{name}", {json.dumps(value)});' for name, value in values.items()]
    (folder / "user.js").write_text("\n".join(lines))
    command = [program, "--headless", "--marionette", "--profile", str(folder)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*command, "--window-size=1280,800"], stdout=quiet, stderr=quiet)
    try:
        with _connected(port) as connection:
            connection.settimeout(_PATIENCE_S)
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE_S)


def _connected(port: int) -> socket.socket:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)  # nothing tells when it listens
