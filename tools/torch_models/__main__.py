"""Whole PyTorch models through `from_torch` and `torch.compile`, compared with eager
(docs/torch.md).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Annotated

import typer

from torch_models import catalog
from torch_models.runner import SECONDS, Row, Runner

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
Names = Annotated[
    list[str] | None,
    typer.Argument(help="networks or families of tools/exports; by default, those of the table"),
]


@app.command(name="list")
def list_(names: Names = None) -> None:
    """Print each model's family, name, and inputs."""
    for entry in catalog.selected(names or []):
        shapes = ", ".join(f"{i.name}{list(i.shape)}" for i in entry.inputs)
        print(f"{entry.family:14} {entry.name:28} {shapes}")


@app.command()
def check(
    names: Names = None,
    sizes: Annotated[str, typer.Option(help="static, dynamic or both")] = "both",
    way: Annotated[
        str, typer.Option(help="export (from_torch) or compile (torch.compile)")
    ] = "export",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per line")] = False,
    seconds: Annotated[float, typer.Option(help="time limit for each model")] = SECONDS,
) -> None:
    """Compare clew with eager, at fixed and at free sizes, with new values at every run.

    The exit code is 1 if any model disagrees, fails or is refused.
    """
    try:
        chosen = catalog.selected(names or [])
    except KeyError as error:
        raise typer.BadParameter(f"no network or family {error}") from None
    runner, rows = Runner(seconds), list[Row]()
    try:
        for number, entry in enumerate(chosen, 1):
            for how in ("static", "dynamic"):
                if sizes in (how, "both") and (how == "static" or entry.is_free):
                    rows.append(runner.check(entry.name, way, how))
                    _tell(rows[-1], as_json, f"{number}/{len(chosen)}")
    finally:
        runner.close()
    counts = Counter(row.status for row in rows)
    print(", ".join(f"{n} {status}" for status, n in counts.most_common()), file=sys.stderr)
    raise typer.Exit(0 if set(counts) <= {"agrees", "rounding", "torch fails"} else 1)


def _tell(row: Row, as_json: bool, progress: str) -> None:
    found = row.result
    if as_json:
        text = json.dumps({"name": row.name, "way": row.way, "sizes": row.how, "status": row.status,
                           "why": row.why, **found})  # fmt: skip
    elif found:
        how = f"{row.how} ({found['spec']})" if found["spec"] else row.how
        fixed = f"fixed: {', '.join(found['fixed'])}" if found["fixed"] else ""
        left = f" in eager: {'; '.join(found['left'])}" if found["left"] else ""
        counted = "nodes" if row.way == "export" else f"kernels, {found['programs']} programs"
        seconds = f"{found['export_s']:6.1f} {found['compile_s']:6.1f} s"
        text = (
            f"{progress:>7} {row.name:30} {how:15} {row.status:10} {found['error']:8.1e} "
            f"{found['nodes']:5} {counted} {seconds} {row.why}{fixed}{left}"
        )
    else:
        text = f"{progress:>7} {row.name:30} {row.how:15} {row.status:10} {row.why[:600]}"
    print(text, flush=True)


if __name__ == "__main__":
    app()
