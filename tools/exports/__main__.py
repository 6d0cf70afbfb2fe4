"""Models as exporters write them, and clew compared with ONNX Runtime on them (docs/exports.md)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from exports import optimized, packages, store
from exports.comparing import Result
from exports.entries import EXPORTERS, Entry
from exports.runner import CHECK_SECONDS, Runner
from exports.store import NotExported, Variant

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
Names = Annotated[list[str] | None, typer.Argument(help="networks or families; all if none")]
Exporter = Annotated[str, typer.Option(help="dynamo, torchscript or both")]
Dynamic = Annotated[bool, typer.Option("--dynamic", help="named dimensions are free")]


@app.command(name="list")
def list_(names: Names = None) -> None:
    """Print each network's family, name, and inputs."""
    for entry in _selected(names):
        shapes = ", ".join(f"{i.name}{list(i.shape)}" for i in entry.inputs)
        print(f"{entry.family:14} {entry.name:28} {shapes}")


@app.command()
def make(names: Names = None, exporter: Exporter = "both", dynamic: Dynamic = False) -> None:
    """Export networks into .cache/exports; print the files."""
    failed, runs = False, Runner()
    for which in _variants(names, exporter, dynamic):
        try:
            print(runs.exported(which), flush=True)
        except NotExported as error:
            failed = True
            print(f"{which}: {error}", file=sys.stderr)
    runs.close()
    raise typer.Exit(1 if failed else 0)


@app.command()
def check(
    names: Names = None,
    exporter: Exporter = "both",
    dynamic: Dynamic = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
    seconds: Annotated[float, typer.Option(help="for each model")] = CHECK_SECONDS,
) -> None:
    """Compare clew with ONNX Runtime, one thread each, with new values at every call.

    Exit code 1 if any model disagrees, fails, or was built again for new values.
    """
    good, runs = True, Runner()
    if not as_json:
        print(_HEADING)
    for which in _variants(names, exporter, dynamic):
        row = runs.checked(which, seconds)
        good &= (
            row.result.status in (*_RIGHT, "not exported", "peer fails")
            and not row.result.built_later
        )
        text = json.dumps(row.as_json()) if as_json else _line(str(row.variant), row.result)
        print(text, flush=True)
    runs.close()
    raise typer.Exit(0 if good else 1)


@app.command(name="optimized")
def optimized_(
    models: Annotated[
        list[str] | None, typer.Argument(help="of the zoo; the quick ones if none")
    ] = None,
    variant: Annotated[list[str] | None, typer.Option(help="such as qdq+all; all if none")] = None,
    folder: Annotated[Path | None, typer.Option(help="where the files stay")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """Compare clew with ONNX Runtime on models that its optimizer and quantizers saved.

    Exit code 1 if any disagrees, fails or is refused.
    """
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        try:
            chosen = list(optimized.cases(models or [], variant or []))
        except KeyError as error:
            raise typer.BadParameter(f"no model or variant {error}") from None
        for case in chosen:
            found = optimized.checked(case, place)
            good &= found.status in (
                *_RIGHT,
                "one step",
                "rounds",
                "not made",
                "peer fails",
            )
            if as_json:
                print(json.dumps({"case": str(case), **found.as_json()}), flush=True)
                continue
            why = (found.error.splitlines() or [""])[0]
            times = f"{found.later_s * 1e3:9.2f} {found.peer_later_s * 1e3:9.2f} ms"
            print(
                f"{case!s:36} {found.status:10} {found.difference:8.1e} {times} {why}", flush=True
            )
    raise typer.Exit(0 if good else 1)


@app.command(name="packages")
def packages_(
    names: Annotated[list[str] | None, typer.Argument(help="parts of names; all if none")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """Compare clew with ONNX Runtime on trained models that ship inside Python packages.

    Exit code 1 if any disagrees, fails, is refused, or was built again for new values.
    """
    good = True
    if not as_json:
        print(_HEADING)
    for model in packages.MODELS:
        if names and not any(name in model.name for name in names):
            continue
        try:
            found = packages.checked(model)
        except packages.NotThere as error:
            print(f"{model.name:44} left out     {error}", file=sys.stderr)
            continue
        good &= found.status in _RIGHT and not found.built_later
        if as_json:
            print(json.dumps({"model": model.name, **found.as_json()}), flush=True)
        else:
            print(_line(model.name, found), flush=True)
    raise typer.Exit(0 if good else 1)


_RIGHT = ("agrees", "noisy", "nearer", "right", "by node")
_HEADING = (
    f"{'model':44} {'status':12} {'error':>8} {'compile':>8} {'first':>8} {'later ms':>9} "
    f"{'ORT ms':>9} {'ratio':>6} {'built':>5}"
)


def _line(name: str, found: Result) -> str:
    if found.status not in (*_RIGHT, "differs"):
        return f"{name:44} {found.status:12} {found.error.splitlines()[0]}"
    return (
        f"{name:44} {found.status:12} {found.difference:8.1e} {found.compile_s:7.1f}s "
        f"{found.first_s:7.2f}s {found.later_s * 1e3:9.2f} {found.peer_later_s * 1e3:9.2f} "
        f"{found.ratio:6.2f} {found.built_later:3}/{found.later} {found.error}"
    )


def _selected(names: list[str] | None) -> list[Entry]:
    try:
        return store.selected(names or [])
    except KeyError as error:
        known = ", ".join(store.families())
        raise typer.BadParameter(f"no network or family {error}; families: {known}") from None


def _variants(names: list[str] | None, exporter: str, dynamic: bool) -> list[Variant]:
    if exporter not in (*EXPORTERS, "both"):
        raise typer.BadParameter(f"--exporter {exporter}: dynamo, torchscript or both")
    chosen = EXPORTERS if exporter == "both" else (exporter,)
    return [
        Variant(entry, each, dynamic)
        for entry in _selected(names)
        for each in chosen
        if each in entry.exporters and (entry.is_free or not dynamic)
    ]


if __name__ == "__main__":
    app()
