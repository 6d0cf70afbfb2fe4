"""`clew serve`: a language model over HTTP, as OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from clew.cli import generation as gen
from clew.cli.generation import open_text_model
from clew.cli.options import Compiling, compiling
from clew.cli.output import note, stderr

if TYPE_CHECKING:
    from clew.server import Asked, Serving


@compiling
def serve(
    folder: gen.Folder,
    host: Annotated[str, typer.Option(metavar="NAME", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free port.")
    ] = 8000,
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="API key that clients must send.", show_default="a new one, printed"
        ),
    ] = "",
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Accept requests without a key.")
    ] = False,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the model.", show_default="the folder's")
    ] = "",
    running: Annotated[
        int, typer.Option(metavar="N", min=1, help="Answers generated at the same time.")
    ] = 8,
    waiting: Annotated[
        int, typer.Option(metavar="N", min=0, help="Requests that may wait; more are rejected.")
    ] = 64,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of new tokens per answer.")
    ] = 4096,
    prefix_memory: Annotated[
        int,
        typer.Option(metavar="MIB", min=0, help="Memory for caches of earlier prompts, in MiB."),
    ] = 1024,
    prefix_cache: gen.PrefixCache = None,
    *,
    how: Compiling,
) -> None:
    """Serve a language model or a text encoder over HTTP, in the form of OpenAI's API.

    The base URL and the key are printed on stdout. Ctrl-C stops the server.
    """
    if key and no_key:
        raise typer.BadParameter("--key and --no-key exclude each other", param_hint="--no-key")
    model = open_text_model(folder, how, prefix_cache)
    from clew.server import Asked  # noqa: PLC0415 - it imports the web server

    asked = Asked(
        model,
        name or folder.resolve().name,
        host,
        port,
        None if no_key else key,
        running,
        waiting,
        max_tokens,
        most_prefix_bytes=prefix_memory << 20,
    )
    asyncio.run(_serve(asked))


async def _serve(asked: Asked) -> None:
    from clew import server  # noqa: PLC0415 - it imports the web server
    from clew.web.hosting import is_loopback  # noqa: PLC0415

    if not is_loopback(asked.host):
        who = "anyone" if asked.token is None else "anyone who has the key"
        stderr().print(
            f"warning: other machines can reach {asked.host}; {who} can use the model, and the "
            "connection is not encrypted",
            style="yellow",
        )

    def on_ready(serving: Serving) -> None:
        print(serving.url, flush=True)
        if serving.token is not None:
            print(f"key: {serving.token}", flush=True)
        note("Ctrl-C stops the server")

    await server.serve(asked, on_ready)
