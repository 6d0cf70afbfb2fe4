"""`clew machine`: the machine's properties, the costs of work on it, and the rates of a core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from clew.cli import options as opt
from clew.cli.output import emit_json, progress, stdout
from clew.machine.costs import Costs
from clew.machine.figures import figures_of
from clew.machine.kept import costs_file, forget, is_kept, keep, keep_rates, kept_rates
from clew.machine.rates import Rates
from clew.support.errors import InputError
from clew.support.tables import table

if TYPE_CHECKING:
    from clew.machine.target import Target

_HERE = "cpu"


def machine(
    target: Annotated[
        str, typer.Option("--target", metavar="NAME", help="Show another target by name.")
    ] = _HERE,
    again: Annotated[bool, typer.Option("--again", help="Measure costs and rates again.")] = False,
    defaults: Annotated[
        bool, typer.Option("--forget", help="Forget what was measured; use the defaults.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """Measure the costs of work on this machine, once, and show them next to the defaults.

    Measuring takes four seconds, on one thread of a machine that should be idle. All later
    compilations for this machine use the measured costs, and predictions the measured rates.
    """
    # `--help` must not import the compiler.
    from clew.machine.measure import measured_costs, measured_rates  # noqa: PLC0415
    from clew.machine.target import describe_host, host, target_of  # noqa: PLC0415

    here = target == _HERE
    if (again or defaults) and not here:
        raise InputError("I293", f"{target} is not this machine", hint="leave out --target")
    if again and defaults:
        raise InputError(
            "I293", "--again and --forget are mutually exclusive", hint="give only one"
        )
    identity = describe_host().identity
    if here and defaults:
        forget(identity)
    elif here:
        with progress("measuring") as say:
            if again or not is_kept(identity):
                keep(identity, measured_costs(say))
            if again or kept_rates(identity) is None:
                keep_rates(identity, measured_rates(say))
    host.cache_clear()  # it may hold the costs from before they were measured
    shown = target_of(target)
    kept = here and is_kept(identity)
    if json:
        emit_json(_record(shown, kept))
    else:
        _show(shown, kept)


def _rates(target: Target) -> tuple[Rates, bool]:
    from clew.machine.target import rates_of  # noqa: PLC0415 - it imports LLVM

    return rates_of(target)


def _record(target: Target, kept: bool) -> dict[str, Any]:
    return {
        **target.to_record(),
        "measured": kept,
        "file": str(costs_file()) if kept else None,
        "dot_products": [[u.data, u.weight, u.lanes] for u in target.dot_units],
        "tiles": [[u.data, u.weight, u.rows, u.columns, u.depth] for u in target.tile_units],
        "defaults": {f.name: f.default for f in figures_of(Costs)},
        "rates": _rates(target)[0].to_record(),
    }


def facts(target: Target) -> list[tuple[str, str]]:
    """Returns what a machine has: vectors, dot products, a matrix unit and caches, by name."""
    masks = ", masked loads and stores" if target.masked_memory else ""
    dots = ", ".join(
        f"{u.data} x {u.weight} ({u.group} in a lane{', in short pairs' if u.short_pairs else ''})"
        for u in target.dot_units
    )
    tiles = ", ".join(
        f"{u.data} x {u.weight} ({u.rows} x {u.columns} x {u.depth})" for u in target.tile_units
    )
    caches = ", ".join(
        f"{c.name} {c.capacity_bytes >> 10} KiB{' shared' if c.shared else ''}"
        for c in target.caches
    )
    return [
        ("vectors", f"{target.vector_registers} registers of {target.vector_bits} bits{masks}"),
        ("dot products", dots or "none"),
        ("matrix unit", tiles or "none"),
        ("caches", caches),
    ]


def _show(target: Target, kept: bool) -> None:
    out = stdout()
    out.print(Text(f"{target.name}: {target.cpu} ({target.triple})"))
    for name, text in facts(target):
        out.print(Text(f"  {name}: {text}"))
    rates, measured = _rates(target)
    out.print(_figures("cost", target.costs, measured=kept, otherwise="default"))
    out.print(_figures("rate", rates, measured=measured, otherwise="description"))
    if kept:
        out.print(Text(f"measured costs and rates are stored in {costs_file()}"))
    else:
        out.print(Text("these are default costs; clew machine measures this machine"))


def _figures(what: str, found: Costs | Rates, *, measured: bool, otherwise: str) -> Table:
    """Returns a table of figures next to their defaults, with their sources."""
    numbers = ("default", "in use")
    made = table(what, *numbers, "unit", "source", "meaning", right=numbers)
    for each in figures_of(type(found)):
        shown = (f"{number:g}" for number in (each.default, getattr(found, each.name)))
        source = "measured" if measured and each.probed else otherwise
        made.add_row(*map(Text, (each.name, *shown, each.unit, source, each.meaning)))
    return made
