"""Prints a loop nest, one statement, inlined operator or named size per line, and attributes each
line to stages.

Debug locations name these lines: an instruction leads to a line here, the line to te stages, and
those to graph nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType

from clew.ir.dims import Dim
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
from clew.loop.named_sizes import LONGEST_INLINE, NamedSizes, plain_text
from clew.support.dataclass import dataclass
from clew.te.expr import Checked, Inlined, Scalar, Size, render, shared_parts
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
    operator, all those inside it for a loop. `held` has the stages inside each statement, by id.
    """

    held: Mapping[int, tuple[str, ...]] = field(repr=False)
    sizes: NamedSizes = field(repr=False)
    lines: list[str] = field(default_factory=list)
    stages: list[tuple[str, ...]] = field(default_factory=list)
    line_of: dict[int, int] = field(default_factory=dict)

    def render(self, expr: Scalar, names: Mapping[int, str] = MappingProxyType({})) -> str:
        """Returns an expression as text with the nest's names of sizes."""
        return render(expr, names, self.sizes.operand)

    @property
    def text(self) -> str:
        """The whole text."""
        return "\n".join(self.lines) + "\n"

    def add(self, key: int | None, depth: int, text: str, stages: tuple[str, ...]) -> None:
        """Adds a line. `key` is the id of the node it shows, None for a named size."""
        self.lines.append("  " * depth + text)
        self.stages.append(stages)
        if key is not None:
            self.line_of[key] = len(self.lines)


def print_nest(nest: Nest, meanings: Mapping[str, Dim] = MappingProxyType({})) -> PrintedNest:
    """Returns the nest's text with its line numbers. `meanings` has what names of sizes stand for
    outside of the nest.
    """
    arguments, temporaries = (*nest.inputs, *nest.outputs), nest.temporaries
    dims = [d for b in arguments for d in b.shape if len(plain_text(d)) > LONGEST_INLINE]
    dims += [d for b in temporaries for d in b.shape]
    held: dict[int, tuple[str, ...]] = {}
    every = _survey(nest.body, held, dims)
    sizes = NamedSizes(dims)
    printed = PrintedNest(held, sizes)
    params = [f"{b.name}: {_type(b, lambda d: _in_head(d, sizes))}" for b in arguments]
    printed.add(id(nest), 0, f"kernel {nest.name}({', '.join(params)}):", every)
    for name, dim in meanings.items():
        printed.add(None, 1, f"size {name} = {plain_text(dim)}", every)
    for name, text in sizes.definitions:
        printed.add(None, 1, f"size {name} = {text}", every)
    for buffer in temporaries:
        text = f"{buffer.scope} {buffer.name}: {_type(buffer, sizes.text)}"
        printed.add(id(buffer), 1, text, every)
    _print(nest.body, 1, printed)
    return printed


def _type(buffer: Buffer, size: Callable[[Dim], str]) -> str:
    return f"{buffer.dtype}[{', '.join(map(size, buffer.shape))}]"


def _in_head(dim: Dim, sizes: NamedSizes) -> str:
    """Returns the text of a dimension in the head, which spells out sizes that are not long."""
    text = plain_text(dim)
    return text if len(text) <= LONGEST_INLINE else sizes.text(dim)


def _survey(stmt: Stmt, known: dict[int, tuple[str, ...]], dims: list[Dim]) -> tuple[str, ...]:
    """Returns the stages inside a statement, in order, and puts them into `known` by statement.
    Appends the dimensions in its text to `dims`.
    """
    found = known.get(id(stmt))
    if found is None:
        names: dict[str, None] = {}
        for expr in expressions(stmt):
            for node in post_order(expr):
                if isinstance(node, Inlined):
                    names[node.stage] = None
                elif isinstance(node, Size):
                    dims.append(node.dim)
                elif isinstance(node, Checked):
                    dims.append(node.places.count)
        match stmt:
            case For() | If() | TileProduct():
                if isinstance(stmt, For):
                    dims.append(stmt.size)
                names.update(dict.fromkeys(_survey(stmt.body, known, dims)))
            case Block():
                for child in stmt.stmts:
                    names.update(dict.fromkeys(_survey(child, known, dims)))
            case Store() | Prefetch():
                names[stmt.stage] = None
        found = known[id(stmt)] = tuple(names)
    return found


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
            head = f"{word} {stmt.name} in {out.sizes.text(stmt.size)}:"
            out.add(id(stmt), depth, head, out.held[id(stmt)])
            _print(stmt.body, depth + 1, out)
        case If():
            cond = _lines(stmt.cond, depth, out, out.held[id(stmt)])
            out.add(id(stmt), depth, f"if {cond}:", out.held[id(stmt)])
            _print(stmt.body, depth + 1, out)
        case Store():
            value = _lines(stmt.value, depth, out, (stmt.stage,))
            place = f"{stmt.buffer.name}[{', '.join(map(out.render, stmt.indices))}]"
            text = f"{place} {_ASSIGN[stmt.combiner]} {value}"
            if stmt.nontemporal:
                text = f"nontemporal {text}"
            out.add(id(stmt), depth, f"{text}  # {stmt.stage}", (stmt.stage,))
        case Barrier():
            out.add(id(stmt), depth, "barrier", ())
        case TileProduct():
            head = f"tiles {stmt.rows} x {stmt.columns} x {stmt.depth}:"
            out.add(id(stmt), depth, head, out.held[id(stmt)])
            _print(stmt.body, depth + 1, out)
        case Prefetch():
            place = f"{stmt.buffer.name}[{', '.join(map(out.render, stmt.indices))}]"
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
        value = out.render(node.value if isinstance(node, Inlined) else node, names)
        if isinstance(node, Inlined):
            name = f"%{count}"
            out.add(id(node), depth, f"{name} = {value}  # {node.stage}", (node.stage,))
            count += 1
        else:
            name = f"%t{len(names) - count}"
            out.add(id(node), depth, f"let {name} = {value}", owners[id(node)])
        names[id(node)] = name
    return out.render(expr, names)


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
