"""Parses the text form. `parse_module(print_module(m))` prints as `m` does, including spans.

The text may also be written by hand: types of calls and span comments may be omitted, nodes may
have any names, and `#` starts a remark. Parsing does not recurse over nodes or nested functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from clew.ir.dims import is_unknown, reserve_unknowns
from clew.ir.expr import (
    ArgRef,
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
from clew.ir.lexer import ParseError, Token, parse_span, unquoted
from clew.ir.module import Module
from clew.ir.printer import VERSION, parse_elements
from clew.ir.syntax import KEYWORDS, type_text
from clew.ir.type_reader import TypeReader
from clew.ir.types import (
    FunctionType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
)
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError, TextError
from clew.trace.span import EMPTY, Span

Lookup: TypeAlias = Callable[[str], Operator]


def _no_operators(name: str) -> NoReturn:
    raise TextError("P008", f"no operator {name}: none are declared", hint="import clew.ops first")


_registered: list[Lookup] = [_no_operators]


def operators_from(lookup: Lookup) -> None:
    """Sets the default source of operators by name, for texts parsed without `operators`."""
    _registered[:] = [lookup]


def parse_module(
    text: str,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    operators: Lookup | None = None,
) -> Module:
    """Returns the module in a text. `constants` are the arrays it names.

    Errors: P001 to P010, each with the line, the column and the text of the line.
    """
    known = {} if constants is None else constants
    return _Parser(text, known, operators or _registered[0]).module()


@dataclass
class _Frame:
    """A function being parsed; `target` is its node in the enclosing function."""

    target: Token
    params: list[Var]
    names: dict[str, Expr]
    span: Span
    result: Type | None = None
    attrs: dict[str, Any] = field(default_factory=dict)


class _Parser(TypeReader):
    def __init__(
        self, text: str, constants: Mapping[str, np.ndarray[Any, Any]], lookup: Lookup
    ) -> None:
        super().__init__(text)
        self.frontend = ""
        self.lookup = lookup
        self.constants = constants
        # One read-only array per name, so constants that share it still share it.
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.spans: dict[str, Span] = {}

    def span(self) -> Span:
        token = self.next
        if token.kind != "span":
            return EMPTY
        before = self.tokens[self.position - 1]
        if "\n" in self.text[before.offset : token.offset]:
            self.fail("a span comment must follow its node", hint="remarks start with #")
        self.position += 1
        found = self.spans.get(token.text)
        if found is None:
            found = self.spans[token.text] = parse_span(token, self.frontend, self.text)
        return found

    # --- module and functions ---

    def module(self) -> Module:
        self.header()
        functions: dict[str, Function] = {}
        while self.next.kind != "end":
            self.expect("def")
            target = self.take("global", "@name")
            name = self.global_name(target)
            if name in functions:
                self.fail(f"@{name} is defined twice", target, code="P004")
            functions[name] = self.function(target)
        if "main" not in functions:
            self.fail("the module has no function @main")
        reserve_unknowns(_unknowns_below(self.tokens))
        return Module(functions)

    def header(self) -> None:
        if not self.accept("clew"):
            return
        token = self.take("int", "the version")
        if self.number(token) != VERSION:
            self.fail(f"text form {token.text}, expected {VERSION}", token, code="P009")
        if self.accept(","):
            self.expect("frontend")
            self.frontend = self.word("the frontend's name")

    def global_name(self, token: Token) -> str:
        name = token.text[1:]
        return unquoted(name, token, self.text) if name.startswith('"') else name

    def function(self, target: Token) -> Function:
        """Returns the function whose head follows; inner functions are parsed without recursion."""
        stack = [self.open(target)]
        while True:
            frame = stack[-1]
            if self.at("return"):
                function = self.close(frame)
                stack.pop()
                if not stack:
                    return function
                self.bind(stack[-1], frame.target, function)
                continue
            name = self.take("node", "a statement or return")
            if self.accept("="):
                if self.accept("fn"):
                    stack.append(self.open(name))
                    continue
                declared = None
            else:
                self.expect(":")
                declared = self.type()
                self.expect("=")
            self.bind(frame, name, self.statement(frame, name, declared))

    def open(self, target: Token) -> _Frame:
        """Returns the frame of a function whose parameters follow, up to its `{`."""
        self.expect("(")
        frame = _Frame(target, [], {}, self.span())
        while not self.accept(")"):
            name = self.take("node", "a parameter")
            self.expect(":")
            type_ = self.type()
            more = self.accept(",")
            var = Var(self.var_name(name), type_, span=self.span())
            frame.params.append(var)
            self.bind(frame, name, var)
            if not more and not self.at(")"):
                self.fail(f"expected ',' or ')', found {self.next.text!r}")
        if self.accept("->"):
            frame.result = self.type()
        if self.accept("with"):
            self.attribute(frame.attrs)
            while self.accept(","):
                self.attribute(frame.attrs)
        self.expect("{")
        frame.span |= self.span()
        return frame

    def close(self, frame: _Frame) -> Function:
        start = self.expect("return")
        body = self.node(frame)
        self.expect("}")
        self.check(frame.result, body.type, start)
        return Function(frame.params, body, frame.attrs, span=frame.span)

    def bind(self, frame: _Frame, name: Token, node: Expr) -> None:
        if name.text in frame.names:
            self.fail(f"{name.text} is defined twice", name, code="P004")
        frame.names[name.text] = node

    def var_name(self, token: Token) -> str:
        quoted = re.match(r'%("(?:[^"\\]|\\.)*")', token.text)
        if quoted:
            return unquoted(quoted[1], token, self.text)
        return token.text[1:].partition("#")[0]

    def node(self, frame: _Frame) -> Expr:
        token = self.take("node", "a node")
        found = frame.names.get(token.text)
        if found is None:
            self.fail(
                f"{token.text} is not defined before this",
                token,
                code="P004",
                hint="functions are closed: pass outer values as parameters",
            )
        return found

    def nodes(self, frame: _Frame) -> list[Expr]:
        """Returns the nodes in a parenthesized list."""
        self.expect("(")
        found = []
        while self.items(")"):
            found.append(self.node(frame))
        return found

    # --- statements ---

    def statement(self, frame: _Frame, name: Token, declared: Type | None) -> Expr:
        start = self.next
        try:
            build = self.right_side(frame, name, declared)
            node = build(self.span())
        except GraphTypeError as error:
            message = f"[{error.code}] {error.message}"
            raise ParseError("P006", message, self.text, start.offset, hint=error.hint) from error
        if declared is not None and node.type != declared:
            self.check(declared, node.type, start)
            # They differ only in sizes unknown before the run: keep their names.
            object.__setattr__(node, "type", declared)
        return node

    def check(self, declared: Type | None, found: Type, token: Token) -> None:
        if declared is not None and not _agree(declared, found):
            self.fail(
                f"declared {type_text(declared)}, but it is {type_text(found)}", token, code="P006"
            )

    def right_side(
        self, frame: _Frame, name: Token, declared: Type | None
    ) -> Callable[[Span], Expr]:
        """Returns a function that builds the node from its span, which comes last."""
        token = self.next
        if token.kind == "node":
            return self.use(frame)
        if token.kind == "global":
            self.position += 1
            callee = self.global_name(token)
            if not isinstance(declared, FunctionType):
                self.fail("a global needs its function type", token)
            return lambda span: GlobalVar(callee, declared, span=span)
        if self.at("("):
            fields = self.nodes(frame)
            return lambda span: Tuple(fields, span=span)
        if token.kind == "word" and token.text in KEYWORDS:
            self.position += 1
            return self.keyword(token, frame, name, declared)
        op = self.lookup(self.word("an operator"))
        args, attrs = self.arguments(frame)
        return lambda span: Call(op, args, attrs, span=span)

    def use(self, frame: _Frame) -> Callable[[Span], Expr]:
        """Parses a field of a tuple or a call of a function."""
        token = self.next
        value = self.node(frame)
        if self.accept("["):
            index = self.integer("a field's number")
            self.expect("]")
            return lambda span: TupleGetItem(value, index, span=span)
        if not isinstance(value, (Function, GlobalVar)):
            self.fail(f"{token.text} is not a function", token)
        callee = value
        args, attrs = self.arguments(frame)
        return lambda span: Call(callee, args, attrs, span=span)

    def keyword(
        self, token: Token, frame: _Frame, name: Token, declared: Type | None
    ) -> Callable[[Span], Expr]:
        match token.text:
            case "const":
                return self.constant(token, declared)
            case "var":
                if declared is None:
                    self.fail("a variable needs its type", token)
                return lambda span: Var(self.var_name(name), declared, span=span)
            case "let":
                var = self.node(frame)
                if not isinstance(var, Var):
                    self.fail("let binds a variable", token)
                self.expect("=")
                value = self.node(frame)
                self.expect("in")
                body = self.node(frame)
                return lambda span: Let(var, value, body, span=span)
            case "if":
                cond = self.node(frame)
                self.expect("then")
                then = self.inner(frame)
                self.expect("else")
                orelse = self.inner(frame)
                args = self.nodes(frame)
                return lambda span: If(cond, then, orelse, args, span=span)
            case "while":
                return self.loop(frame)
        self.fail(f"{token.text} is not allowed here", token)

    def loop(self, frame: _Frame) -> Callable[[Span], Expr]:
        cond = self.inner(frame)
        self.expect("do")
        body = self.inner(frame)
        init = self.nodes(frame)
        scans, trips = 0, None
        if self.accept("scans"):
            self.expect("=")
            scans = self.integer("how many")
        if self.accept("trips"):
            self.expect("=")
            self.expect("dim")
            self.expect("[")
            trips = self.dim()
            self.expect("]")
        return lambda span: While(cond, body, init, scans=scans, trips=trips, span=span)

    def inner(self, frame: _Frame) -> Function:
        token = self.next
        function = self.node(frame)
        if not isinstance(function, Function):
            self.fail(f"{token.text} is not a function", token)
        return function

    def arguments(self, frame: _Frame) -> tuple[list[Expr], dict[str, Any]]:
        self.expect("(")
        args: list[Expr] = []
        attrs: dict[str, Any] = {}
        while self.items(")"):
            if self.next.kind == "node" and not attrs:
                args.append(self.node(frame))
            else:
                self.attribute(attrs)
        return args, attrs

    # --- constants ---

    def constant(self, token: Token, declared: Type | None) -> Callable[[Span], Expr]:
        if not isinstance(declared, TensorType) or not declared.is_static:
            self.fail("a constant needs a tensor type without symbols", token)
        try:
            data = self.data(declared)
        except (ValueError, OverflowError, MemoryError) as error:
            self.fail(f"the constant does not match {declared}: {error}", token, code="P005")
        name = self.string(self.take("string")) if self.next.kind == "string" else ""
        return lambda span: Constant(data, name=name, layout=declared.layout, span=span)

    def data(self, type_: TensorType) -> np.ndarray[Any, Any]:
        if self.next.kind == "global":
            token = self.take("global")
            data = self.array(token)
            expected = np.dtype(parse_elements([], type_.dtype).dtype)
            if data.shape != type_.shape or data.dtype != expected:
                raise ValueError(f"{token.text} is {data.dtype}{list(data.shape)}")
            return data
        if self.accept("splat"):
            one = parse_elements([self.element(type_.dtype)], type_.dtype)
            return np.broadcast_to(one.reshape(()), type_.concrete)
        self.expect("[")
        texts = []
        while self.items("]"):
            texts.append(self.element(type_.dtype))
        return parse_elements(texts, type_.dtype).reshape(type_.concrete)

    def array(self, token: Token) -> np.ndarray[Any, Any]:
        name = token.text[1:]
        if name not in self.arrays:
            if name not in self.constants:
                self.fail(f"{token.text} is not among the given constants", token, code="P005")
            self.arrays[name] = _read_only(self.constants[name])
        return self.arrays[name]

    def element(self, dtype: str) -> str:
        if dtype == "str":
            return self.string(self.take("string", "a text"))
        sign = "-" if self.accept("-") else ""
        token = self.next
        if token.kind not in ("int", "float", "word"):
            self.fail(f"expected a number, found {token.text!r}")
        self.position += 1
        return sign + token.text

    # --- attributes ---

    def attribute(self, attrs: dict[str, Any]) -> None:
        token = self.next
        name = self.word("an attribute")
        self.expect("=")
        if name in attrs:
            self.fail(f"{name} is given twice", token, code="P004")
        attrs[name] = self.value()

    def value(self, *, bracketed: bool = False) -> Any:
        """Returns an attribute's value; symbols are unquoted only between brackets."""
        token = self.next
        if token.kind == "string":
            return self.string(self.take("string"))
        if self.accept("["):
            self.nested()
            values = []
            while self.items("]"):
                values.append(self.value(bracketed=True))
            self.depth -= 1
            return tuple(values)
        if token.kind == "word" and token.text in _NAMED:
            self.position += 1
            return _NAMED[token.text]
        if token.kind == "float":
            self.position += 1
            return float(token.text)
        if self.accept("dim"):
            self.expect("[")
            dim = self.dim()
            self.expect("]")
            return dim
        if not bracketed and self.accept("arg"):
            self.expect("[")
            index = self.integer("an argument's index")
            self.expect("]")
            return ArgRef(index)
        if token.kind == "word" and token.text == "opaque":
            self.fail("this value has no text form", code="P010")
        if self.at("-") and (following := self.tokens[self.position + 1]).kind != "int":
            if following.kind == "float" or following.text in ("inf", "nan"):
                self.position += 2
                return -float(following.text)
            if not bracketed:
                self.fail("expected a number")
        if bracketed:
            return self.dim()
        negative = self.accept("-")
        number = self.integer("a value")
        return -number if negative else number


_NAMED: Final = {
    "true": True,
    "false": False,
    "none": None,
    "nan": float("nan"),
    "inf": float("inf"),
}


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()  # a separate object, even if two names share an array
    view.flags.writeable = False
    return view


def _agree(declared: Type, found: Type) -> bool:
    """Whether two types differ at most in sizes that are known only during the run."""
    match declared, found:
        case TensorType(a, dtype, layout), TensorType(b, other, laid):
            return (dtype, layout, len(a)) == (other, laid, len(b)) and all(
                x == y or (is_unknown(x) and is_unknown(y)) for x, y in zip(a, b, strict=True)
            )
        case TupleType(a), TupleType(b):
            return len(a) == len(b) and all(map(_agree, a, b))
        case FunctionType(a, x), FunctionType(b, y):
            return len(a) == len(b) and all(map(_agree, a, b)) and _agree(x, y)
        case (SequenceType(x), SequenceType(y)) | (OptionalType(x), OptionalType(y)):
            return _agree(x, y)
    return declared == found


def _unknowns_below(found: list[Token]) -> int:
    """Returns a number greater than that of every unknown size `?n` in the text."""
    numbers = [int(t.text[1:]) for t in found if t.kind == "symbol" and t.text[1:].isdigit()]
    return max(numbers, default=-1) + 1
