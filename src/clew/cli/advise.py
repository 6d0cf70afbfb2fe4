"""`clew advise`: finds changes that make a model faster, and measures the gain of each."""

from __future__ import annotations

import contextlib
import hashlib
import json as js
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clew.cli import options as opt
from clew.cli.options import Compiling, compiling, listed, refuse_saved
from clew.cli.output import emit_json, note, plain, progress, stdout
from clew.runtime.cache import Cache, default_cache
from clew.support.errors import InputError
from clew.support.files import read_bytes, run_program
from clew.version import VERSION

if TYPE_CHECKING:
    from clew.advice import Advice, Applied

_NUMBERS: Final = "1,3"


@compiling
def advise(
    model: opt.Model,
    minutes: Annotated[float, typer.Option(metavar="X", help="Stop after this time.")] = 1.0,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|FILE.npz",
            help="Inputs of calls: a folder with an .npz file per call, or a file with samples "
            "along the first axis.",
            show_default="random",
        ),
    ] = None,
    rules: Annotated[
        list[str],
        typer.Option(
            "--rule", metavar="NAME,...", help="Rules to use; repeatable.", show_default="all"
        ),
    ] = [],  # noqa: B006 (typer takes the default from here)
    program: Annotated[
        list[Path],
        typer.Option(
            "--rules-from", metavar="FILE.py", help="Python file that registers rules; repeatable."
        ),
    ] = [],  # noqa: B006 (as above)
    apply: Annotated[
        str,
        typer.Option(
            metavar=_NUMBERS,
            help="Write the model with these pieces of advice to -o; uses the last advice for this "
            "model, if it is in the cache.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File that --apply writes: .onnx, or .txt."
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Find changes to a model, its export or its compilation that make it faster.

    Each change is built and measured. Ctrl-C ends the search and keeps the results so far.
    """
    refuse_saved(model, "advice changes the model")
    numbers = _numbers(apply)
    if numbers and output is None:
        raise typer.BadParameter("give a file for the changed model", param_hint="--output")
    for one in program:
        run_program(one)
    from clew.advice import advise as search  # noqa: PLC0415 - it imports the compiler

    cache = default_cache()
    key = _key(model, how, samples, listed(rules))
    if numbers and output is not None:
        known = _kept(cache, key)
        if known is not None:
            _apply_kept(model, how, known, numbers, output, samples)
            return
    with progress(f"reading {model}") as show:
        found = search(
            model,
            samples=samples,
            minutes=minutes,
            rules=listed(rules) or None,
            on_progress=show,
            **how.options.values(),
        )
    _keep(cache, key, found)
    if json:
        emit_json(found.to_json())
    else:
        for line in found.lines():
            stdout().print(line, markup=False, highlight=False)
    for text in found.notes:
        note(text)
    if found.stopped:
        note(f"stopped after {found.seconds:.0f} s; {len(found)} changes so far")
    if numbers and output is not None:
        _write(found.apply(numbers), output)


def _numbers(text: str) -> list[int]:
    """Returns the numbers in `1,3`; a usage error for anything else."""
    if not text:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers", param_hint="--apply"
        ) from None


def _key(model: Path, how: Compiling, samples: str | None, rules: tuple[str, ...]) -> str:
    """Returns the key of the advice on a file, with some options."""
    options = js.dumps([how.options.record(), samples, rules, VERSION], sort_keys=True, default=str)
    digest = hashlib.blake2b(b"advice" + options.encode(), digest_size=20)
    with contextlib.suppress(OSError):  # reading the model reports it
        digest.update(read_bytes(model))
    return digest.hexdigest()


def _keep(cache: Cache, key: str, found: Advice) -> None:
    """Stores the keys of advice, so that its numbers have the same meaning in later processes."""
    rows = [[one.candidate.key, one.candidate.what] for one in found.items]
    cache.put(key, js.dumps(plain(rows)).encode())


def _kept(cache: Cache, key: str) -> list[list[Any]] | None:
    data = cache.get(key)
    return None if data is None else js.loads(data)


def _apply_kept(
    model: Path,
    how: Compiling,
    known: list[list[Any]],
    numbers: list[int],
    output: Path,
    samples: str | None,
) -> None:
    """Writes the model with advice from an earlier search, without measuring it again.

    Errors: I514 (see `Advice.apply`).
    """
    from clew.advice.advising import found_again  # noqa: PLC0415 - it imports the compiler

    for number in numbers:
        if not 1 <= number <= len(known):
            raise InputError(
                "I514",
                f"there is no advice {number}",
                hint=f"the last search found {len(known)}; clew advise {model} shows them",
            )
    keys = [known[number - 1][0] for number in numbers]
    with progress(f"changing {model}"):
        changed = found_again(model, keys, samples=samples, **how.options.values())
    _write(changed, output)


def _write(changed: Applied, output: Path) -> None:
    changed.save(output)
    for what in changed.what:
        note(f"applied: {what}")
    note(f"written: {output}")
    asked = {name: value for name, value in changed.settings.items() if name != "target"}
    if asked:
        note(f"compile it with {', '.join(f'{name}={value}' for name, value in asked.items())}")
