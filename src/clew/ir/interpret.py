"""Interprets graphs with the operators' NumPy references, which define their meaning.

Deep graphs do not cause recursion; nested functions do. Symbolic sizes are bound from the values of
a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.ir.dims import Atom, Dim, SymDim, substitute
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.module import Module
from clew.ir.size_names import sizes_in
from clew.ir.types import (
    TensorType,
    TupleType,
    Type,
    UnrankedType,
    from_numpy,
    is_float,
    to_numpy,
)
from clew.ir.wide_floats import narrowed, widened, widened_attrs, widened_type
from clew.support.budgets import check_loop_steps
from clew.support.errors import GraphTypeError, InputError, RunError
from clew.support.text_arrays import as_text
from clew.support.walk import post_order

Array: TypeAlias = NDArray[Any]
Value: TypeAlias = Any
"""An array, a tuple of values, or another value of host operators (lists, None)."""
Instead: TypeAlias = Callable[[Expr, Value], Value]
Around: TypeAlias = Callable[[Call, Sequence[Value], Callable[[Sequence[Value]], Value]], Value]
"""Called with a call of an operator, its operands, and the function that computes it."""


class Runnable(Protocol):
    """The part of an operator's interface used here."""

    name: str
    compute: Any
    reference_rule: Any
    decompose_rule: Any
    host: bool
    traits: Any

    def run_reference(self, args: Sequence[Array], attrs: Mapping[str, Any]) -> Any:
        """Returns the result on NumPy arrays."""
        ...


def interpret(
    module: Module, inputs: Mapping[str, Array], around: Around | None = None
) -> dict[str, Array]:
    """Returns the outputs of `main` by name. `around` may replace the computation of operators.

    Errors: I022 for missing or unknown inputs, I023 for an input of the wrong shape or dtype.
    """
    names = module.input_names
    if set(inputs) != set(names):
        raise InputError(
            "I022",
            f"inputs are {', '.join(sorted(inputs)) or 'none'}",
            hint=f"expected {', '.join(names) or 'none'}",
        )
    run = _Run(module, around=around)
    args = [_checked(p, inputs[p.name]) for p in module.main.params]
    results = run.function(module.main, args)
    if not isinstance(module.main.body.type, TupleType):
        results = (results,)
    return dict(zip(module.output_names, results, strict=True))


def interpret_values(
    function: Function,
    args: Sequence[Value],
    wanted: Iterable[int],
    module: Module | None = None,
    known: Mapping[int, Value] | None = None,
    results: Results | None = None,
    instead: Instead | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    wide: bool = False,
) -> dict[int, Value]:
    """Returns the values of the wanted nodes (by id) of a function and of functions in it.

    A node in a function that runs more than once has its last value. Other values are freed as soon
    as nothing needs them. `sizes` has values of named sizes, for those that the shapes of the
    arguments do not give. `known` gives values of constants and of the function's own nodes, which
    are then not computed; `results` gives results of operators in earlier runs. `module` is needed
    if the function calls globals. `instead` is called with each computed node and its value, and
    returns the value that later nodes read. With `wide`, narrow floats are f32, as the arguments
    must be: no value is rounded to them.
    """
    run = _Run(module, frozenset(wanted), results, instead, wide=wide, known=known)
    run.function(function, args, sizes=sizes, known=known)
    return run.found


def interpreted(function: Function) -> Callable[[Sequence[Value], Mapping[str, int]], Value]:
    """Returns a callable that runs a function on arguments and on sizes not given by the arguments'
    shapes. It may be called many times, also from several threads.
    """
    run = _Run(None)
    return lambda args, sizes: run.function(function, args, sizes=sizes)


def _checked(param: Var, value: Array) -> Array:
    type_ = param.type
    if not isinstance(type_, TensorType):
        return value
    array = np.asarray(value)
    if type_.dtype == "str" and array.dtype.kind in "OSUT":
        array = as_text(array)
    fits = len(array.shape) == type_.rank and all(
        not isinstance(d, int) or d == n for d, n in zip(type_.shape, array.shape, strict=False)
    )
    if not fits or array.dtype != to_numpy(type_.dtype):
        raise InputError(
            "I023", f"input {param.name!r} is {array.dtype}{list(array.shape)}, expected {type_}"
        )
    return array


class Results:
    """Results of operators by the identity of their operands, for later runs.

    A rebuilt call with the same arrays is not computed again. `next_run` drops results that the
    previous run did not use.
    """

    def __init__(self) -> None:
        self._old: dict[Any, tuple[Sequence[Value], Value]] = {}
        self._new: dict[Any, tuple[Sequence[Value], Value]] = {}

    def next_run(self) -> None:
        """Begins the next run."""
        self._old, self._new = self._new, {}

    def of(self, call: Call, args: Sequence[Value], compute: Callable[[], Value]) -> Value:
        """Returns the call's result, computed only if it is unknown."""
        key = (call.op_name, call.attrs, call.type, *map(id, args))
        # The entry keeps its arguments alive, so no other object can reuse their ids.
        entry = self._new.get(key) or self._old.get(key) or (args, compute())
        self._new[key] = entry
        return entry[1]


class _Run:
    """One run: the module for global functions, and the nodes whose values are wanted."""

    def __init__(
        self,
        module: Module | None,
        wanted: frozenset[int] = frozenset(),
        results: Results | None = None,
        instead: Instead | None = None,
        around: Around | None = None,
        *,
        wide: bool = False,
        known: Mapping[int, Value] | None = None,
    ) -> None:
        self._module = module
        self._wide = wide
        self._known = known or {}
        self._around = around
        self._results = results
        self._instead = instead
        self._wanted = wanted
        self.found: dict[int, Value] = {}
        self._orders: dict[int, tuple[list[Expr], dict[int, int], dict[int, Expr]]] = {}

    def function(
        self,
        function: Function,
        args: Sequence[Value],
        *,
        sizes: Mapping[str, Dim] | None = None,
        known: Mapping[int, Value] | None = None,
    ) -> Value:
        """Returns a function's result and records the values of wanted nodes in `found`."""
        order, uses, bound = self._order(function)
        here: dict[str, Dim] = dict(sizes or {})
        values: dict[int, Value] = {}
        for param, arg in zip(function.params, args, strict=True):
            values[param.id] = arg
            _bind(param.type, arg, here)
        for name, size in sizes_in(function.params, args).items():
            here.setdefault(name, size)  # only expressions give it
        left = dict(uses)
        for node in order:
            if known and node.id in known:
                values[node.id] = known[node.id]
                _bind(node.type, values[node.id], here)
            elif node.id not in values:
                operands = _operands(node, bound)
                values[node.id] = self._evaluate(node, [values.get(o.id) for o in operands], here)
                _bind(node.type, values[node.id], here)
                for operand in operands:
                    left[operand.id] -= 1
                    if not left[operand.id] and operand is not function.body:
                        values.pop(operand.id, None)
                if self._instead is not None:
                    values[node.id] = self._instead(node, values[node.id])
            if node.id in self._wanted:
                self.found[node.id] = values.get(node.id)
        return values[function.body.id]

    def _order(self, function: Function) -> tuple[list[Expr], dict[int, int], dict[int, Expr]]:
        """Returns the body's nodes in order, the number of uses of each, and the `Let` bindings."""
        known = self._orders.get(function.id)
        if known is None:
            bound = _let_bound(function.body)
            order = _sorted(function.body, bound)
            uses: dict[int, int] = {}
            for node in order:
                for operand in _operands(node, bound):
                    uses[operand.id] = uses.get(operand.id, 0) + 1
            known = self._orders[function.id] = (order, uses, bound)
        return known

    def _evaluate(self, node: Expr, operands: list[Value], sizes: dict[str, Dim]) -> Value:
        match node:
            case Constant():
                if node.id in self._known:
                    return self._known[node.id]
                return widened(node.data) if self._wide else node.data
            case Var():
                assert operands, f"{node.name} is free"
                return operands[0]
            case Tuple():
                return tuple(operands)
            case TupleGetItem():
                return operands[0][node.index]
            case Let():
                return operands[-1]
            case If():
                taken = node.then if bool(np.reshape(operands[0], ())) else node.orelse
                return self.function(taken, operands[1:], sizes=sizes)
            case While():
                return self._loop(node, operands, sizes)
            case Call(op=Function() as function):
                return self.function(function, operands, sizes=sizes)
            case Call(op=GlobalVar() as name):
                assert self._module is not None
                return self.function(self._module.functions[name.name], operands)
            case Call():
                return self._operator(node, operands, sizes)
        raise AssertionError(node)

    def _operator(self, call: Call, args: list[Value], sizes: dict[str, Dim]) -> Value:
        op: Runnable = call.op  # type: ignore[assignment]
        attrs = {name: _concrete(value, sizes) for name, value in call.attrs.items()}

        def compute(operands: Sequence[Value] = args) -> Value:
            return self._computed(call, operands, attrs)

        if op.reference_rule is None and op.compute is None:
            return compute()
        if self._around is not None:
            return self._around(call, args, compute)
        # A host operator may be random, and a symbol may have another size elsewhere.
        if self._results is None or not args or op.host or attrs != dict(call.attrs):
            return compute()
        return self._results.of(call, args, compute)

    def _computed(self, call: Call, args: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        if not self._wide:
            return self._applied(call, args, attrs, call.type)
        if not call.op.traits.reads_bits:  # type: ignore[union-attr]
            try:
                wide = widened_attrs(attrs)
                return self._applied(call, [*map(widened, args)], wide, widened_type(call.type))
            except GraphTypeError:
                pass  # it is defined for narrow floats alone
        own = [narrowed(value, arg.type) for value, arg in zip(args, call.args, strict=True)]
        return self._applied(call, own, attrs, call.type)

    def _applied(
        self, call: Call, args: Sequence[Value], attrs: Mapping[str, Any], type_: Type
    ) -> Value:
        op: Runnable = call.op  # type: ignore[assignment]
        if op.reference_rule is None and op.compute is None:
            assert op.decompose_rule is not None, f"{op.name} cannot run"
            types = [TensorType(a.shape, from_numpy(a.dtype)) for a in args]
            params = [Var(f"x{n}", t) for n, t in enumerate(types)]
            return self.function(Function(params, op.decompose_rule(*params, **attrs)), args)
        with np.errstate(all="ignore"):
            return _typed(op.run_reference(args, attrs), type_)

    def _loop(self, loop: While, operands: list[Value], sizes: dict[str, Dim]) -> Value:
        state = list(operands)
        remembered, self._results = self._results, None  # iterations would pile up
        stacks: list[list[Array]] = [[] for _ in range(loop.scans)]
        index = 0
        while bool(self.function(loop.cond, [np.int64(index), *state], sizes=sizes)):
            results = self.function(loop.body, [np.int64(index), *state], sizes=sizes)
            state = list(results[: len(state)])
            for stack, item in zip(stacks, results[len(state) :], strict=True):
                stack.append(item)
            index += 1
            check_loop_steps(index)
        self._results = remembered
        types = loop.type.fields[len(state) :]  # type: ignore[union-attr]
        known = dict(sizes)
        if not index:  # an empty stack has the sizes of the states that share its symbols
            for param, value in zip(loop.body.params[1:], state, strict=True):
                _bind(param.type, value, known)
        stacked = [_stack(s, t, known) for s, t in zip(stacks, types, strict=True)]
        return (*state, *stacked)


def _stack(items: list[Array], type_: Type, sizes: Mapping[str, Dim]) -> Array:
    if items and len({np.shape(item) for item in items}) > 1:
        shapes = ", ".join(dict.fromkeys(str(list(np.shape(item))) for item in items))
        raise RunError("I271", f"a loop stacks values of different shapes: {shapes}")
    if items:
        return np.stack(items)
    if isinstance(type_, UnrankedType):
        return np.zeros([0], to_numpy(type_.dtype))
    assert isinstance(type_, TensorType)
    rest = [substitute(d, sizes) for d in type_.shape[1:]]
    return np.zeros([0, *(d if isinstance(d, int) else 0 for d in rest)], to_numpy(type_.dtype))


def _typed(result: Any, type_: Type) -> Value:
    """Returns results as arrays of the dtypes they are typed with, since NumPy widens some
    dtypes.
    """
    if isinstance(type_, TupleType):
        return tuple(_typed(r, t) for r, t in zip(result, type_.fields, strict=True))
    if not isinstance(type_, TensorType):
        return result
    array = np.asarray(result)
    wanted = to_numpy(type_.dtype)
    if array.dtype == wanted:
        return array
    assert is_float(type_.dtype) or array.dtype.kind in "iub", f"{array.dtype} for {type_}"
    return array.astype(wanted)


def _concrete(value: Any, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(value, SymDim):
        return substitute(value, sizes)
    if isinstance(value, tuple):
        return tuple(_concrete(v, sizes) for v in value)
    return value


def _bind(type_: Type, value: Value, sizes: dict[str, Dim]) -> None:
    """Binds each size that a type names directly to the size of the value."""
    if isinstance(type_, TupleType):
        for field, item in zip(type_.fields, value, strict=True):
            _bind(field, item, sizes)
    elif isinstance(type_, TensorType) and not type_.is_static:
        for dim, size in zip(type_.shape, np.shape(value), strict=True):
            name = _plain(dim)
            if name is not None:
                sizes[name] = int(size)


def _plain(dim: Dim) -> str | None:
    if not isinstance(dim, SymDim) or len(dim.terms) != 1:
        return None
    monomial, coefficient = dim.terms[0]
    if coefficient != 1 or len(monomial) != 1:
        return None
    atom: Atom
    atom, power = monomial[0]
    return atom.name if power == 1 and not atom.op else None


# --- order ----------------------------------------------------------------------------------------


def _operands(node: Expr, bound: Mapping[int, Expr]) -> Sequence[Expr]:
    """Returns the nodes that must be evaluated before `node`."""
    match node:
        case Var():
            return (bound[node.id],) if node.id in bound else ()
        case Function():
            return ()
        case If():
            return (node.cond, *node.args)
        case While():
            return node.init
        case Let():
            return (node.value, node.body)
        case Call():
            return node.args
    return node.children


def _let_bound(root: Expr) -> dict[int, Expr]:
    bound: dict[int, Expr] = {}
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node.id in seen or isinstance(node, Function):
            continue
        seen.add(node.id)
        if isinstance(node, Let):
            bound[node.var.id] = node.value
        stack.extend(node.children)
    return bound


def _sorted(root: Expr, bound: Mapping[int, Expr]) -> list[Expr]:
    return post_order((root,), lambda node: _operands(node, bound))
