"""`clew report`: writes the explorer's page as one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from clew.cli import options as opt
from clew.cli.explore import asked_models
from clew.cli.options import Compiling, compiling
from clew.cli.output import note, progress

_BUILDS = ("a", "b")


@compiling
def report(
    model: opt.Model,
    model_b: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL_B", help="Model to compare with.", show_default=False),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File to write, such as report.html."),
    ] = Path("report.html"),
    for_b: Annotated[
        list[str],
        typer.Option(
            "--b", metavar="'KEY=VALUE ...'", help="How B is compiled; keys as in clew diff."
        ),
    ] = [],  # noqa: B006 (typer takes the default from here)
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Profile the models.")
    ] = True,
    errors: Annotated[
        bool, typer.Option("--errors/--no-errors", help="Compare layers' values with f32.")
    ] = False,
    *,
    how: Compiling,
) -> None:
    """Write the explorer's page as one HTML file, which opens anywhere, without a network.

    With two models, or one and --b "precision=bf16", the page holds both and their differences.
    """
    from clew.explorer.actions.table import ACTIONS  # noqa: PLC0415 - it imports the compiler
    from clew.explorer.builds.compiling import open_session  # noqa: PLC0415
    from clew.explorer.direct import compare  # noqa: PLC0415
    from clew.explorer.report import write_report  # noqa: PLC0415

    start = time.perf_counter()
    models, own = asked_models(model, model_b, how, for_b)
    measured = [name for name, wanted in (("profile", profile), ("errors", errors)) if wanted]
    with progress(f"reading {model}") as status:

        def say(text: str, fraction: float | None = None) -> None:
            status(text)

        sessions = {}
        for name, (path, options) in zip(_BUILDS, models, strict=False):
            sessions[name] = open_session(path, path.name, options, say, own=own)
            for action in measured:
                ACTIONS[action].run(sessions[name], {}, say)
        pair = list(sessions.values())
        diff = compare(pair[0], pair[1], say, time=profile) if len(pair) == 2 else None
        size = write_report(sessions, output, diff, say)
    seconds = time.perf_counter() - start
    note(f"written to {output}: {size / 1e6:.1f} MB in {seconds:.1f} s")
