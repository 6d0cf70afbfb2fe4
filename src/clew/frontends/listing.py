"""A model's file as readable data: layers in the file's order, with attributes and subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Value:
    """A named value: `type` as text, empty if the file does not declare it."""

    name: str
    type: str = ""


@dataclass
class Line:
    """A layer: its name in the import, and the facts of its node.

    `inputs` and `outputs` are names of values, empty for omitted ones; `parameters` are the types
    of inputs stored in the file. `path` are the modules around it that the exporter recorded.
    `bodies` are its subgraphs, or the function that it calls.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    parameters: Mapping[str, str]
    path: tuple[str, ...] = ()
    bodies: list[Body] = field(default_factory=list)


@dataclass
class Body:
    """A graph: `title` is the attribute that holds it, or the function's name.

    `imported` is false for a branch that is never taken.
    """

    title: str
    inputs: list[Value]
    outputs: list[Value]
    parameters: list[Value]
    lines: list[Line]
    imported: bool = True


@dataclass(frozen=True)
class Listing:
    """A model: `about` is a line about the file's producer. `others` are further graphs that a file
    offers, such as those of other signatures.
    """

    about: str
    main: Body
    others: list[Body] = field(default_factory=list)

    @property
    def lines(self) -> Iterator[Line]:
        """All layers; inner ones follow the layer that contains them."""
        stack = [iter(body.lines) for body in (*reversed(self.others), self.main)]
        while stack:
            line = next(stack[-1], None)
            if line is None:
                stack.pop()
                continue
            yield line
            stack.append(inner for body in line.bodies for inner in body.lines)
