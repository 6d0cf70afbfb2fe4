"""Accepts requests from the page itself or with the token; rejects all others.

The checks, in this order: the `Host` header must be ours (against DNS rebinding, where an
attacker's name resolves to this machine), the path must begin with the token, and a request that
declares another site as its origin is rejected. Rejections reveal nothing about this machine. Every
response carries the headers below: scripts run only from the bundle, frames cannot embed the page,
and other sites cannot read it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES: Final = 24
LONGEST_URL_BYTES: Final = 8192
MOST_HEADER_BYTES: Final = 32 << 10
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_OWN_SITES: Final = (b"same-origin", b"none")


class Hosts:
    """The accepted `Host` headers: names of the loopback interface, or the address that the server
    listens at, with its port. If the server listens at all addresses, any numeric address is
    accepted, because an attacker's name cannot be numeric.
    """

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._every = host in ("0.0.0.0", "::")
        named = f"[{host}]" if ":" in host else host
        self._names = {name.encode() for name in (*_LOOPBACK_NAMES, named)}

    def allow(self, header: bytes) -> bool:
        """Whether a `Host` header is one of ours."""
        name, mark, port = header.lower().rpartition(b":")
        if not mark or b"]" in port:
            name, port = header.lower(), b"80"
        if port != str(self._port).encode():
            return False
        return name in self._names or (self._every and _is_address(name))


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.decode("ascii", "replace").removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class Guard:
    """The outermost part of the server: passes on accepted requests, without the token.

    Paths that begin with one of `own` are for the page alone: other sites may not even trigger such
    a request. A link to the page itself may be followed from anywhere by anyone who knows the
    token.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Hosts, own: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        self._own = tuple(own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or rejects it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        status, inner = self._judge(scope)
        if status:
            await _refuse(status, guarded)
        elif scope["path"].count("/") == 1:  # the page's links are relative to its folder
            await _redirect(scope["path"] + "/", guarded)
        else:
            await self._app(inner, receive, guarded)

    def _judge(self, scope: Scope) -> tuple[int, Scope]:
        """Returns the status to reject a request with, or 0 and the request to pass on."""
        headers = scope["headers"]
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._hosts.allow(hosts[0]):
            return 421, scope
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_URL_BYTES:
            return 414, scope
        if sum(len(name) + len(value) for name, value in headers) > MOST_HEADER_BYTES:
            return 431, scope
        first, _, rest = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(first.encode("utf-8", "replace"), self._token):
            return 404, scope
        if scope["method"] not in ("GET", "HEAD", "POST", "DELETE"):
            return 405, scope
        raw = b"/" + (scope.get("raw_path") or b"").removeprefix(b"/").partition(b"/")[2]
        inner = {**scope, "path": f"/{rest}", "raw_path": raw, "root_path": ""}
        return (0 if self._is_own(scope, hosts[0], f"/{rest}") else 403), inner

    def _is_own(self, scope: Scope, host: bytes, path: str) -> bool:
        """Whether a request comes from the page, from the address bar, or from a program other than
        a browser.
        """
        headers = scope["headers"]
        origins = _values(headers, b"origin")
        if any(origin != b"http://" + host for origin in origins):
            return False
        sites = _values(headers, b"sec-fetch-site")
        if all(site in _OWN_SITES for site in sites):
            return True
        if path.startswith(self._own) or scope["method"] not in ("GET", "HEAD"):
            return False
        followed = _values(headers, b"sec-fetch-mode") == [b"navigate"]
        return followed and _values(headers, b"sec-fetch-dest") == [b"document"]


def _values(headers: Collection[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


async def _redirect(path: str, send: Send) -> None:
    headers = [(b"location", path.encode("ascii")), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(status: int, send: Send) -> None:
    body = {404: b"not found", 405: b"not allowed"}.get(status, b"refused")
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
