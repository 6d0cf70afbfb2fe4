"""Options of the commands that generate text, and the figures that they print."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import clew
from clew.cli.options import SAVED_SUFFIX, Compiling
from clew.cli.output import note, progress
from clew.support.shown import counted

_PANEL = "Options of generation"


def _option(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, show_default=False, **more)


Folder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="Folder saved by transformers, Optimum or ONNX Runtime GenAI; or a model's file.",
        show_default=False,
    ),
]
MaxTokens = Annotated[
    int | None, _option("New tokens at most; by default 256.", "--max-tokens", metavar="N", min=1)
]
Temperature = Annotated[
    float | None, _option("Draw tokens with this temperature; 0: greedy.", metavar="X", min=0)
]
TopK = Annotated[
    int | None, _option("Draw from the K most probable tokens.", "--top-k", metavar="K", min=0)
]
TopP = Annotated[
    float | None,
    _option("Draw from the tokens that have this probability together.", "--top-p", metavar="X"),
]
MinP = Annotated[
    float | None,
    _option("Draw from tokens with this share of the best one's probability.", "--min-p",
            metavar="X"),
]  # fmt: skip
Repetition = Annotated[
    float | None,
    _option("Divide scores of tokens that occur before.", "--repetition-penalty", metavar="X"),
]
Presence = Annotated[
    float | None,
    _option("Subtract from scores of new tokens that occur.", "--presence-penalty", metavar="X"),
]
Frequency = Annotated[
    float | None,
    _option("Subtract from scores for each occurrence.", "--frequency-penalty", metavar="X"),
]
Stop = Annotated[list[str], _option("Text that ends the answer; repeatable.", metavar="TEXT")]
GenerationSeed = Annotated[
    int | None, _option("Seed of draws; by default a new one.", "--seed", metavar="N", min=0)
]
Draft = Annotated[
    Path | None, _option("Folder of a smaller model that guesses tokens.", metavar="FOLDER")
]
Lookup = Annotated[int, _option("Guess up to N tokens from the text itself.", metavar="N", min=0)]
System = Annotated[str | None, _option("System message of the conversation.", metavar="TEXT")]


def open_language_model(path: Path, how: Compiling) -> Any:
    """Returns the language model of a folder or file, showing progress on stderr."""
    return _opened(clew.language_model, path, how)


def open_text_model(path: Path, how: Compiling) -> Any:
    """Returns the language model or the text encoder of a folder or file, showing progress on
    stderr.
    """
    from clew.generation.embedding import text_model  # noqa: PLC0415 - it imports the compiler

    return _opened(text_model, path, how)


def _opened(open_model: Callable[..., Any], path: Path, how: Compiling) -> Any:
    options: dict[str, Any] = dict(how.options)
    if path.suffix == SAVED_SUFFIX:
        options = {"threads": how.options.threads}
    with progress(f"reading {path}"):
        begin = time.perf_counter()
        model = open_model(path, **options)
        seconds = time.perf_counter() - begin
    note(f"{model!r} ready in {seconds:.2f} s")
    return model


def figures(result: Any) -> str:
    """Returns the figures of a generation as a line."""
    prompt = counted(result.prompt_tokens, "prompt token")
    if result.cached_tokens:
        prompt += f" ({result.cached_tokens} cached)"
    parts = [prompt, f"first token after {result.first_token_s * 1e3:.0f} ms",
             f"{counted(len(result.ids), 'token')}"]  # fmt: skip
    if result.tokens_per_second:
        parts.append(f"{result.tokens_per_second:.1f} tokens/s")
    if result.drafted:
        parts.append(f"{result.accepted} of {result.drafted} drafted tokens accepted")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    stop = f" {result.stop!r}" if result.stop is not None else ""
    return ", ".join([*parts, f"ended by {result.finish}{stop}"])
