"""Control flow: torch's higher-order operators, whose bodies are modules inside the graph.

All that a body uses is among its operands. Operands that are known become part of the body; tensors
become parameters of a function.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.loops import build_loop, length_of
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.frontends.torch.values import Value
from clew.ir.dims import SymDim
from clew.ir.expr import (
    Constant,
    Expr,
    Function,
    If,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.types import TensorType
from clew.ir.values import KnownValues


class _Operands:
    """The operands of a body: those that are tensors only in a run, and all as a body gets them."""

    def __init__(self, layer: Layer, operands: Sequence[Value]) -> None:
        self._layer = layer
        self._operands = list(operands)
        self.outer = [x for x in operands if _varies(x)]

    def parameters(self) -> list[Var]:
        """Returns new parameters for the tensors."""
        return [Var(f"operand{n}", x.type) for n, x in enumerate(self.outer)]

    def inner(self, parameters: Sequence[Var]) -> list[Value]:
        """Returns all operands, with parameters for the tensors."""
        fresh = iter(parameters)
        return [next(fresh) if _varies(x) else x for x in self._operands]


def _varies(x: Value) -> bool:
    return isinstance(x, Expr) and not isinstance(x, Constant)


def _body(layer: Layer, name: str, operands: Sequence[Value], within: str) -> list[Value]:
    """Returns the results of a module among the arguments; its layers are called `within`."""
    module = layer[name]
    assert isinstance(module, fx.GraphModule), name
    return layer.importer.inner(module, operands, f"{layer.name}/{within}")


def _tensors(layer: Layer, values: Sequence[Value]) -> list[Expr]:
    return [_tensor(layer, value) for value in values]


def _tensor(layer: Layer, value: Value) -> Expr:
    """Returns a body's operand or result as a tensor: numbers are scalars."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, float, SymDim)):
        kinds: dict[type, str] = {bool: "bool", float: "f64"}
        dtype = kinds.get(type(value), "i64")
        return layer.importer.scalar_of(value, dtype)
    raise layer.unsupported(f"a body that returns a {type(value).__name__}")


@converter("cond")
def cond(layer: Layer) -> Result:
    """Both branches as functions of the operands; of a known condition, its branch."""
    condition, operands = layer["arg0"], layer["arg3"]
    if isinstance(condition, bool):
        return _body(layer, "arg1" if condition else "arg2", operands, str(condition).lower())
    made = _Operands(layer, operands)
    branches = []
    for name, within in (("arg1", "true"), ("arg2", "false")):
        params = made.parameters()
        results = _body(layer, name, made.inner(params), within)
        branches.append(Function(params, Tuple(_tensors(layer, results))))
    then, orelse = branches
    taken = If(reshaped(condition, ()), then, orelse, made.outer)
    return [TupleGetItem(taken, n) for n in range(len(layer.fakes))]


@converter("while_loop")
def while_loop(layer: Layer) -> Result:
    """A loop whose state is the carried values, then the operands, which do not change."""
    init = _tensors(layer, layer["arg2"])
    made = _Operands(layer, layer["arg3"])

    def parameters() -> tuple[Var, list[Var], list[Var]]:
        carried = [Var(f"state{n}", x.type) for n, x in enumerate(init)]
        return Var("i", TensorType((), "i64")), carried, made.parameters()

    index, carried, kept = parameters()
    (going,) = _body(layer, "arg0", [*carried, *made.inner(kept)], "condition")
    condition = Function([index, *carried, *kept], reshaped(_tensor(layer, going), ()))
    index, carried, kept = parameters()
    results = _tensors(layer, _body(layer, "arg1", [*carried, *made.inner(kept)], "body"))
    _check_state(layer, carried, results)
    body = Function([index, *carried, *kept], Tuple([*results, *kept]))
    loop = While(condition, body, [*init, *made.outer])
    return [TupleGetItem(loop, n) for n in range(len(init))]


def _check_state(layer: Layer, carried: Sequence[Expr], results: Sequence[Expr]) -> None:
    for before, after in zip(carried, results, strict=True):
        if before.type != after.type:
            raise layer.unsupported(f"a state that is {before.type}, and then {after.type}")


@converter("scan")
def scan(layer: Layer) -> Result:
    """A loop over the rows of tensors: the last states, then the stacked results."""
    init = _tensors(layer, layer["arg1"])
    return _over_rows(layer, init, layer["arg2"], layer.get("arg3", ()))


@converter("map_impl")
def map_(layer: Layer) -> Result:
    """The results for each row of tensors, stacked."""
    return _over_rows(layer, [], layer["arg1"], layer.get("arg2", ()))


def _over_rows(
    layer: Layer, init: Sequence[Expr], series: Sequence[Expr], operands: Sequence[Value]
) -> list[Expr]:
    made = _Operands(layer, operands)
    trips = series[0].tensor.shape[0]
    index, going = Var("i", TensorType((), "i64")), Var("going", TensorType((), "bool"))
    carried = [Var(f"state{n}", x.type) for n, x in enumerate(init)]
    whole = [Var(f"series{n}", x.type) for n, x in enumerate(series)]
    kept = made.parameters()
    rows = [call("gather", x, index, axis=0) for x in whole]
    results = _body(layer, "arg0", [*carried, *rows, *made.inner(kept)], "body")
    after = _tensors(layer, results)
    _check_state(layer, carried, after[: len(init)])
    constant = [*series, *made.outer]
    found = build_loop(
        Constant(trips) if isinstance(trips, int) else length_of(series[0]),
        scalar(True, "bool"),
        (index, going, *carried, *whole, *kept),
        going,
        [going, *after[: len(init)], *whole, *kept, *after[len(init) :]],
        [*init, *constant],
        Captures(KnownValues()),
        trips,
    )
    return [*found[: len(init)], *found[len(init) + len(constant) :]]


@converter("invoke_subgraph")
def invoke_subgraph(layer: Layer) -> Result:
    """A module that is called in several places; each call has its own layers."""
    count = sum(1 for name in layer.arguments if name.startswith("arg"))
    return _body(layer, "arg0", [layer[f"arg{n}"] for n in range(2, count)], "body")


@converter("wrap_with_set_grad_enabled", "hints_wrapper", "tag_activation_checkpoint", "wrap")
def inlined(layer: Layer) -> Result:
    """A module whose call says something about gradients or hints alone."""
    operands = [v for n, v in layer.arguments.items() if n.startswith("arg")]
    place = next(n for n, v in enumerate(operands) if isinstance(v, fx.GraphModule))
    rest = operands[place + 1 :]
    if layer.op == "hints_wrapper":
        rest = rest[0]
    return _body(layer, f"arg{place}", rest, "body")
