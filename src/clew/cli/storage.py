"""`clew cache`: shows, clears and prunes the disk cache."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from clew.cli import options as opt
from clew.cli.output import emit_json, stdout
from clew.runtime.cache import default_cache

app = typer.Typer(
    name="cache", help="Show, clear or prune the cache of native code.", no_args_is_help=True
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@app.command()
def show(json: opt.Json = False) -> None:
    """Show the cache's folder and size."""
    cache = default_cache()
    stats = cache.stats()
    if json:
        folder = None if cache.root is None else str(cache.root)
        emit_json({"folder": folder, "entries": stats.entries, "size_bytes": stats.size_bytes})
        return
    place = "switched off" if cache.root is None else str(cache.root)
    size = f"{stats.size_bytes / (1 << 20):.1f} MiB"
    stdout().print(Text(f"{place}: {stats.entries} entries, {size}"))


@app.command()
def clear(json: opt.Json = False) -> None:
    """Remove every entry."""
    _removed(default_cache().clear(), json)


@app.command()
def prune(
    keep: Annotated[
        str, typer.Option("--keep", metavar="SIZE", help="Size to keep, such as 500M or 2G.")
    ] = "1G",
    json: opt.Json = False,
) -> None:
    """Remove the entries used least recently."""
    _removed(default_cache().prune(_size_bytes(keep)), json)


def _removed(count: int, json: bool) -> None:
    if json:
        emit_json({"removed": count})
    else:
        stdout().print(Text(f"{count} entries removed"))


def _size_bytes(text: str) -> int:
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in _UNITS or not number.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a size", param_hint="--keep")
    return int(number) * _UNITS[unit]
