"""Options of the commands that generate text, and the figures that they print."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import clew
from clew.cli.help import Panel
from clew.cli.options import SAVED_SUFFIX, Compiling, with_options
from clew.cli.output import note, progress
from clew.support.dataclass import dataclass
from clew.support.shown import counted

_PANEL = Panel(
    "Generation options", "--system", "--max-tokens", "--temperature", "--seed", "--draft"
)


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
PrefixCache = Annotated[
    Path | None,
    _option("Keep prompt caches in this folder.", "--prefix-cache", metavar="FOLDER"),
]
_OPTIONS: Final[Mapping[str, tuple[Any, Any]]] = {
    name: (default, Annotated[kind, option])
    for name, default, kind, option in (
        ("system", None, str | None,
         _option("System message of the conversation.", metavar="TEXT")),
        ("max_tokens", None, int | None,
         _option("Maximum number of new tokens; by default 256.", "--max-tokens",
                 metavar="N", min=1)),
        ("temperature", None, float | None,
         _option("Sampling temperature; 0: greedy.", metavar="X", min=0)),
        ("top_k", None, int | None,
         _option("Sample from the K most probable tokens.", "--top-k", metavar="K", min=0)),
        ("top_p", None, float | None,
         _option("Sample from the most probable tokens with this total.", "--top-p",
                 metavar="X")),
        ("min_p", None, float | None,
         _option("Sample from tokens with this share of the top probability.", "--min-p",
                 metavar="X")),
        ("repetition_penalty", None, float | None,
         _option("Divide the scores of tokens that already occur.", "--repetition-penalty",
                 metavar="X")),
        ("presence_penalty", None, float | None,
         _option("Subtract from the scores of generated tokens.", "--presence-penalty",
                 metavar="X")),
        ("frequency_penalty", None, float | None,
         _option("Subtract from the scores of generated tokens, per occurrence.",
                 "--frequency-penalty", metavar="X")),
        ("stop", [], list[str], _option("Text that ends the answer; repeatable.", metavar="TEXT")),
        ("seed", None, int | None,
         _option("Random seed; by default a new one.", "--seed", metavar="N", min=0)),
        ("draft", None, Path | None,
         _option("Folder of a smaller model that guesses tokens.", metavar="FOLDER")),
        ("lookup", 0, int,
         _option("Guess up to N tokens from the text itself.", metavar="N", min=0)),
    )
} | {"prefix_cache": (None, PrefixCache)}  # fmt: skip
"""The options of the commands that generate text: default and annotation by name."""


@dataclass(frozen=True)
class Generating:
    """Generation options as given on the command line: values by the names of `_OPTIONS`."""

    given: Mapping[str, Any]

    @property
    def system(self) -> str | None:
        """The system message."""
        found: str | None = self.given["system"]
        return found

    def open(self, folder: Path, how: Compiling) -> Any:
        """Returns the language model of a folder or file, showing progress on stderr."""
        return open_language_model(folder, how, self.given["prefix_cache"])

    def options(self, how: Compiling) -> dict[str, Any]:
        """The options, as `clew.generate` takes them; opens the draft model."""
        found = {n: v for n, v in self.given.items() if n not in ("system", "prefix_cache")}
        if found["draft"] is not None:
            found["draft"] = open_language_model(found["draft"], how)
        return found


def generating(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Generating`, in place of its parameter of that type."""
    return with_options(command, Generating, _OPTIONS, Generating)


def open_language_model(path: Path, how: Compiling, prefix_cache: Path | None = None) -> Any:
    """Returns the language model of a folder or file, showing progress on stderr."""
    return _opened(partial(clew.language_model, prefix_cache=prefix_cache), path, how)


def open_text_model(path: Path, how: Compiling, prefix_cache: Path | None) -> Any:
    """Returns the language model or the text encoder of a folder or file, showing progress on
    stderr.
    """
    from clew.generation.embedding import text_model  # noqa: PLC0415 - it imports the compiler

    return _opened(partial(text_model, prefix_cache=prefix_cache), path, how)


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


def figures(result: Any, model: Any = None) -> str:
    """Returns the figures of a generation as a line; with the `model`, also the cost of one more
    token.
    """
    prompt = counted(result.prompt_tokens, "prompt token")
    if result.cached_tokens:
        prompt += f" ({result.cached_tokens} cached)"
    parts = [prompt, f"first token after {result.first_token_s * 1e3:.0f} ms",
             f"{counted(len(result.ids), 'token')}"]  # fmt: skip
    if result.tokens_per_second:
        parts.append(f"{result.tokens_per_second:.1f} tokens/s")
        if model is not None and not result.drafted:
            parts += _costs(result, model.wiring)
    if result.drafted:
        parts.append(f"{result.accepted} of {result.drafted} drafted tokens accepted")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    stop = f" {result.stop!r}" if result.stop is not None else ""
    return ", ".join([*parts, f"ended by {result.finish}{stop}"])


def _costs(result: Any, wiring: Any) -> list[str]:
    """Returns what one more token costs, and the share of the machine's bandwidth."""
    from clew.profile.token_costs import (  # noqa: PLC0415 - it imports the compiler
        bandwidth_share,
        bytes_text,
        state_bytes_of,
    )

    seconds = 1 / result.tokens_per_second
    share = bandwidth_share(wiring, result.prompt_tokens + len(result.ids) // 2, seconds)
    grown, _ = state_bytes_of(wiring)
    found = [f"one more token: {bytes_text(grown)} of cache, {seconds * 1e6:.4g} µs"]
    return found if share is None else [*found, f"{100 * share:.0f} % of the bandwidth"]
