"""The report of calls that stay in eager, with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from clew.frontends.torch.places import line_of, module_of, op_name
from clew.support.errors import ClewError


@dataclass(frozen=True)
class Left:
    """A call that runs in eager: its operator, the path of its module, the line of the user's code
    (`model.py:12`, and its text), and the reason with its code.
    """

    op: str
    module: str
    where: str
    code: str
    reason: str

    def __str__(self) -> str:
        place = ", ".join(p for p in (self.module, self.where) if p)
        return f"{self.op}{f' ({place})' if place else ''}: {self.reason}"


def left_of(node: fx.Node, error: ClewError) -> Left:
    """Returns the entry for a node that clew refuses."""
    file, line, text = line_of(node)
    where = f"{file}:{line}  {text}".rstrip() if file else ""
    return Left(op_name(node), module_of(node)[0], where, error.code, error.message)
