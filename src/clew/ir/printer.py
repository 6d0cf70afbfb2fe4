"""The text form of a module: one node per line, so a node's place is (stage, line).

```
clew 1, frontend onnx
def @main(  // conv1:Conv
  %x: f32[batch, 3, 224, 224]  // input x
) -> (f32[batch, 64, 112, 112],) with outputs=["y"] {
  %0: f32[64, 3, 7, 7] = const @c0 "conv1.weight"  // parameter conv1.weight
  %1: f32[batch, 64, 112, 112] = nn.conv2d(%x, %0, strides=[2, 2])  // conv1:Conv#0
  %2: (f32[batch, 64, 112, 112],) = (%1,)
  return %2
}
```

Numbers are dense in each function, in post-order. The comment after `//` is the span: the node's
exact sources. `docs/text-format.md` has the grammar; `clew.ir.parser` parses the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Operator,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.module import Module, printed_by
from clew.ir.syntax import (
    attrs_text,
    dim_text,
    name_text,
    quote,
    span_text,
    tuple_text,
    type_text,
    value_text,
)
from clew.ir.types import bits, to_numpy
from clew.support.dataclass import dataclass
from clew.support.text_arrays import is_text, is_unicode
from clew.trace.notes import NOTES
from clew.trace.places import PLACES

VERSION: Final = 1
# The maximum number of elements of a constant written inline.
INLINE_ELEMS: Final = 16
_INTEGER_NAME: Final = re.compile(r"u?int\d+")
_WIDTHS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# Attributes of a main function about its layers, which are printed a line each.
_OF_LAYERS: Final = (PLACES, NOTES)


class ConstantTable(Mapping[str, np.ndarray[Any, Any]]):
    """The arrays named `@c0`, `@c1` ... in a text; lazy constants are computed on access."""

    def __init__(self) -> None:
        self._nodes: dict[str, Constant] = {}
        self._names: dict[tuple[str, int], str] = {}

    def name(self, node: Constant) -> str:
        """Returns the name of a constant's array; constants with the same array share it."""
        # A lazy constant's array may be freed, and another allocated at its address.
        key = ("node", node.id) if node.is_lazy else ("array", id(node.data))
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = f"c{len(self._nodes)}"
            self._nodes[found] = node
        return found

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._nodes[name].data

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


@dataclass(frozen=True)
class PrintedModule:
    """A module's text, and the line of each node. Lines count from 1.

    A node shared by several functions has the line where it is first printed; `node_at` covers
    every line. `constants` holds the arrays named `@c0`, `@c1` ... in the text.
    """

    text: str
    line_of: Mapping[int, int]
    node_at: Mapping[int, Expr]
    constants: Mapping[str, np.ndarray[Any, Any]]


def print_module(module: Module) -> str:
    """Returns the module's text; large constants appear by name only (see `printed`)."""
    return printed(module).text


printed_by(print_module)


def print_function(function: Function, name: str = "main") -> str:
    """Returns one function's text."""
    printer = _Printer("")
    printer.print_global(name, function)
    return printer.finish().text


def printed(module: Module, *, notes: bool = True) -> PrintedModule:
    """Returns the module's text with the nodes' lines and the constants it names; with its notes
    about layers or without them.
    """
    frontend = _usual_frontend(module)
    printer = _Printer(frontend, notes=notes)
    named = f", frontend {name_text(frontend)}" if frontend else ""
    printer.line(f"clew {VERSION}{named}")
    for name, function in module:
        printer.print_global(name, function)
    return printer.finish()


def _usual_frontend(module: Module) -> str:
    """Returns the frontend of the first source of `main`, which the text omits for sources."""
    for node in (*module.main.params, module.main, module.main.body):
        for source in node.span.sources:
            return source.frontend
    return ""


@dataclass
class _Frame:
    """A function being printed."""

    nodes: Iterator[Expr]
    names: dict[int, str]
    body: Expr
    indent: str


class _Printer:
    def __init__(self, frontend: str, *, notes: bool = True) -> None:
        self.frontend = frontend
        self.notes = notes
        self.lines: list[str] = []
        self.line_of: dict[int, int] = {}
        self.node_at: dict[int, Expr] = {}
        self.constants = ConstantTable()
        self.defaults: dict[str, Mapping[str, Any]] = {}

    def finish(self) -> PrintedModule:
        self.lines.append("")
        return PrintedModule("\n".join(self.lines), self.line_of, self.node_at, self.constants)

    def line(self, text: str, node: Expr | None = None) -> None:
        if node is not None:
            number = len(self.lines) + 1
            self.line_of.setdefault(node.id, number)
            self.node_at[number] = node
            if node.span.sources:
                text = f"{text}  // {span_text(node.span, self.frontend)}"
        self.lines.append(text)

    def print_global(self, name: str, function: Function) -> None:
        stack = [self.open(f"def @{name_text(name)}", function, "")]
        while stack:
            frame = stack[-1]
            node = next(frame.nodes, None)
            if node is None:
                self.line(f"{frame.indent}return {frame.names[frame.body.id]}")
                stack.pop()
                self.line(f"{frame.indent[2:]}}}")
            elif isinstance(node, Function):
                head = f"{frame.indent}{frame.names[node.id]} = fn"
                stack.append(self.open(head, node, frame.indent))
            else:
                self.line(self.statement(node, frame), node)

    def open(self, head: str, function: Function, indent: str) -> _Frame:
        """Prints a function's head and returns its frame."""
        order = body_order(function.body)
        names = _names(function, order)
        attrs = attrs_text({n: v for n, v in function.attrs.items() if n not in _OF_LAYERS}, {})
        given = f" with {attrs}" if attrs else ""
        tail, *more = self._with_notes(f") -> {type_text(function.body.type)}{given}", function)
        params = function.params
        if params:
            self.line(f"{head}(", function)
            for position, param in enumerate(params):
                comma = "," if position + 1 < len(params) else ""
                text = f"{names[param.id]}: {type_text(param.type)}{comma}"
                self.line(f"{indent}  {text}", param)
            self.line(f"{indent}{tail}")
        else:
            self.line(f"{head}({tail}", function)
        for text in more:
            self.line(f"{indent}{text}")
        own = {p.id for p in params}
        nodes = iter([n for n in order if n.id not in own])
        return _Frame(nodes, names, function.body, f"{indent}  ")

    def _with_notes(self, tail: str, function: Function) -> list[str]:
        """Returns the last lines of a head: one for each note about a layer and each place in the
        user's code, if there are any.
        """
        told = [tail]
        for name in _OF_LAYERS if self.notes else ():
            facts = function.attrs.get(name, ())
            if facts:
                joint = ", " if len(told) > 1 or " with " in tail else " with "
                lines = [f"  {value_text(fact)}," for fact in facts]
                told[-1] += f"{joint}{name}=["
                told += [*lines[:-1], lines[-1][:-1], "]"]
        return [*told[:-1], f"{told[-1]} {{"]

    def statement(self, node: Expr, frame: _Frame) -> str:
        name = frame.names[node.id]
        return f"{frame.indent}{name}: {type_text(node.type)} = {self.value(node, frame.names)}"

    def value(self, node: Expr, names: dict[int, str]) -> str:
        """Returns the right-hand side of a node's line."""
        match node:
            case Call(op=Function() | GlobalVar() as function):
                parts = [names[a.id] for a in node.args]
                if node.attrs:
                    parts.append(attrs_text(node.attrs, {}))
                return f"{names[function.id]}({', '.join(parts)})"
            case Call():
                parts = [names[a.id] for a in node.args]
                if attrs := attrs_text(node.attrs, self.defaults_of(node.op)):  # type: ignore[arg-type]
                    parts.append(attrs)
                return f"{name_text(node.op_name)}({', '.join(parts)})"
            case Constant():
                return self.constant(node)
            case Tuple():
                return tuple_text([names[f.id] for f in node.fields])
            case TupleGetItem():
                return f"{names[node.value.id]}[{node.index}]"
            case Var():
                return "var"
            case GlobalVar():
                return f"@{name_text(node.name)}"
            case Let():
                parts = [names[c.id] for c in node.children]
                return f"let {parts[0]} = {parts[1]} in {parts[2]}"
            case If():
                cond, then, orelse, *args = [names[c.id] for c in node.children]
                return f"if {cond} then {then} else {orelse} ({', '.join(args)})"
            case While():
                cond, body, *init = [names[c.id] for c in node.children]
                scans = f" scans={node.scans}" if node.scans else ""
                trips = "" if node.trips is None else f" trips=dim[{dim_text(node.trips)}]"
                return f"while {cond} do {body} ({', '.join(init)}){scans}{trips}"
        raise AssertionError(node)

    def defaults_of(self, op: Operator) -> Mapping[str, Any]:
        found = self.defaults.get(op.name)
        if found is None:
            found = self.defaults[op.name] = op.defaults
        return found

    def constant(self, node: Constant) -> str:
        named = f" {quote(node.name)}" if node.name else ""
        size = node.tensor.size
        if size != 0 and node.is_splat:
            return f"const splat {element_texts(node.data.reshape(-1)[:1])[0]}{named}"
        if isinstance(size, int) and size <= INLINE_ELEMS and node.data.dtype.kind != "c":
            return f"const [{', '.join(element_texts(node.data.reshape(-1)))}]{named}"
        return f"const @{self.constants.name(node)}{named}"


def body_order(body: Expr) -> list[Expr]:
    """Returns the nodes of a function's body in post-order, including the globals it calls.

    Inner functions are listed but not entered.
    """
    done: set[int] = set()
    order: list[Expr] = []
    stack: list[tuple[Expr, bool]] = [(body, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
            continue
        if node.id in done:
            continue
        done.add(node.id)
        if isinstance(node, (Function, Var, Constant, GlobalVar)):
            order.append(node)
            continue
        stack.append((node, True))
        stack.extend((c, False) for c in reversed(operands(node)) if c.id not in done)
    return order


def operands(node: Expr) -> tuple[Expr, ...]:
    """Returns a node's children, preceded by the global it calls, if any."""
    if isinstance(node, Call) and isinstance(node.op, GlobalVar):
        return (node.op, *node.args)
    return node.children


def _names(function: Function, order: list[Expr]) -> dict[int, str]:
    """Returns the names of a function's nodes: variables by name, the others by number."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    number = 0
    for node in (*function.params, *order):
        if node.id in names:
            continue
        if isinstance(node, Var):
            again = taken.get(node.name, 0)
            taken[node.name] = again + 1
            names[node.id] = f"%{name_text(node.name)}{f'#{again}' if again else ''}"
        else:
            names[node.id] = f"%{number}"
            number += 1
    return names


def element_texts(values: np.ndarray[Any, Any]) -> list[str]:
    """Returns the elements of a flat array as text; in hex if a decimal is not exact."""
    if values.dtype == np.bool_:
        return [value_text(bool(v)) for v in values]
    if is_text(values):
        return [quote(text) for text in values.tolist()]
    if values.dtype.kind in "iu" or _INTEGER_NAME.fullmatch(values.dtype.name):
        return [str(int(v)) for v in values]
    texts = [str(v) if values.dtype == np.float32 else repr(float(v)) for v in values]
    raw = np.ascontiguousarray(values).view(_WIDTHS[values.dtype.itemsize])
    back = np.array([float(t) for t in texts], dtype=values.dtype).view(raw.dtype)
    return [
        text if code == again else f"0x{int(code):x}"
        for text, code, again in zip(texts, raw, back, strict=True)
    ]


def parse_elements(texts: list[str], dtype: str) -> np.ndarray[Any, Any]:
    """Returns the flat array written by `element_texts`. Raises `ValueError` or `OverflowError`."""
    wanted = to_numpy(dtype)
    if dtype == "str":
        if not is_unicode(texts):
            raise ValueError("half of a surrogate pair")
        return np.array(texts, dtype=wanted)
    if dtype == "bool":
        if not set(texts) <= {"true", "false"}:
            raise ValueError("expected true or false")
        return np.array([t == "true" for t in texts], dtype=wanted)
    if wanted.kind in "iu":
        return np.array([int(t) for t in texts], dtype=wanted)
    if _INTEGER_NAME.fullmatch(wanted.name):
        signed = dtype[0] == "i"
        low, high = -(1 << bits(dtype) >> 1) * signed, (1 << (bits(dtype) - signed)) - 1
        values = [int(t) for t in texts]
        if any(not low <= v <= high for v in values):
            raise OverflowError(f"expected {low} to {high}")
        return np.array(values, dtype=wanted)
    result = np.zeros(len(texts), dtype=wanted)
    raw = result.view(_WIDTHS[wanted.itemsize])
    for position, text in enumerate(texts):
        if text.startswith("0x"):
            raw[position] = int(text, 16)
        else:
            result[position] = float(text)
    return result
