"""`clew generate`: continues a text."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

import clew
from clew.cli import generation as gen
from clew.cli import options as opt
from clew.cli.generation import Generating, figures, generating
from clew.cli.options import Compiling, compiling
from clew.cli.output import emit_json, note
from clew.support.unseen import visible


@compiling
@generating
def generate(
    folder: gen.Folder,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Text; - reads it from stdin.", show_default=False),
    ] = None,
    ids: Annotated[
        str, typer.Option("--ids", metavar="1,2,3", help="Prompt as token ids; prints ids.")
    ] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a message, by the chat template.")
    ] = False,
    *,
    chosen: Generating,
    beams: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Search with N beams.")
    ] = None,
    json: opt.Json = False,
    how: Compiling,
) -> None:
    """Continue a text with a language model.

    The text goes to stdout while it is generated, figures go to stderr. Options that are not given
    have the defaults of the folder.
    """
    given = _prompt(prompt, ids, chat or chosen.system is not None, chosen.system)
    model = chosen.open(folder, how)
    options: dict[str, Any] = {**chosen.options(how), "beams": beams}
    as_text = not json and not ids and model.tokenizer is not None
    if as_text and (beams or model.settings.defaults.get("beams") or 1) == 1:
        result = _streamed(model, given, options)
    else:
        result = clew.generate(model, given, **options)
        if not json:
            print(_shown(result.text) if as_text else ",".join(map(str, result.ids)))
    if json:
        emit_json({**dataclasses.asdict(result), "tokens_per_second": result.tokens_per_second})
    note(figures(result, None if (beams or 1) > 1 else model))


def _prompt(prompt: str | None, ids: str, chat: bool, system: str | None) -> Any:
    """Returns the prompt: a text, ids or messages; anything else is a usage error."""
    if (prompt is None) == (not ids):
        raise typer.BadParameter("give either a text or --ids", param_hint="PROMPT")
    if ids:
        parts = [part.strip() for part in ids.split(",")]
        if chat or not all(part.removeprefix("-").isdecimal() for part in parts):
            raise typer.BadParameter(f"{ids!r} is not 1,2,3", param_hint="--ids")
        return [int(part) for part in parts]
    text = sys.stdin.read() if prompt == "-" else prompt
    if not chat:
        return text
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _streamed(model: Any, prompt: Any, options: dict[str, Any]) -> Any:
    """Prints the text while it is generated, and returns the result, also after Ctrl-C."""
    with clew.generate(model, prompt, stream=True, **options) as stream:
        try:
            for piece in stream:
                print(_shown(piece), end="", flush=True)
        finally:
            if stream.result.ids:
                print(flush=True)
    return stream.result


def _shown(text: str) -> str:
    """Returns a text for stdout: exact for a file, without control characters for a terminal."""
    return visible(text) if sys.stdout.isatty() else text
