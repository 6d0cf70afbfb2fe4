"""The guards of an exported program: what torch assumed of the sizes of its inputs, as rules.

torch records guards for branches on sizes, in the model's code and in torch's own. It writes them
as Python code of the program's arguments: `(L['x'].size()[0] % 3) == 0`. Some guards of torch's
own code only choose between equal computations for sizes of 0 and 1; these are not rules.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeGuardPythonPrinter

from clew.frontends.torch.forms import Path
from clew.frontends.torch.places import is_own, shown_line
from clew.ir.dims import Dim, SymDim, at_least, dim_max, dim_min, substitute
from clew.ir.size_formulas import FUNCTIONS, Formula
from clew.ir.size_rules import Comparison, SizeRule, size_rule
from clew.support.errors import UnsupportedError

_COMPARED: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_INFIX: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|",
}  # fmt: skip
_OF_DIMS: Final[Mapping[str, Callable[..., Dim]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
    "%": operator.mod, "max": dim_max, "min": dim_min,
}  # fmt: skip
_OF_ORDER: Final = ("<", "<=", ">", ">=")
_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class GuardReader:
    """Reads guards. `inputs` has the shapes of tensors, and integers, by their paths in the
    arguments (`forms.leaf_paths`), in order. `whole`: whether the program was traced for all
    sizes, without torch's assumption that they are at least 2.
    """

    def __init__(self, inputs: Mapping[Path, tuple[Dim, ...] | Dim | None], *, whole: bool) -> None:
        self._inputs = dict(inputs)
        # Programs that torch traced from bytecode (`strict=True`) number their arguments.
        self._inputs |= {("flat_args", str(n)): i for n, i in enumerate(inputs.values())}
        self._whole = whole

    def rules(self, *programs: ExportedProgram) -> Iterator[SizeRule]:
        """Yields the rules in the guards of programs, which are versions of one program.

        Errors: U060 for a guard that cannot be checked in calls.
        """
        known: set[str] = set()
        for program in programs:
            lines = _lines(program)
            for text in program._guards_code:
                if text not in known:
                    known.add(text)
                    yield from self._rules(text, lines.get(text, ""))

    def _rules(self, text: str, code: str) -> Iterator[SizeRule]:
        try:
            read = self._read(ast.parse(text, mode="eval").body)
        except _UNREAD:
            hint = "branch on sizes with comparisons of arithmetic"
            shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
            error = UnsupportedError("U060", f"the program is valid only if {shown}", hint=hint)
            error.position = code
            raise error from None
        for compared in read:
            if not code and (any(map(self._is_choice, compared)) or _is_range(compared)):
                continue
            rule = size_rule(compared, code=code)
            if rule is not None:
                yield rule

    def _is_choice(self, compared: Comparison) -> bool:
        """Whether torch's own code makes such comparisons to choose between equal computations:
        for sizes of 0 and 1, or for equal sizes.
        """
        left, how, right = compared
        if how == "!=" or (left, how) == (1, "<") or (how, right) == (">", 1):
            return True
        return not self._whole and _holds_from_two(left, how, right)

    def _read(self, node: ast.expr, *, holds: bool = True) -> list[tuple[Comparison, ...]]:
        """Returns comparisons: of each tuple, one must hold; or the opposite."""
        match node:
            case ast.Compare(left, [how], [right]) if type(how) in _COMPARED:
                compared = _COMPARED[type(how)]
                compared = compared if holds else _OPPOSITE[compared]
                return [((self._formula(left), compared, self._formula(right)),)]
            case ast.UnaryOp(ast.Not(), inner):
                return self._read(inner, holds=not holds)
            case ast.BoolOp(op, values):
                parts = [self._read(value, holds=holds) for value in values]
                if isinstance(op, ast.And) == holds:
                    return [compared for part in parts for compared in part]
                if all(len(part) == 1 for part in parts):
                    return [tuple(one for part in parts for one in part[0])]
        raise _UnreadError

    def _formula(self, node: ast.expr) -> Formula:
        match node:
            case ast.Constant(int() | float() as value):
                return value
            case ast.UnaryOp(ast.USub(), inner):
                return _applied("*", self._formula(inner), -1)
            case ast.BinOp(left, op, right) if type(op) in _INFIX:
                return _applied(_INFIX[type(op)], self._formula(left), self._formula(right))
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), [first, *others]):
                name = name.removeprefix("sym_")  # torch.sym_float
                if name in FUNCTIONS:
                    found = self._formula(first)
                    for other in others:
                        found = _applied(name, found, self._formula(other))
                    return found if others else _applied(name, found)
            case ast.Subscript(ast.Call(ast.Attribute(tensor, "size")), ast.Constant(int(axis))):
                shape = self._input(tensor)
                if isinstance(shape, tuple) and axis < len(shape):
                    return shape[axis]
            case ast.Subscript():
                number = self._input(node)
                if isinstance(number, (int, SymDim)):
                    return number
        raise _UnreadError

    def _input(self, node: ast.expr) -> tuple[Dim, ...] | Dim | None:
        first, *rest = _path(node) or ("",)
        found = self._inputs.get((first, *rest))
        if found is None and rest:  # one of `*rest`, whose names are `rest_0` and so on
            return self._inputs.get((f"{first}_{rest[0]}", *rest[1:]))
        return found


def _applied(name: str, *operands: Formula) -> Formula:
    """Returns a function of formulas: a dimension if it is one of dimensions."""
    rule = _OF_DIMS.get(name)
    if rule is not None and all(isinstance(operand, (int, SymDim)) for operand in operands):
        found: Dim = rule(*operands)
        return found
    return (name, *operands)


def _holds_from_two(left: Formula, how: str, right: Formula) -> bool:
    """Whether an inequality of dimensions holds for all sizes that are at least 2."""
    if not isinstance(left, (int, SymDim)) or not isinstance(right, (int, SymDim)):
        return False
    if how not in _OF_ORDER:
        return False
    more = (left - right if how[0] == ">" else right - left) - (len(how) == 1)
    if not isinstance(more, SymDim):
        return more >= 0
    return at_least(substitute(more, {n: SymDim.symbol(n) + 1 for n in more.symbols}))


def _is_range(compared: Sequence[Comparison]) -> bool:
    """Whether a comparison limits one size, as the program's ranges do, too."""
    ((left, how, right), *others) = compared
    size = left if isinstance(right, int) else right
    return (
        not others
        and how[0] in "<>"
        and isinstance(size, SymDim)
        and (isinstance(left, int) or isinstance(right, int))
        and size.atom is not None
        and not size.atom.op
    )


class _UnreadError(Exception):
    """A guard of another form."""


# What Python raises for guards that are too deep to parse, divide by 0, or hold no text of Python:
# those in a file may be anything.
_UNREAD: Final = (
    _UnreadError, SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
_MOST_SHOWN: Final = 500


def _path(node: ast.expr) -> Path:
    """Returns the path of an argument: `("cache", "keys", "0")` for `L['cache'].keys[0]`."""
    match node:
        case ast.Name("L"):
            return ()
        case ast.Attribute(inner, name):
            return (*_path(inner), name)
        case ast.Subscript(inner, ast.Constant(str() | int() as key)):
            return (*_path(inner), str(key))
    raise _UnreadError


def _lines(program: ExportedProgram) -> Mapping[str, str]:
    """Returns the lines of the user's code with the branches that guards come from, by guard; the
    guards of torch's own code, and those of programs in files, have none.
    """
    env: Any = next(
        (
            size.node.shape_env
            for node in program.graph.find_nodes(op="placeholder")
            for size in getattr(node.meta.get("val"), "shape", ())
            if isinstance(size, torch.SymInt)
        ),
        None,
    )
    if env is None:
        return {}
    sources = env.var_to_sources
    printer = ShapeGuardPythonPrinter(sources, lambda source: source.name, sources)
    found = {}
    for guard in env.guards:
        frame = guard.sloc.framework_loc
        if is_own(getattr(frame, "filename", "torch/")):
            with suppress(AssertionError, KeyError, LookupError):  # a size without a source
                text = printer.doprint(guard.expr)
                found[text] = shown_line(frame.filename, frame.lineno or 0, frame.line or "")
    return found
