"""The `--help` of commands: their own options first, then compile options under a heading."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand

BUDGET_HELP: Final = "Limits on the resources of the file, its compilation and its runs."


class Command(TyperCommand):
    """A command whose options are listed under headings (`rich_help_panel`).

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
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                if is_argument:
                    record = (str(parameter.metavar), record[1])
                usual = "Arguments" if is_argument else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
