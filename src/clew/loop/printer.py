"""Prints a loop nest, one statement or inlined operator per line, and attributes each line to
stages.

Debug locations name these lines: an instruction leads to a line here, the line to te stages, and
those to graph nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clew.loop.ir import (
    Barrier,
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
from clew.te.expr import Inlined, Scalar, render, shared_parts
from clew.te.walk import post_order

_ASSIGN = {
    "": "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min=", "and": "&=", "or": "|=",
}  # fmt: skip
_WORD = {
    "serial": "for",
    "parallel": "parallel",
    "vector": "vector",
    "unroll": "unroll",
    "dot": "dot",
    "block": "block",
    "thread": "thread",
}


@dataclass
class PrintedNest:
    """The text of a nest. Lines count from 1; `line_of` maps ids of statements and inlined
    expressions.

    `stages[n - 1]` names the te stages that line n belongs to: one for a store or an inlined
    operator, all those inside it for a loop.
    """

    lines: list[str] = field(default_factory=list)
    stages: list[tuple[str, ...]] = field(default_factory=list)
    line_of: dict[int, int] = field(default_factory=dict)
    _held: dict[int, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def held(self, stmt: Stmt) -> tuple[str, ...]:
        """Returns the stages inside a statement."""
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
    """Returns the nest's text with its line numbers."""
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
    """Returns the stages inside a statement, in order; cached by statement."""
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
    return [node for node in _named(expr, set()) if isinstance(node, Inlined)]


def _named(expr: Scalar, shared: set[int]) -> list[Scalar]:
    """Returns the parts of an expression that get a separate line: inlined operators, and those in
    `shared` by id, producers first, each once.
    """
    return [n for n in post_order(expr) if isinstance(n, Inlined) or id(n) in shared]


def _print(stmt: Stmt, depth: int, out: PrintedNest) -> None:
    match stmt:
        case Block():
            for child in stmt.stmts:
                _print(child, depth, out)
        case For():
            word = f"{_WORD[stmt.kind]}.{stmt.axis}" if stmt.axis else _WORD[stmt.kind]
            head = f"{word} {stmt.name} in {stmt.size}:"
            out.add(id(stmt), depth, head, out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case If():
            cond = _lines(stmt.cond, depth, out, out.held(stmt))
            out.add(id(stmt), depth, f"if {cond}:", out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case Store():
            value = _lines(stmt.value, depth, out, (stmt.stage,))
            place = f"{stmt.buffer.name}[{', '.join(map(render, stmt.indices))}]"
            text = f"{place} {_ASSIGN[stmt.combiner]} {value}"
            if stmt.nontemporal:
                text = f"nontemporal {text}"
            out.add(id(stmt), depth, f"{text}  # {stmt.stage}", (stmt.stage,))
        case Barrier():
            out.add(id(stmt), depth, "barrier", ())
        case TileProduct():
            head = f"tiles {stmt.rows} x {stmt.columns} x {stmt.depth}:"
            out.add(id(stmt), depth, head, out.held(stmt))
            _print(stmt.body, depth + 1, out)
        case Prefetch():
            place = f"{stmt.buffer.name}[{', '.join(map(render, stmt.indices))}]"
            out.add(id(stmt), depth, f"prefetch {place}", (stmt.stage,))


def _lines(expr: Scalar, depth: int, out: PrintedNest, stages: tuple[str, ...]) -> str:
    """Prints the inlined operators of an expression, one per line, and large parts that it uses
    more than once (`stages` is for parts outside inlined operators); returns the remaining
    expression as text.
    """
    parts = shared_parts(expr, lines=True)
    shared = {id(part) for part in parts}
    owners = _owners(expr, stages) if parts else {}
    names: dict[int, str] = {}
    count = 0
    for node in _named(expr, shared):
        value = render(node.value if isinstance(node, Inlined) else node, names)
        if isinstance(node, Inlined):
            name = f"%{count}"
            out.add(id(node), depth, f"{name} = {value}  # {node.stage}", (node.stage,))
            count += 1
        else:
            name = f"%t{len(names) - count}"
            out.add(id(node), depth, f"let {name} = {value}", owners[id(node)])
        names[id(node)] = name
    return render(expr, names)


def _owners(expr: Scalar, stages: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Returns the stages that each part of an expression belongs to, by id."""
    found: dict[int, tuple[str, ...]] = {}
    stack = [(expr, stages)]
    while stack:
        node, own = stack.pop()
        if id(node) not in found:
            found[id(node)] = own
            inside = (node.stage,) if isinstance(node, Inlined) else own
            stack.extend((c, inside) for c in node.children)
    return found
