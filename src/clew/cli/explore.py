"""`clew explore`: serves the explorer's page to this machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import webbrowser
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from clew.backends.compile_options import Limits
from clew.cli.diff import build_options, changed
from clew.cli.options import Compiling, compiling, refuse_saved
from clew.cli.output import emit_json_text, note, progress, stderr
from clew.generation.folder import model_in
from clew.support.errors import InputError
from clew.support.settings import usable_cpus

if TYPE_CHECKING:
    from clew.explorer.own import Own
    from clew.explorer.schema import Options
    from clew.explorer.server import Asked, Serving

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@compiling
def explore(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="The model's file, or a language model's folder. Without one, drop a model "
            "onto the page.",
            show_default=False,
        ),
    ] = None,
    model_b: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL_B", help="Model to compare with.", show_default=False),
    ] = None,
    for_b: Annotated[
        list[str],
        typer.Option(
            "--b", metavar="'KEY=VALUE ...'", help="How B is compiled; keys as in clew diff."
        ),
    ] = [],  # noqa: B006 (typer takes the default from here)
    host: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Address to listen at; one that other machines can reach is a risk.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free port.")
    ] = 0,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--no-browser", help="Open the page.", show_default="if in a terminal"
        ),
    ] = None,
    get: Annotated[
        str,
        typer.Option("--get", metavar="ROUTE", help="Print a route's answer and exit."),
    ] = "",
    memory: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="GIB", help="Memory limit of a build; 0: none.", show_default="80 %"
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit of a job.")
    ] = 600.0,
    max_upload: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Size limit of uploaded models.")
    ] = 512,
    *,
    how: Compiling,
) -> None:
    """Show a model's layers, passes, kernels, instructions and times in a web page.

    The page's URL, which holds a secret, is printed on stdout. Two models, or one with --b
    "precision=bf16", are shown with their differences. Ctrl-C stops the server.
    """
    models, own = asked_models(model, model_b, how, for_b)
    if get:
        emit_json_text(_answer(models, own, get))
        return
    from clew.explorer.builds.builds import Limits  # noqa: PLC0415 - other commands stay quick
    from clew.explorer.server import Asked  # noqa: PLC0415 - it imports the web server

    asked = Asked(
        models=models,
        own=own,
        host=host,
        port=port,
        limits=Limits(time_limit, _memory_bytes(memory), usable_cpus()),
        most_upload_bytes=max_upload * _MIB,
    )
    asyncio.run(_serve(asked, browser))


def asked_models(
    a: Path | None, b: Path | None, how: Compiling, for_b: list[str]
) -> tuple[tuple[tuple[Path, Options], ...], Own]:
    """Returns the files to compile with their options, and the options common to all builds.

    Errors: I227 for a missing file, I484 for a folder without a model.
    """
    from clew.explorer.own import split_options  # noqa: PLC0415 - other commands stay quick

    if how.options.group(Limits).trust:
        raise typer.BadParameter("the explorer runs no code of model files", param_hint="--trust")
    if a is None:
        if for_b:
            raise typer.BadParameter("--b needs a model", param_hint="--b")
        return (), split_options([how.options])[1]
    for path in (a, b):
        refuse_saved(path, "a saved model has no trace")
        if path is not None and not os.path.exists(path):
            raise InputError("I227", f"no file or folder {str(path)!r}")
    first, second = (None if path is None else model_in(path) for path in (a, b))
    assert first is not None
    paths, given = [first], [how.options]
    if second is not None or for_b:
        paths.append(second or first)
        given.append(changed(how, build_options(for_b, {}, "--b")))
    options, shared = split_options(given)
    return tuple(zip(paths, options, strict=True)), shared


def _memory_bytes(gib: float | None) -> int:
    from clew.explorer.builds.builds import default_memory_bytes  # noqa: PLC0415

    return default_memory_bytes() if gib is None else int(gib * _GIB)


def _answer(models: tuple[tuple[Path, Options], ...], own: Own, route: str) -> str:
    """Returns a route's answer as JSON text, without a server.

    Errors: I229 without a model, I201 and others of routes.
    """
    if not models:
        raise InputError("I229", "--get needs a model", hint="clew explore MODEL --get ROUTE")
    from clew.explorer.direct import answer  # noqa: PLC0415 - it imports the compiler

    with progress("") as status:

        def say(text: str, fraction: float | None) -> None:
            status(text)

        found = answer(models, route, say, own)
    return json.dumps(json.loads(found), indent=2, ensure_ascii=False)


async def _serve(asked: Asked, browser: bool | None) -> None:
    from clew.explorer import server  # noqa: PLC0415 - it imports the web server
    from clew.web.hosting import is_loopback  # noqa: PLC0415

    if not is_loopback(asked.host):
        stderr().print(
            f"warning: other machines can reach {asked.host}; anyone who has the URL can "
            "compile models here",
            style="yellow",
        )

    def on_ready(serving: Serving) -> Awaitable[None]:
        print(serving.url, flush=True)
        if browser or (browser is None and sys.stdout.isatty()):
            # In a thread that nothing joins: some browsers only return when they are closed.
            threading.Thread(target=webbrowser.open, args=[serving.url], daemon=True).start()
        return _follow(serving)

    await server.serve(asked, on_ready)


async def _follow(serving: Serving) -> None:
    """Reports the progress of the first jobs on stderr."""
    from clew.explorer.failures import error_text  # noqa: PLC0415

    for job in serving.jobs:
        with progress(job.about) as say:
            async for found in job.follow():
                if found is not None and found[1].kind == "progress":
                    say(f"{job.about}: {found[1].text}")
                elif found is not None:
                    event = found[1]
                    note(f"{job.about}: {event.kind} after {event.seconds:.1f} s")
                    if event.error is not None:
                        stderr().print(Text(error_text(event.error), style="red"))
