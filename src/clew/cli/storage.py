"""`clew cache`: the disk cache as its user sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from clew.cli import options as opt
from clew.cli.output import emit_json, emit_text, note, stdout
from clew.runtime.cache import default_cache
from clew.serving.carried import export_cache, import_cache
from clew.serving.contents import StoredModel, stored_models
from clew.support.settings import read_size
from clew.support.shown import counted
from clew.support.tables import table

app = typer.Typer(
    name="cache", help="Show, prune, carry or clear the disk cache.", no_args_is_help=True
)


@app.command()
def where(json: opt.Json = False) -> None:
    """Print the cache's folder."""
    root = default_cache().root
    if json:
        emit_json({"folder": None if root is None else str(root)})
    else:
        emit_text("switched off" if root is None else str(root))


@app.command()
def size(json: opt.Json = False) -> None:
    """Show the cache's size and its limit."""
    cache = default_cache()
    stats, models = cache.stats(), stored_models(cache)
    shown = {
        "folder": None if cache.root is None else str(cache.root),
        "entries": stats.entries,
        "size_bytes": stats.size_bytes,
        "limit_bytes": cache.limit_bytes,
        "models": len(models),
    }
    if json:
        emit_json(shown)
    elif cache.root is None:
        emit_text("switched off")
    else:
        of_limit = f"{_mebibytes(stats.size_bytes)} of {_mebibytes(cache.limit_bytes)}"
        about = f"{counted(len(models), 'model')}, {counted(stats.entries, 'file')}"
        emit_text(f"{cache.root}: {of_limit}, {about}")


@app.command("list")
def list_(json: opt.Json = False) -> None:
    """List the models in the cache, the most recently used first."""
    models = stored_models(default_cache())
    if json:
        emit_json([_facts(each) for each in models])
        return
    made = table("model", "options", "kernels", "size", "alone", "used", right=("size", "alone"))
    for each in models:
        names = dict.fromkeys(os.path.basename(name) for name in each.names)
        options = dict.fromkeys(f"{k}={v}" for told in each.options for k, v in told.items())
        made.add_row(
            Text(", ".join(names) or each.key[:12]),
            Text(", ".join(options)),
            str(each.kernels),
            _mebibytes(each.size_bytes),
            _mebibytes(each.own_bytes),
            each.used,
        )
    stdout().print(made)


@app.command()
def prune(
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="SIZE", help="Size to keep, such as 500M.", show_default="the limit"
        ),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Remove what was used least recently."""
    cache = default_cache()
    bytes_ = cache.limit_bytes if keep is None else read_size(keep)
    if bytes_ is None:
        raise typer.BadParameter(f"{keep!r} is not a size", param_hint="--keep")
    _removed(cache.prune(bytes_), json)


@app.command()
def clear(json: opt.Json = False) -> None:
    """Remove everything."""
    _removed(default_cache().clear(), json)


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    json: opt.Json = False,
) -> None:
    """Write the models in the cache to a file, for machines of the same kind."""
    count = export_cache(default_cache(), file)
    _carried(count, "exported", file, json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that export has written.")],
    json: opt.Json = False,
) -> None:
    """Add the models in an exported file, which holds native code, to the cache."""
    count = import_cache(default_cache(), file)
    _carried(count, "imported", file, json)


def _carried(count: int, what: str, file: Path, json: bool) -> None:
    if json:
        emit_json({what: count, "file": str(file)})
    else:
        note(f"{counted(count, 'model')} {what}")


def _removed(count: int, json: bool) -> None:
    if json:
        emit_json({"removed": count})
    else:
        emit_text(f"{counted(count, 'file')} removed")


def _facts(model: StoredModel) -> dict[str, object]:
    return {
        "key": model.key,
        "models": list(model.names),
        "options": [dict(told) for told in model.options],
        "target": model.target,
        "kernels": model.kernels,
        "size_bytes": model.size_bytes,
        "own_bytes": model.own_bytes,
        "used": model.used,
    }


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
