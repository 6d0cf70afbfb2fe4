"""Examines a run of the program, kernel by kernel: finds the first kernel that does not compute its
function, or reads overwritten memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from clew.bisection.cases import Case, completed
from clew.bisection.numbers import dtypes_of, due_of, error_of, narrow_in
from clew.build.observe import Ran, node_values, observe
from clew.build.result import Build, KernelUse
from clew.ir.expr import Call, Constant, Expr, Function, Let, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret_values
from clew.ir.size_names import sizes_in
from clew.ir.types import TupleType
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.passes.fusion.views import part_offsets, view_offsets

Say = Callable[[str], None]


@dataclass(frozen=True)
class Fault:
    """A wrong kernel or region, or a wrong node of a host step.

    `kind` is `kernel` (its results are not its function of its operands), `operand` (an operand was
    overwritten: `lost` is the node whose value is lost), `host` or `region`. `operands` and
    `expected` are arrays.
    """

    kind: str
    node: Call
    use: KernelUse | None
    operands: tuple[Any, ...]
    expected: Any
    error: float
    due: float
    lost: Expr | None = None

    @property
    def name(self) -> str:
        """The kernel's name, or the name of a host step's operator."""
        return self.node.title if self.use is None else self.use.name

    @property
    def function(self) -> Function:
        """The kernel's function."""
        assert isinstance(self.node.op, Function)
        return self.node.op


@dataclass
class Examination:
    """The result of an examination: faults in the order of the run, and errors of right kernels."""

    faults: list[Fault] = field(default_factory=list)
    errors: list[tuple[KernelUse, float]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def examine(build: Build, arrays: Sequence[Any], say: Say, most: int = 1) -> Examination:
    """Returns the first `most` faults of kernels in a run.

    Each kernel's results are compared with the interpreter's on the operands it actually had, and
    these operands with the values computed for them earlier.
    """
    seen = Examination()
    memory = _Memory(build, arrays)
    count = len(build.uses)

    def note(ran: Ran) -> None:
        if len(seen.faults) >= most:
            return
        say(f"kernel {len(seen.errors) + 1} of {count}, {ran.use.name}")
        call = ran.use.call
        lost = memory.lost(call, ran.operands)
        if lost is not None:
            seen.faults.append(
                Fault("operand", call, ran.use, ran.operands, None, lost[1], 0.0, lost[0])
            )
            return
        fault = _wrong(ran, seen, build)
        memory.put(call, ran.results)
        if fault is not None:
            seen.faults.append(fault)

    with np.errstate(all="ignore"):
        seen.outputs = observe(build, arrays, note)
    return seen


def true_results(ran: Ran, build: Build) -> Any:
    """Returns the interpreter's result of a kernel on the operands it had."""
    function = ran.use.call.op
    assert isinstance(function, Function)
    wanted = function.body.id
    return interpret_values(function, ran.operands, {wanted}, sizes=build.sizes)[wanted]


def _wrong(ran: Ran, seen: Examination, build: Build) -> Fault | None:
    function = ran.use.call.op
    assert isinstance(function, Function)
    expected = true_results(ran, build)
    results: Any = ran.results if isinstance(expected, tuple) else ran.results[0]
    error = error_of(expected, results)
    due = due_of_function(function)
    seen.errors.append((ran.use, error))
    if error <= due:
        return None
    return Fault("kernel", ran.use.call, ran.use, ran.operands, expected, error, due)


def due_of_function(function: Function) -> float:
    """Returns the error that rounding may cause in a kernel."""
    return due_of(dtypes_of(function.body.type), narrow_in(post_order(function.body)))


def examine_hosts(build: Build, arrays: Sequence[Any]) -> list[Fault]:
    """Returns the operators between kernels whose results differ from their references."""
    main: Function = build.stages[-1].module.main
    found: list[Fault] = []
    steps = [
        n
        for n in post_order(main.body)
        if isinstance(n, Call)
        and isinstance(n.op, Op)
        and view_offsets(n) is None
        and part_offsets(n) is None
    ]
    if not steps:
        return found
    values = node_values(build, arrays)
    for node in steps:
        operands = [values.get(a.id) for a in node.args]
        if node.id not in values or any(o is None for o in operands):
            continue
        params = [Var(f"x{n}", a.type) for n, a in enumerate(node.args)]
        function = Function(params, Call(node.op, params, node.attrs))
        wanted = function.body.id
        expected = interpret_values(function, operands, {wanted}, sizes=build.sizes)[wanted]
        error, due = (
            error_of(expected, values[node.id]),
            due_of(dtypes_of(node.type), narrow_in(node.args)),
        )
        if error > due:
            found.append(Fault("host", node, None, tuple(operands), expected, error, due))
    return found


def examine_regions(build: Build, arrays: Sequence[Any]) -> list[Fault]:
    """Returns the regions whose results differ from the interpreter's on the operands they had, in
    the order of the run.
    """
    found: list[Fault] = []
    wanted = {n.id for use in build.regions for n in (use.call, *use.call.args)}
    values = node_values(build, arrays, wanted) if wanted else {}
    for use in build.regions:
        call, function = use.call, use.call.op
        assert isinstance(function, Function)
        operands = [values.get(a.id) for a in call.args]
        if call.id not in values or any(o is None for o in operands):
            continue
        body = function.body.id
        with np.errstate(all="ignore"):
            expected = interpret_values(function, operands, {body}, sizes=build.sizes)[body]
        error, due = error_of(expected, values[call.id]), due_of_function(function)
        if error > due:
            found.append(Fault("region", call, None, tuple(operands), expected, error, due))
    return found


class _Memory:
    """The values computed so far, by node, and thus the expected operands of kernels."""

    def __init__(self, build: Build, arrays: Sequence[Any]) -> None:
        main = build.stages[-1].module.main
        self._build = build
        self._known: dict[int, Any] = dict(zip((p.id for p in main.params), arrays, strict=True))
        self._own = {n.id for n in post_order(main.body)}
        self._bound = {n.var.id: n.value for n in post_order(main.body) if isinstance(n, Let)}

    def put(self, call: Call, results: Sequence[Any]) -> None:
        """Stores the results of a call of the main function."""
        if call.id in self._own:
            many = isinstance(call.type, TupleType)
            self._known[call.id] = tuple(results) if many else results[0]

    def lost(self, call: Call, operands: Sequence[Any]) -> tuple[Expr, float] | None:
        """Returns an operand that differs from the value computed for it, and the error."""
        if call.id not in self._own or len(operands) != len(call.args):
            return None
        for arg, operand in zip(call.args, operands, strict=True):
            true = self._value(arg)
            if true is None or isinstance(true, tuple):
                continue
            if not _same_bits(true, operand):
                return arg, error_of(true, np.reshape(operand, np.shape(true)))
        return None

    def _value(self, node: Expr) -> Any:
        if node.id in self._known:
            return self._known[node.id]
        match node:
            case Constant():
                return node.data
            case Let():
                return self._value(node.body)
            case Var() if node.id in self._bound:
                return self._value(self._bound[node.id])
            case TupleGetItem():
                whole = self._value(node.value)
                return None if whole is None else whole[node.index]
            case Tuple():
                fields = [self._value(f) for f in node.fields]
                return None if any(f is None for f in fields) else tuple(fields)
            case Call(op=Op() as op) if view_offsets(node) is not None or part_offsets(node):
                parts = [self._value(a) for a in node.args]
                if any(p is None for p in parts):
                    return None
                return op.run_reference(parts, self._build.attrs_at(node.attrs))
        return None


def _same_bits(a: Any, b: Any) -> bool:
    x, y = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return x.nbytes == y.nbytes and x.tobytes() == y.tobytes()


def alone(
    function: Function,
    operands: Sequence[Any],
    expected: Any,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Case:
    """Returns a kernel as a separate module, for these values of its named sizes."""
    params = [Var(f"x{n}", p.type, span=p.span) for n, p in enumerate(function.params)]
    call = Call(function, params)
    many = isinstance(expected, tuple)
    results = [TupleGetItem(call, n) for n in range(len(expected))] if many else [call]
    values = list(expected) if many else [expected]
    made = {f"y{n}": value for n, value in enumerate(values)}
    inputs = {p.name: v for p, v in zip(params, operands, strict=True)}
    known = {**sizes, **sizes_in(params, operands)}
    return completed(params, Tuple(results), inputs, made, known)
