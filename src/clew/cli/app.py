"""The `clew` command.

Exit codes: 0; 1 if the work failed, with one coded error on stderr; 2 for wrong usage.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli import storage
from clew.cli.arguments import need_sizes
from clew.cli.bench import bench
from clew.cli.bisect import bisect
from clew.cli.catalog import ops
from clew.cli.compare import peer_of
from clew.cli.correlate import correlate
from clew.cli.dataset import dataset
from clew.cli.diff import diff
from clew.cli.explore import explore
from clew.cli.extract import extract
from clew.cli.help import Command
from clew.cli.machine import machine
from clew.cli.options import (
    SAVED_SUFFIX,
    Compiling,
    build_summary,
    compile_model,
    compiling,
    has_kernels,
    model_inputs,
    open_model,
)
from clew.cli.output import (
    describe,
    emit_json,
    flat,
    kernel_facts,
    kernels_table,
    note,
    outputs_table,
    region_facts,
    regions_table,
    save_arrays,
    show_warnings,
    stderr,
    stdout,
)
from clew.cli.partition import partition
from clew.cli.place import place
from clew.cli.precision import precision_
from clew.cli.predict import predict
from clew.cli.profile import profile
from clew.cli.quantize import quantize
from clew.cli.report import report
from clew.cli.streams import open_streams
from clew.cli.tap import tap
from clew.cli.tracing import trace
from clew.cli.tune import tune
from clew.cli.user_code import of_user
from clew.support.budgets import Budgets, read_budgets, set_default
from clew.support.difference import relative_error
from clew.support.errors import ClewError, CompileError
from clew.support.exhausted import exhausted
from clew.support.interrupts import lasting_interrupts, repeated_interrupts

app = typer.Typer(
    name="clew",
    help="Compile models to native code, and trace every layer down to its instructions.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_debug = False


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    budget: Annotated[
        list[str], typer.Option("--budget", metavar="NAME=NUMBER", help=opt.BUDGET_HELP)
    ] = [],  # noqa: B006  (typer reads it)
) -> None:
    global _debug
    _debug = debug
    set_default(Budgets())
    set_default(read_budgets(budget))
    if version:
        print(f"clew {clew.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.BadParameter("no command", param_hint="COMMAND")


@compiling
def run(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    repeat: Annotated[
        int, typer.Option(metavar="N", min=1, help="Timed runs; prints their median.")
    ] = 1,
    kernels: Annotated[bool, typer.Option("--kernels", help="Time every kernel.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare-onnxruntime", help="Compare with ONNX Runtime's outputs.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="X", help="Largest relative error that the comparison accepts.")
    ] = 1e-3,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FOLDER", help="Folder to write the outputs to, as .npy files."
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Run a model, compiled now or saved, and show its outputs."""
    # Checked before compiling; the frontend reports a missing file.
    peer = peer_of(model) if compare and os.path.isfile(model) else None
    compiled = open_model(model, how)
    arrays = model_inputs(compiled.model, inputs, random, seed, compiled.shapes)
    results = flat(compiled.model.run(arrays))  # builds a model with named sizes
    report: dict[str, Any] = {
        "model": str(model),
        "outputs": [describe(n, v) for n, v in results.items()],
        "seconds": {**compiled.seconds, "run": _time(compiled.model, arrays, repeat)},
    }
    if kernels:
        times = compiled.model.time_kernels(arrays)
        report["kernels"] = [
            {**kernel_facts(t.kernel), "median_ns": t.median_ns, "share": t.share} for t in times
        ]
    if peer is not None:
        theirs = flat(peer.outputs(arrays))
        report["onnxruntime"] = {n: relative_error(results.get(n), v) for n, v in theirs.items()}
    if save is not None:
        save_arrays(save, results)
    if json:
        emit_json(report)
    else:
        _show_run(report, build_summary(compiled))
    worst = max(report.get("onnxruntime", {}).values(), default=0.0)
    if not worst <= tolerance:
        raise CompileError(
            "C091",
            f"outputs differ from ONNX Runtime's by {worst:.2g}, more than {tolerance:.2g}",
            hint="clew bisect MODEL finds the layer, pass or kernel that causes the error",
        )


def _time(model: Any, arrays: dict[str, Any], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        model.run(arrays)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def _show_run(report: dict[str, Any], summary: str) -> None:
    console = stdout()
    console.print(outputs_table(report["outputs"]))
    if "kernels" in report:
        console.print()
        console.print(kernels_table(report["kernels"]))
    for name, error in report.get("onnxruntime", {}).items():
        console.print(Text(f"{name}: max |error| / max |output| against ONNX Runtime: {error:.2g}"))
    note(f"{summary}; one run {report['seconds']['run'] * 1e3:.3f} ms")


@compiling
def compile_(
    model: opt.Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to save to, such as model.clew."),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Compile a model, save it, and list its kernels."""
    if output is not None and output.suffix != SAVED_SUFFIX:
        raise typer.BadParameter(
            f"the name of a saved model ends in {SAVED_SUFFIX}", param_hint="-o"
        )
    compiled = compile_model(model, how)
    if not has_kernels(compiled):
        need_sizes(compiled.model)
    facts = [kernel_facts(k) for k in compiled.model.kernels]
    regions = region_facts(compiled.model)
    if output is not None:
        compiled.model.save(output)
        note(f"saved to {output}")
    if json:
        shown = {"model": str(model), "kernels": facts, "regions": regions}
        emit_json({**shown, "seconds": compiled.seconds})
    else:
        stdout().print(kernels_table(facts))
        if regions:
            stdout().print()
            stdout().print(regions_table(regions))
    note(build_summary(compiled))


_COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    "run": run,
    "compile": compile_,
    "bench": bench,
    "diff": diff,
    "precision": precision_,
    "profile": profile,
    "quantize": quantize,
    "bisect": bisect,
    "dataset": dataset,
    "predict": predict,
    "place": place,
    "tune": tune,
    "trace": trace,
    "correlate": correlate,
    "tap": tap,
    "extract": extract,
    "partition": partition,
    "explore": explore,
    "report": report,
    "ops": ops,
    "machine": machine,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, cls=Command)(_command)
app.add_typer(storage.app)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with its exit code."""
    open_streams()
    show_warnings()
    with lasting_interrupts() as check, repeated_interrupts():
        code = _code(arguments, check)
    sys.exit(code)


def _code(arguments: list[str] | None, check: Callable[[], None]) -> Any:
    """Runs a command, shows its error, and returns its exit code. `check` raises an interrupt that
    came while it ran.
    """
    try:
        try:
            app(arguments)
        except SystemExit as error:
            _refuse_foreign(error)
            if error.code:
                check()
            sys.stdout.flush()
            return error.code
    except BrokenPipeError:  # the reader of the output has seen enough
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # users' code may raise anything
        try:
            check()  # libraries make other errors of an interrupt
        except KeyboardInterrupt:
            return 130
        if _debug:
            traceback.print_exc()
        coded = error if isinstance(error, ClewError) else exhausted(error) or of_user(error)
        stderr().print(_internal(error) if coded is None else _rendered(coded))
        return 1


def _refuse_foreign(error: SystemExit) -> None:
    """Errors: I068 if a user's code has asked to exit, not the command."""
    coded = of_user(error)
    if coded is not None:
        raise coded from error


def _internal(error: BaseException) -> Text:
    text = f"internal error: {type(error).__name__}: {error}"
    hint = "  hint: this is a bug in clew; clew --debug COMMAND shows the traceback"
    return Text.assemble((text, "red"), "\n", hint)


def _rendered(error: ClewError) -> Text:
    first, _, rest = error.text("cli").partition("\n")
    return Text.assemble((first, "bold red"), "\n" if rest else "", rest)
