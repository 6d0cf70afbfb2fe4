"""The `clew` command.

Exit codes: 0; 1 if the work failed, with one coded error on stderr; 2 for wrong usage.

A command's module is imported when the command is named: `clew --help` needs none of them.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

import clew
from clew.cli.help import BUDGET_HELP, Command, with_help_all
from clew.cli.notices import show_error, show_warnings
from clew.cli.streams import open_streams
from clew.cli.user_code import of_user
from clew.support.budgets import Budgets, read_budgets, set_default
from clew.support.interrupts import lasting_interrupts, repeated_interrupts


class _Place(NamedTuple):
    """Where a command is: its module in this folder, and the function or the group in it; and the
    first line of its help.
    """

    module: str
    name: str
    help: str


_GROUPS: Final = {
    "Run": {
        "run": _Place("run", "run", "Run a model, compiled now or saved, and show its outputs."),
        "generate": _Place("generate", "generate", "Continue a text with a language model."),
        "chat": _Place("chat", "chat", "Talk with a language model."),
        "serve": _Place(
            "serve",
            "serve",
            "Serve a language model or a text encoder over HTTP, in the form of OpenAI's API.",
        ),
        "map": _Place(
            "map",
            "map_",
            "Run a model on each row of Parquet files, and write the results as Parquet files.",
        ),
    },
    "Look": {
        "trace": _Place(
            "tracing", "trace", "Show how layers become kernels; without options, an overview."
        ),
        "explore": _Place(
            "explore",
            "explore",
            "Show a model's layers, passes, kernels, instructions and times in a web page.",
        ),
        "report": _Place(
            "report",
            "report",
            "Write the explorer's page as one HTML file, which opens anywhere, without a network.",
        ),
        "correlate": _Place(
            "correlate",
            "correlate",
            "List kernels, views and host steps of the executor, with their operators and layers.",
        ),
        "tap": _Place(
            "tap",
            "tap",
            "Read values of layers in a run; without --layer, list which are in memory.",
        ),
        "ops": _Place(
            "catalog",
            "ops",
            "List graph operators, or ONNX operators and their support; or describe one operator.",
        ),
    },
    "Measure": {
        "bench": _Place(
            "bench",
            "bench",
            "Time a model against other engines, and each kernel against the machine.",
        ),
        "profile": _Place(
            "profile",
            "profile",
            "Profile a model's runs by kernel, layer, operator and line of code.",
        ),
        "diff": _Place(
            "diff", "diff", "Compare two builds layer by layer: kernels, time, layouts, numerics."
        ),
        "bisect": _Place(
            "bisect", "bisect", "Find the layer, pass, node or kernel that causes a wrong result."
        ),
        "precision": _Place(
            "precision",
            "precision_",
            "Find the layers that cause the error of narrow products, and those to keep in f32.",
        ),
        "predict": _Place(
            "predict",
            "predict",
            "Predict the latency of a model, its layers and its kernels, without running it.",
        ),
        "dataset": _Place(
            "dataset",
            "dataset",
            "Measure kernels of models and of random networks into a Parquet table.",
        ),
    },
    "Change": {
        "quantize": _Place(
            "quantize",
            "quantize",
            "Quantize the products of a model to 8-bit integers by calibration "
            "data, or only its weights, to 8 or 4 bits.",
        ),
        "advise": _Place(
            "advise",
            "advise",
            "Find changes to a model, its export or its compilation that make it faster.",
        ),
        "tune": _Place(
            "tune",
            "tune",
            "Search the choices of a model's kernels by measurement, and keep the best.",
        ),
        "place": _Place(
            "place",
            "place",
            "Find which parts of a model run fastest on which backend, and keep the result.",
        ),
        "extract": _Place(
            "extract",
            "extract",
            "Extract a part of a model, with real inputs and expected outputs.",
        ),
        "partition": _Place(
            "partition", "partition", "Split a model into parts that run one after the other."
        ),
    },
    "Ship": {
        "compile": _Place(
            "compile", "compile_", "Compile a model, save or export it, and list its kernels."
        ),
        "cache": _Place("storage", "app", "Show, prune, carry or clear the disk cache."),
        "machine": _Place(
            "machine",
            "machine",
            "Measure the costs of work on this machine, once, and show them next to the defaults.",
        ),
        "doctor": _Place(
            "doctor",
            "doctor",
            "Check the installation: machine, folders, versions, extras, and a self-test.",
        ),
        "docs": _Place("docs", "docs", "Open the documentation, which needs no network."),
    },
}
"""The commands, by purpose."""
_COMMANDS: Final = {name: place for group in _GROUPS.values() for name, place in group.items()}


class _Commands(TyperGroup):
    """The commands, each of which is imported when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names of the commands, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command; None if there is none of that name."""
        return command(cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the names of the commands and their first lines, group by group."""
        for heading, places in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, place.help) for name, place in places.items()])


def command(name: str) -> Any:
    """Imports a command."""
    place = _COMMANDS[name]
    found = getattr(importlib.import_module(f"clew.cli.{place.module}"), place.name)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(**_SHARED)
        alone.command(name, cls=Command)(with_help_all(found))
        found = alone
        made = typer.main.get_command(found)
        made.name = name
        return made
    return typer.main.get_group(found)


_SHARED: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    name="clew",
    cls=_Commands,
    help="Compile models to native code, and trace every layer down to its instructions.",
    no_args_is_help=True,
    **{**_SHARED, "add_completion": True},
)
_debug = False


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    budget: Annotated[
        list[str], typer.Option("--budget", metavar="NAME=NUMBER|strict", help=BUDGET_HELP)
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
        show_error(error)
        return 1


def _refuse_foreign(error: SystemExit) -> None:
    """Errors: I068 if a user's code has asked to exit, not the command."""
    coded = of_user(error)
    if coded is not None:
        raise coded from error
