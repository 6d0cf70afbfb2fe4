"""Prints a loop nest, one statement or inlined operator a line, and says whose work each line is.

These lines are what debug locations name: an instruction leads to a line here, the line to te
stages, and those to graph nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Nest,
    Prefetch,
    Stmt,
    Store,
    TileProduct,
    expressions,
)
from clew.te.expr import Inlined, Scalar, render
from clew.te.tensor import substitute

_ASSIGN = {
    "": "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min=", "and": "&=", "or": "|=",
}  # fmt: skip
_WORD = {
    "serial": "for",
    "parallel": "parallel",
    "vector": "vector",
    "unroll": "unroll",
    "dot": "dot",
}


@dataclass
class PrintedNest:
    """A nest's text. Lines count from 1; `line_of` maps ids of statements and inlined expressions.

    `stages[n - 1]` names the te stages whose work line n is: one for a store or an inlined
    operator, all that a loop holds for a loop.
    """

    lines: list[str] = field(default_factory=list)
    stages: list[tuple[str, ...]] = field(default_factory=list)
    line_of: dict[int, int] = field(default_factory=dict)
    _held: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def held(self, stmt: Stmt) -> tuple[str, ...]:
        """Returns the stages whose work a statement holds."""
        return _stages(stmt, self._held)

    @property
    def text(self) -> str:
        """The whole text."""
        return "\n".join(self.lines) + "\n"

    def add(self, key: int, depth: int, text: str, stages: tuple[str, ...]) -> None:
        """Adds a line."""
        self.lines.append("  " * depth + text)
        self.stages.append(stages)
        self.line_of[key] = len(self.lines)


def print_nest(nest: Nest) -> PrintedNest:
    """Returns the nest's text with its places."""
    printed = PrintedNest()
    every = printed.held(nest.body)
    params = ", ".join(f"{b.name}: {_type(b)}" for b in (*nest.inputs, *nest.outputs))
    printed.add(id(nest), 0, f"kernel {nest.name}({params}):", every)
    for buffer in nest.temporaries:
        printed.add(id(buffer), 1, f"{buffer.scope} {buffer.name}: {_type(buffer)}", every)
    _print(nest.body, 1, printed)
    return printed


def _type(buffer: Buffer) -> str:
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _stages(stmt: Stmt, known: dict[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the stages whose work a statement holds, in order; remembered by statement."""
    found = known.get(id(stmt))
    if found is None:
        names: dict[str, None] = {}
        for expr in expressions(stmt):
            names.update(dict.fromkeys(inlined.stage for inlined in _inlined(expr)))
        match stmt:
            case For() | If() | TileProduct():
                names.update(dict.fromkeys(_stages(stmt.body, known)))
            case Block():
                for child in stmt.stmts:
                    names.update(dict.fromkeys(_stages(child, known)))
            case Store() | Prefetch():
                names[stmt.stage] = None
        found = known[id(stmt)] = tuple(names)
    return found


def _inlined(expr: Scalar) -> list[Inlined]:
    """Returns the inlined operators in an expression, producers first, each once."""
    order: list[Inlined] = []
    seen: set[int] = set()
    stack: list[tuple[Scalar, bool]] = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            if isinstance(node, Inlined):
                order.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Inlined):
            stack.append((node, True))
        stack.extend((c, False) for c in reversed(node.children))
    return order


class _Name(Scalar):
    """Stands for an inlined value that has a line of its own."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self.dtype = dtype


def _print(stmt: Stmt, depth: int, out: PrintedNest) -> None:
    match stmt:
        case Block():
            for child in stmt.stmts:
                _print(child, depth, out)
        case For():
            head = f"{_WORD[stmt.kind]} {stmt.name} in {stmt.extent}:"
            out.add(id(stmt), depth, head, out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case If():
            cond = _lines(stmt.cond, depth, out)
            out.add(id(stmt), depth, f"if {cond}:", out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case Store():
            value = _lines(stmt.value, depth, out)
            place = f"{stmt.buffer.name}[{', '.join(map(render, stmt.indices))}]"
            text = f"{place} {_ASSIGN[stmt.combiner]} {value}"
            if stmt.nontemporal:
                text = f"nontemporal {text}"
            out.add(id(stmt), depth, f"{text}  # {stmt.stage}", (stmt.stage,))
        case TileProduct():
            head = f"tiles {stmt.rows} x {stmt.columns} x {stmt.depth}:"
            out.add(id(stmt), depth, head, out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case Prefetch():
            place = f"{stmt.buffer.name}[{', '.join(map(render, stmt.indices))}]"
            out.add(id(stmt), depth, f"prefetch {place}", (stmt.stage,))


def _lines(expr: Scalar, depth: int, out: PrintedNest) -> str:
    """Prints the inlined operators of an expression, a line each; returns what is left as text."""
    names: dict[int, Scalar] = {}
    for inlined in _inlined(expr):
        name = f"%{len(names)}"
        value = render(substitute(inlined.value, names))
        out.add(id(inlined), depth, f"{name} = {value}  # {inlined.stage}", (inlined.stage,))
        names[id(inlined)] = _Name(name, inlined.dtype)
    return render(substitute(expr, names))
