"""The page as one file with its answers: it opens from disk, without a network or clew."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clew.explorer import bundle, schema
from clew.explorer.actions.profile import profile as measure_profile
from clew.explorer.bundle import Bundle
from clew.explorer.contents import Say, gather
from clew.explorer.session import Session
from clew.explorer.wire import to_json
from clew.serving.built_model import BuiltModel
from clew.support.errors import InputError
from clew.support.files import reason_of
from clew.support.writing import write_bytes

_STYLE: Final = '<link rel="stylesheet" href="static/style.css" />'
_SCRIPT: Final = '<script src="static/app.js"></script>'
_HEAD: Final = '<meta charset="utf-8" />'
_TITLE: Final = "<title>clew explorer</title>"


def report(
    compiled: BuiltModel,
    path: str | Path,
    *,
    profile: bool = True,
    inputs: Any = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Writes a compiled model's report; see `BuiltModel.report`."""
    session = Session(compiled, model="model")
    if compiled.is_symbolic or inputs is not None or shapes:
        partial = isinstance(inputs, Mapping)
        given = {} if inputs is None else compiled.named_inputs(inputs, partial=partial)
        session.inputs = compiled.drawn(given, shapes=shapes)
        compiled.build_for(session.inputs)
    if profile:
        measure_profile(session, {}, lambda text, fraction: None)
    write_report({"a": session}, path)


def write_report(
    sessions: Mapping[str, Session],
    path: str | Path,
    diff: schema.Diff | None = None,
    on_progress: Say | None = None,
) -> int:
    """Writes builds, by their names in the page (`a`, `b`), as one HTML file; returns its size.

    The report includes their measurements. `diff` is the difference of the first two.

    Errors: I250 (the page is not built), I251 (the file cannot be written).
    """
    text = report_html(sessions, diff, on_progress or (lambda _: None))
    data = text.encode("utf-8", "replace")
    try:
        write_bytes(path, data)
    except OSError as error:
        raise InputError("I251", f"cannot write {str(path)!r}: {reason_of(error)}") from None
    return len(data)


def report_html(sessions: Mapping[str, Session], diff: schema.Diff | None, say: Say) -> str:
    """Returns the text of the file.

    Errors: I250.
    """
    index, style, script = (_file(name) for name in (bundle.INDEX, "style.css", "app.js"))
    style = style.replace("</style", "<\\/style")
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    packed = _packed(gather(sessions, diff, say))
    names = " and ".join(session.model for session in sessions.values())
    parts = {
        _HEAD: f'{_HEAD}\n    <meta http-equiv="Content-Security-Policy" '
        f'content="{_policy(style, script)}" />',
        _TITLE: f"<title>{html.escape(names)} – clew report</title>",
        _STYLE: f"<style>{style}</style>",
        _SCRIPT: f'<script type="application/json" id="clew-report">{packed}</script>\n'
        f"    <script>{script}</script>",
    }
    for old, new in parts.items():
        assert index.count(old) == 1, old
        before, after = index.split(old)
        index = before + new + after
    return index


def _file(name: str) -> str:
    file = Bundle().get(name)
    data = file.read() if file is not None else None
    if data is None:
        raise InputError(
            "I250",
            f"the explorer's page has not been built: {name} is missing",
            hint=f"to build it: {bundle.HOW_TO_BUILD}",
        )
    return data.decode()


def _packed(value: dict[str, Any]) -> str:
    """Returns a value as gzipped JSON, as text that is safe in HTML. The gzip header has no time,
    so equal reports are equal files.
    """
    return base64.b64encode(gzip.compress(to_json(value), 9, mtime=0)).decode("ascii")


def _policy(style: str, script: str) -> str:
    """Returns the file's content security policy: it may run its one script and its worker, and
    send no requests.
    """

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{digest(script)}'",
            f"style-src '{digest(style)}'",
            "img-src data: blob:",
            "worker-src blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
