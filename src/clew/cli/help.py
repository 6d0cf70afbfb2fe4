"""The `--help` of commands shows the common options; `--help-all` shows all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

BUDGET_HELP: Final = (
    "Limits on the resources of the file, its compilation and its runs, such as run_bytes=2g; "
    "strict: limits for untrusted files."
)


class Panel(str):
    """The heading of a group of options (`rich_help_panel`). `--help` shows only the usual ones."""

    usual: tuple[str, ...]
    __slots__ = ("usual",)

    def __new__(cls, heading: str, *usual: str) -> Panel:
        """Makes a heading; `usual` holds options by their first name, such as `--threads`."""
        made = super().__new__(cls, heading)
        made.usual = usual
        return made


class Command(TyperCommand):
    """A command whose options are listed under headings.

    Arguments are shown as `MODEL [B]`, without braces and types.
    """

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Writes the line of usage."""
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = f"{parameter.metavar}{'...' if parameter.nargs == -1 else ''}"
                pieces.append(name if parameter.required else f"[{name}]")
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, group by group."""
        shows_all = ctx.meta.get(_ALL, False)
        for heading, records, left_out in self._groups(ctx, shows_all):
            with formatter.section(heading):
                if records:
                    formatter.write_dl(records)
                if left_out:
                    formatter.write_text(f"{left_out} more: {ctx.command_path} --help-all")

    def _groups(
        self, ctx: Any, shows_all: bool
    ) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        left_out: dict[str, int] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            if is_argument:
                record = (str(parameter.metavar), record[1])
            usual = "Arguments" if is_argument else "Options"
            heading = getattr(parameter, "rich_help_panel", None) or usual
            records = groups.setdefault(heading, [])
            if _is_unusual(parameter) and not shows_all:
                left_out[heading] = left_out.get(heading, 0) + 1
            else:
                records.append(record)
        for heading, records in groups.items():
            if records or heading in left_out:
                yield heading, records, left_out.get(heading, 0)


_ALL: Final = "clew.help_all"


def _is_unusual(parameter: Any) -> bool:
    panel = getattr(parameter, "rich_help_panel", None)
    return isinstance(panel, Panel) and parameter.opts[0] not in panel.usual


def _show_all(context: typer.Context, given: bool) -> None:
    if given and not context.resilient_parsing:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


def with_help_all(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the option `--help-all` if its `--help` omits options."""
    signature = inspect.signature(command, eval_str=True)
    if not any(map(_has_unusual, signature.parameters.values())):
        return command
    shown = typer.Option(
        "--help-all", is_eager=True, callback=_show_all, help="Show all options and exit."
    )
    added = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, shown]
    )

    @functools.wraps(command)
    def called(*, help_all: bool, **values: Any) -> None:
        command(**values)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [each.replace(kind=keyword) for each in signature.parameters.values()]
    called.__signature__ = inspect.Signature([*own, added])  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in (*own, added)}
    return called


def _has_unusual(parameter: inspect.Parameter) -> bool:
    told = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(getattr(each, "rich_help_panel", None), Panel) for each in told)
