"""`clew predict`: predicts the time of a model without running it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from clew.cli import options as opt
from clew.cli.options import Compiling, compiling, refuse_saved
from clew.cli.output import emit_json, note, progress, stdout
from clew.runtime.cache import default_cache
from clew.support.errors import ClewWarning, InputError, warn
from clew.support.files import read_bytes
from clew.support.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clew.predict import Forecast, KernelForecast, Predictor

_LAYERS_SHOWN = 2


@compiling
def predict(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The model's file.", show_default=False)
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--table", metavar="FILE", help="Table from clew dataset to train on."),
    ] = None,
    predictor: Annotated[
        Path | None,
        typer.Option("--predictor", metavar="FILE", help="Predictor written by --train."),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option("--train", metavar="FILE", help="Train on this table, and write to -o."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File that --train writes, such as predictor.clewp.",
        ),
    ] = None,
    lookup: Annotated[
        bool,
        typer.Option(
            "--lookup/--no-lookup", help="Use the measured time of kernels that are in the table."
        ),
    ] = True,
    kernels: Annotated[int, typer.Option(metavar="N", min=0, help="Kernels to show; 0: all.")] = 20,
    layers: Annotated[int, typer.Option(metavar="N", min=0, help="Layers to show; 0: all.")] = 10,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Predict the latency of a model, its layers and its kernels, without running it."""
    if train is not None:
        _train(train, output, str(how.options.target), json)
        return
    if model is None:
        raise typer.BadParameter("give a model, or --train", param_hint="MODEL")
    refuse_saved(model, "the prediction runs the passes again")
    if measured is not None and predictor is not None:
        raise InputError(
            "I187",
            "--table and --predictor are mutually exclusive",
            hint="give --table TABLE.parquet (from clew dataset) or --predictor PREDICTOR.clewp",
        )
    from clew.compiling.loading import loaded  # noqa: PLC0415 - it imports the compiler
    from clew.predict import forecast, load_predictors  # noqa: PLC0415 - it imports the compiler
    from clew.runtime.threads import thread_count  # noqa: PLC0415

    options = how.options
    count = thread_count(options.threads)
    with progress(f"reading {model}") as say:
        known: list[Predictor] = []
        if predictor is not None:
            known = load_predictors(predictor)
        elif measured is not None:
            say(f"training on {measured}")
            known = [_learned(measured, str(options.target), count)]
        else:
            _measure_once(str(options.target), say)
        say(f"running passes and schedules of {model}")
        module, rest = loaded(model, options)
        found = forecast(module, known, lookup=lookup, **rest.changed(threads=count))
    for line in found.notes:
        note(line)
    if json:
        emit_json({"model": str(model), **found.to_json()})
    else:
        _show(found, kernels, layers)


def _measure_once(target: str, say: Callable[[str], None]) -> None:
    """Measures the rates of this machine's cores, unless they are stored."""
    from clew.machine.kept import keep_rates, kept_rates  # noqa: PLC0415
    from clew.machine.measure import measured_rates  # noqa: PLC0415
    from clew.machine.target import HERE, describe_host  # noqa: PLC0415

    identity = describe_host().identity
    if target == HERE and kept_rates(identity) is None:
        rates = measured_rates(lambda what: say(f"measuring this machine: {what}"))
        try:
            keep_rates(identity, rates)
        except InputError as error:  # the prediction's notes say that it goes on without
            warn(ClewWarning(error.code, error.message, hint=error.hint))


def _learned(path: Path, target: str, threads: int) -> Predictor:
    """Returns the predictor trained on a table, from the cache if it was trained before.

    Errors: those of `clew.predict.train`.
    """
    from clew.machine.target import target_of  # noqa: PLC0415
    from clew.predict import load_predictors, train  # noqa: PLC0415
    from clew.predict.predictor import predictors_to_bytes  # noqa: PLC0415
    from clew.version import package_version  # noqa: PLC0415

    machine = target_of(target)
    try:
        digest = hashlib.blake2b(read_bytes(path), digest_size=20)
    except OSError:
        return train(path, machine, threads)  # raises the coded error
    digest.update(f"{machine.key}|{threads}|{package_version()}".encode())
    cache, key = default_cache(), digest.hexdigest()
    stored = cache.get(key)
    if stored is not None:
        return load_predictors(stored, str(path))[0]
    made = train(path, machine, threads)
    cache.put(key, predictors_to_bytes([made]))
    return made


def _train(path: Path, output: Path | None, target: str, json: bool) -> None:
    if output is None:
        raise typer.BadParameter("give -o PREDICTOR.clewp as well", param_hint="--train")
    from clew.machine.target import target_of  # noqa: PLC0415
    from clew.predict.predictor import save_predictors, thread_counts, train  # noqa: PLC0415

    machine = target_of(target)
    with progress(f"training on {path}") as say:
        made = []
        for count in thread_counts(path, machine):
            say(f"training on {path}: {count} thread{'s' * (count > 1)}")
            made.append(train(path, machine, count))
        save_predictors(output, made)
    note(f"saved to {output}")
    if json:
        emit_json({"predictor": str(output), "checked": [_checked(one) for one in made]})
        return
    numbers = ("threads", "networks", "kernels", "total off by", "at most",
               "kernels within 10 %", "of time")  # fmt: skip
    shown = table(
        *numbers, right=numbers, title="cross-validation, some networks held out at a time"
    )
    for one in made:
        e = one.errors
        shown.add_row(
            str(one.threads),
            str(one.networks),
            str(one.rows),
            f"{100 * e.total_mean:.1f} %",
            f"{100 * e.total_worst:.1f} %",
            f"{100 * e.within_10:.0f} %",
            f"{100 * e.within_10_of_time:.0f} %",
        )
    stdout().print(shown)


def _checked(one: Predictor) -> dict[str, Any]:
    e = one.errors
    return {
        "threads": one.threads,
        "networks": one.networks,
        "kernels": one.rows,
        "total_mean_error": e.total_mean,
        "total_worst_error": e.total_worst,
        "kernels_within_10_percent": e.within_10,
        "kernels_within_10_percent_of_time": e.within_10_of_time,
    }


def _show(found: Forecast, most_kernels: int, most_layers: int) -> None:
    console = stdout()
    count = found.threads
    console.print(
        Text(
            f"{found.total_ns / 1e6:.3f} ms a call on {count} thread{'s' * (count > 1)}, "
            f"{found.low_ns / 1e6:.3f} to {found.high_ns / 1e6:.3f} ms in "
            f"{100 * found.level:.0f} % of cases (predicted, not run)"
        )
    )
    console.print()
    looped = any(k.iterations != 1 for k in found.kernels)
    numbers = (*(("iterations", "µs/iteration") if looped else ()), "µs", "from", "to", "share")
    shown = table("kernel", "layers", "rule", *numbers, right=numbers)
    total = sum(k.ns for k in found.kernels) or 1.0
    ordered = sorted(found.kernels, key=lambda k: -k.ns)
    for k in ordered[: most_kernels or None]:
        more = len(k.layers) - _LAYERS_SHOWN
        names = ", ".join(k.layers[:_LAYERS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        sign = " (measured)" if k.looked_up else " (unfamiliar)" if k.unfamiliar else ""
        shown.add_row(
            Text(k.kernel),
            Text(names),
            Text(", ".join(k.rules) + sign),
            *(_of_iterations(k) if looped else ()),
            *(f"{ns / 1e3:.1f}" for ns in (k.ns, k.low_ns, k.high_ns)),
            f"{100 * k.ns / total:.1f} %",
        )
    console.print(shown)
    _hidden(len(found.kernels), most_kernels, "kernels")
    if most_layers != 0 or len(found.layers) <= 200:
        _show_layers(list(found.layers.items()), most_layers, total)


def _of_iterations(kernel: KernelForecast) -> tuple[str, str]:
    """Returns how often a kernel runs, and the time of each run."""
    if kernel.iterations is None:
        return "?", f"{kernel.ns / 1e3:.1f}"
    return str(kernel.iterations), f"{kernel.ns / max(kernel.iterations, 1) / 1e3:.1f}"


def _show_layers(layers: Sequence[tuple[str, float]], most: int, total: float) -> None:
    console = stdout()
    console.print()
    shown = table("layer", "µs, estimated", "share", right=("µs, estimated", "share"))
    for name, ns in sorted(layers, key=lambda pair: -pair[1])[: most or None]:
        shown.add_row(Text(name or "(none)"), f"{ns / 1e3:.1f}", f"{100 * ns / total:.1f} %")
    console.print(shown)
    _hidden(len(layers), most, "layers")


def _hidden(count: int, most: int, what: str) -> None:
    if most and count > most:
        stdout().print(Text(f"{count - most} more {what}: --{what} 0", style="dim"))
