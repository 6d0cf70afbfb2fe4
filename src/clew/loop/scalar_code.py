"""Python functions that compute scalar expressions of a loop nest, for `interpret`.

Loop variables, and expressions of these alone, are Python integers; everything else is a NumPy
scalar of its dtype, computed as in `te.interpret.apply`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.types import STORAGE, is_float, to_numpy
from clew.te import interpret as te_interpret
from clew.te.expr import (
    Binary,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Load,
    Scalar,
    Select,
    Unary,
)
from clew.te.walk import post_order

Code: TypeAlias = "Callable[[], Any]"

# On NumPy scalars, Python's operators are faster than the functions of the same name.
_ON_SCALARS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_ON_INDICES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **_ON_SCALARS, "floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max,
}  # fmt: skip
COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **te_interpret.COMBINE, "sum": operator.add, "prod": operator.mul,
}  # fmt: skip
_MOST_INDEX: Final = 1 << 62


class Expressions:
    """The functions for the expressions of one statement; expressions used more than once are
    computed once.

    `at` holds the current values of loops, by the ids of their indices. `load` makes the function
    of a load from the functions of its indices, and `say` completes the message of an assertion.
    """

    def __init__(
        self,
        roots: Sequence[Scalar],
        at: Mapping[int, list[int]],
        load: Callable[[Load, Sequence[Code]], Code],
        say: Callable[[str], str],
    ) -> None:
        self._at, self._load, self._say = at, load, say
        self._code: dict[int, Code] = {}
        self._bounds: dict[int, int] = {}
        self._memo: dict[int, Any] = {}
        orders = [post_order(root) for root in roots]
        nodes = {id(node): node for order in orders for node in order}
        uses = Counter(id(c) for node in nodes.values() for c in node.children)
        uses.update(map(id, roots))
        for order in orders:
            for node in order:
                if id(node) not in self._code:
                    code = self._of_node(node)
                    repeated = uses[id(node)] > 1 and bool(node.children)
                    self._code[id(node)] = self._once(id(node), code) if repeated else code

    def start(self) -> None:
        """Clears cached values; called before the statement runs."""
        self._memo.clear()

    def of(self, node: Scalar) -> Code:
        """Returns the function that computes an expression. In a select, only the branch that is
        taken runs.
        """
        return self._code[id(node)]

    def _once(self, key: int, code: Code) -> Code:
        memo = self._memo

        def shared() -> Any:
            found = memo.get(key)
            if found is None:
                found = memo[key] = code()
            return found

        return shared

    def _typed(self, node: Scalar) -> Code:
        """Returns the function that computes an expression as a numpy scalar."""
        code = self._code[id(node)]
        if id(node) not in self._bounds:
            return code
        kind = to_numpy(node.dtype).type
        return lambda: kind(code())

    def _of_node(self, node: Scalar) -> Code:
        bound = self._bound(node)
        if bound is not None:
            self._bounds[id(node)] = bound
        match node:
            case Imm():
                value = node.value if bound is not None else te_interpret.apply(node, [])[()]
                return lambda: value
            case Index():
                return self._index(node)
            case Inlined():
                return self._code[id(node.value)]
            case Load():
                return self._load(node, [self.of(i) for i in node.indices])
            case Checked():
                return self._checked(node)
            case Select():
                part = self.of if bound is not None else self._typed
                cond, a, b = self.of(node.cond), part(node.a), part(node.b)
                return lambda: a() if cond() else b()
            case Binary(op="and", dtype="bool"):
                a, b = self._typed(node.a), self._typed(node.b)
                return lambda: a() and b()
            case Binary():
                return self._binary(node)
            case Unary(op="neg") if bound is not None:
                a = self.of(node.a)
                return lambda: -a()
            case Cast() if _is_plain(node):
                a, wanted = self._typed(node.a), to_numpy(node.dtype)
                return lambda: a().astype(wanted)
        args = [self._typed(c) for c in node.children]
        return lambda: te_interpret.apply(node, [a() for a in args])[()]

    def _bound(self, node: Scalar) -> int | None:
        """Returns a bound on the magnitude of an expression of loop variables alone; None for any
        other expression, and for one that may not fit into 64 bits.
        """
        bounds = [self._bounds.get(id(c)) for c in node.children]
        known = [b for b in bounds if b is not None]
        if len(known) < len(bounds):
            return None
        bound = None
        match node:
            case Imm(dtype="i64"):
                bound = abs(node.value)
            case Index():
                assert isinstance(node.extent, int)
                bound = node.extent
            case Inlined() | Select() | Unary(op="neg"):
                bound = max(known)
            case Binary(op="mul"):
                bound = known[0] * known[1]
            case Binary(op="floordiv" | "mod"):
                divides = isinstance(node.b, Imm) and node.b.value > 0
                bound = max(known) if divides else None
            case Binary() if node.op in _ON_INDICES:
                bound = sum(known)
        return bound if bound is not None and bound < _MOST_INDEX else None

    def _index(self, index: Index) -> Code:
        at = self._at.get(id(index))
        if at is not None:
            return lambda: at[0]

        def outside() -> int:
            if index.extent != 1:
                raise AssertionError(self._say(f"uses loop variable {index.name} outside its loop"))
            return 0

        return outside

    def _binary(self, node: Binary) -> Code:
        if id(node) in self._bounds:
            a, b, compute = self.of(node.a), self.of(node.b), _ON_INDICES[node.op]
        else:
            a, b = self._typed(node.a), self._typed(node.b)
            found = _ON_SCALARS.get(node.op)
            if found is None or node.a.dtype in STORAGE or node.a.dtype == "bool":
                return lambda: te_interpret.apply(node, [a(), b()])[()]
            compute = found
        return lambda: compute(a(), b())

    def _checked(self, node: Checked) -> Code:
        """Errors of the function: I320 for an index out of range."""
        value, places = self.of(node.value), node.places

        def checked() -> Any:
            index = int(value())
            if not places.low <= index < places.count:
                raise places.error(index)
            return np.int64(index + places.count if index < 0 else index)

        return checked


def _is_plain(cast: Cast) -> bool:
    """Whether NumPy's conversion equals that of native code (see `te.convert`)."""
    source, wanted = cast.a.dtype, cast.dtype
    if source in STORAGE or wanted in STORAGE or (source, wanted) == ("f64", "bf16"):
        return False
    return not is_float(source) or is_float(wanted)
