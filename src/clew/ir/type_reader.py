"""Parses tokens, types and sizes of the text form; `parser` is built on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from clew.ir.dims import Dim, SymDim, dim_max, dim_min
from clew.ir.lexer import ParseError, Token, tokens, unquoted
from clew.ir.types import (
    DTYPES,
    FunctionType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    UnrankedType,
)

_DEPTH: Final = 100
_POWER: Final = 64


class TypeReader:
    """Parses a text from `position` on; every failure is a `ParseError` with its place."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.position = 0
        self.depth = 0

    # --- tokens ---

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def fail(
        self, message: str, token: Token | None = None, *, code: str = "P001", hint: str = ""
    ) -> NoReturn:
        raise ParseError(code, message, self.text, (token or self.next).offset, hint=hint)

    def take(self, kind: str, what: str = "") -> Token:
        token = self.next
        if token.kind != kind:
            self.fail(f"expected {what or kind}, found {token.text or 'the end'!r}")
        self.position += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self.tokens[self.position]
        return token.text in texts and token.kind != "string"

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            self.fail(f"expected {text!r}, found {self.next.text or 'the end'!r}")
        self.position += 1
        return self.tokens[self.position - 1]

    def items(self, close: str) -> bool:
        """Whether another item of a list follows."""
        if self.accept(close):
            return False
        if self.tokens[self.position - 1].text not in ("(", "["):
            self.expect(",")
            if self.accept(close):
                return False
        return True

    def string(self, token: Token) -> str:
        return unquoted(token.text, token, self.text)

    def word(self, what: str) -> str:
        """Returns a bare or quoted name."""
        if self.next.kind == "string":
            return self.string(self.take("string"))
        return self.take("word", what).text

    def integer(self, what: str) -> int:
        return self.number(self.take("int", what))

    def number(self, token: Token) -> int:
        if len(token.text) > 40:
            self.fail("number too long", token, code="P007")
        return int(token.text, 0) if token.text.startswith("0x") else int(token.text)

    def nested(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            self.fail(f"nested deeper than {_DEPTH}", code="P007")

    # --- types and dimensions ---

    def type(self) -> Type:
        self.nested()
        try:
            return self.type_inside()
        finally:
            self.depth -= 1

    def type_inside(self) -> Type:
        if self.accept("("):
            return TupleType(tuple(self.types()))
        token = self.take("word", "a type")
        match token.text:
            case "fn":
                self.expect("(")
                params = tuple(self.types())
                self.expect("->")
                return FunctionType(params, self.type())
            case "seq" | "optional" as kind:
                self.expect("<")
                element = self.type()
                empty = kind == "seq" and self.accept(",")
                if empty:
                    self.expect("empty")
                self.expect(">")
                return SequenceType(element, empty) if kind == "seq" else OptionalType(element)
            case "map":
                self.expect("<")
                key = self.word("the dtype of the keys")
                self.expect(",")
                value = self.type()
                self.expect(">")
                return MapType(key, value)
            case dtype if dtype in DTYPES:
                return self.tensor_type(dtype)
        self.fail(f"no type {token.text!r}", token, hint=f"dtypes: {', '.join(DTYPES)}")

    def types(self) -> Sequence[Type]:
        found = []
        while self.items(")"):
            found.append(self.type())
        return found

    def tensor_type(self, dtype: str) -> TensorType | UnrankedType:
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return UnrankedType(dtype)
        shape = []
        while self.items("]"):
            token = self.next
            dim = self.dim()
            if isinstance(dim, int) and dim < 0:
                self.fail("a dimension is negative", token)
            shape.append(dim)
        layout = ""
        # `%x: f32[2]:NC` has a layout; a colon before anything else is not part of the type.
        if self.at(":"):
            self.position += 1
            layout = self.word("a layout")
        return TensorType(tuple(shape), dtype, layout)

    def dim(self) -> Dim:
        """Parses sums of products, with the usual precedence of `+ - * // % ^`."""
        self.nested()
        negative = self.accept("-")
        total = self.dim_term()
        total = total * -1 if negative else total
        while self.at("+", "-"):
            minus = self.accept("-") or not self.accept("+")
            term = self.dim_term()
            total = total - term if minus else total + term
        self.depth -= 1
        return total

    def dim_term(self) -> Dim:
        total = self.dim_factor()
        while True:
            if self.accept("*"):
                total = total * self.dim_factor()
            elif self.at("//", "%"):
                token = self.next
                self.position += 1
                divisor = self.dim_factor()
                if divisor == 0:
                    self.fail("division by zero", token)
                total = total // divisor if token.text == "//" else total % divisor
            else:
                return total

    def dim_factor(self) -> Dim:
        base = self.dim_atom()
        if not self.accept("^"):
            return base
        power = self.integer("a power")
        if power > _POWER:
            self.fail(f"a power above {_POWER}", code="P007")
        result: Dim = 1
        for _ in range(power):
            result = result * base
        return result

    def dim_atom(self) -> Dim:
        token = self.next
        self.position += 1
        if token.kind == "int":
            return self.number(token)
        if token.kind == "symbol":
            quoted = token.text.startswith("`")
            return SymDim.symbol(self.string(token) if quoted else token.text)
        if token.kind == "mark" and token.text == "(":
            inner = self.dim()
            self.expect(")")
            return inner
        if token.kind == "mark" and token.text == "-":
            return self.dim_atom() * -1
        if token.kind == "word":
            if token.text in ("min", "max") and self.accept("("):
                left = self.dim()
                self.expect(",")
                right = self.dim()
                self.expect(")")
                return dim_min(left, right) if token.text == "min" else dim_max(left, right)
            return SymDim.symbol(token.text)
        self.fail(f"expected a size, found {token.text or 'the end'!r}", token)


def read_function_type(text: str) -> FunctionType:
    """Returns the type in a text such as `(f32[n], f32[n]) -> f32[n]`.

    Errors: P001.
    """
    reader = TypeReader(f"fn{text}")
    found = reader.type()
    if reader.next.kind != "end" or not isinstance(found, FunctionType):
        reader.fail(f"expected the end of the signature, found {reader.next.text!r}")
    return found
