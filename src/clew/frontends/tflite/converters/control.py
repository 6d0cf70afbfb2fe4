"""Control flow. A subgraph takes all values as operands; only variables come from the enclosing
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clew.frontends.building import call, reshaped, scalar
from clew.frontends.lowering.branches import build_if, read_branch
from clew.frontends.lowering.captures import Captures
from clew.frontends.lowering.loop_types import LoopTypes
from clew.frontends.tflite.converters.trips import trips_of
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.frontends.tflite.variables import Memory, Variable
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, Var, While
from clew.ir.inline import inlined
from clew.ir.types import TensorType, Type
from clew.support.dataclass import dataclass


@converter("CALL", codes=True)
def call_graph(layer: TfliteLayer) -> Result:
    """Inlines a subgraph."""
    return layer.importer.subgraph(
        layer, layer.integer("subgraph", 0), layer.present(), layer.scope.memory
    )


@converter("STABLEHLO_COMPOSITE", codes=True)
def composite(layer: TfliteLayer) -> Result:
    """The results of the graph that defines the composite, as in LiteRT."""
    return layer.importer.subgraph(
        layer, layer.integer("decomposition_subgraph_index", 0), layer.present(), layer.scope.memory
    )


@converter("CALL_ONCE", codes=True)
def call_once(layer: TfliteLayer) -> Result:
    """Evaluates a subgraph at import. The values that it assigns are the initial values of
    variables.

    Errors: U005 if calls assign a variable before it has its initial value.
    """
    number = layer.integer("init_subgraph_index", 0)
    run = partial(layer.importer.subgraph, layer, number, [])
    if not layer.importer.variables.initialize(number, run):
        raise layer.unsupported("an initialization after the first use of a variable")
    return []


@converter("IF", codes=True)
def if_(layer: TfliteLayer) -> Result:
    """Imports only the taken branch if the condition is known; otherwise see `build_if`. Variables
    that a branch assigns are further results of both.
    """
    numbers = [layer.integer(f"{name}_subgraph_index", 0) for name in ("then", "else")]
    known = layer.known_one(0)
    if known is not None:
        return _taken(layer, numbers[not known])
    conditions = [reshaped(layer.input(0), ())]
    return _chosen(layer, conditions, numbers, layer.present()[1:], layer.scope.memory)


@converter("STABLEHLO_CASE", codes=True)
def case(layer: TfliteLayer) -> Result:
    """One of several subgraphs, by its number; the last one for numbers out of range.

    Source: the StableHLO specification.
    """
    numbers, index = layer.integers("branch_subgraph_indices"), layer.input(0)
    if not numbers:
        raise layer.wrong("has no branches")
    known, last = layer.known_one(0), len(numbers) - 1
    if known is not None or last == 0:
        inside = known is not None and 0 <= known < last
        return _taken(layer, numbers[int(known) if inside else last])
    index = reshaped(index, ())
    conditions = [call("equal", index, scalar(n, index.tensor.dtype)) for n in range(last)]
    return _chosen(layer, conditions, numbers, layer.present()[1:], layer.scope.memory)


def _taken(layer: TfliteLayer, number: int) -> list[Expr]:
    """Returns the results of the branch that is known to be taken."""
    around = layer.scope.memory
    memory = Memory(around)
    results = layer.importer.subgraph(layer, number, layer.present()[1:], memory)
    for variable in memory.written_resources:
        around.write(variable, memory.values[variable])
    return results


def _chosen(
    layer: TfliteLayer,
    conditions: Sequence[Expr],
    numbers: Sequence[int],
    inputs: Sequence[Expr],
    around: Memory,
) -> list[Expr]:
    """Returns the results of the first subgraph whose condition holds, or else of the last one."""
    if not conditions:
        return layer.importer.subgraph(layer, numbers[0], inputs, around)
    memories: list[Memory] = []
    assigned: dict[Variable, None] = {}

    def read(rest: Sequence[Expr], numbers: Sequence[int], captures: Captures) -> list[Expr]:
        memory = Memory(around, captures)
        memories.append(memory)
        own = [_captured(layer, n, value, captures) for n, value in enumerate(inputs, 1)]
        further = [captures.parameter("condition", value) for value in rest]
        results = _chosen(layer, further, numbers, own, memory)
        assigned.update(dict.fromkeys(memory.written_resources))
        return results

    first, *rest = conditions
    branches = [
        read_branch(partial(read, [], numbers[:1]), layer.builder.known),
        read_branch(partial(read, rest, numbers[1:]), layer.builder.known),
    ]
    for n, (body, captures) in enumerate(branches):
        if isinstance(body, Tuple) and assigned:
            values = [_value_in(layer, memories[n], variable) for variable in assigned]
            branches[n] = Tuple([*body.fields, *values]), captures
    then, orelse = branches
    results = build_if(first, then, orelse, layer.wrong, layer.builder.asked)
    count = len(results) - len(assigned)
    for variable, value in zip(assigned, results[count:], strict=True):
        around.write(variable, value)
    return results[:count]


def _inside(layer: TfliteLayer, index: int, captures: Captures) -> Expr:
    """Returns an operand as a value inside a function."""
    return _captured(layer, index, layer.input(index), captures)


def _captured(layer: TfliteLayer, index: int, value: Expr, captures: Captures) -> Expr:
    operand = layer.operands[index]
    if isinstance(value, Constant):
        return value
    return captures.parameter(operand.name if operand else "operand", value)


def _value_in(layer: TfliteLayer, memory: Memory, variable: Variable) -> Expr:
    """Returns the value of a variable at the end of a subgraph.

    Errors: U005 if it has none, because only the other branch assigns it.
    """
    found = memory.find(variable)
    if found is None:
        raise layer.unsupported(f"{variable.name!r}, which one branch assigns and nothing reads")
    return found


@dataclass(frozen=True)
class _Read:
    """A loop whose subgraphs were imported: the parameters, condition and next states of its
    function, and the values that it captures.
    """

    params: list[Var]
    goes_on: Expr
    results: list[Expr]
    captures: Captures


@converter("WHILE", codes=True)
def while_(layer: TfliteLayer) -> Result:
    """The loop state has the operands that change, the variables that the body assigns, and the
    captured values, which do not change.
    """
    init, body = layer.present(), layer.integer("body_subgraph_index", 0)
    layer.graph(body)
    fixed = layer.importer.loops.passed_on(body)
    moving = [n for n, value in enumerate(init) if n not in fixed and not _is_handle(layer, n)]
    assigned = layer.importer.loops.assigned.setdefault(layer.name, [])
    around = layer.scope.memory
    while True:
        starts = layer.importer.variables.starts
        before = [around.find(v) if v.is_resource else starts[v] for v in assigned]
        first = [*(init[n] for n in moving), *(value for value in before if value is not None)]
        read = _read(layer, moving, assigned, first)
        if read is not None:
            break
    assert len(first) == len(moving) + len(assigned)
    found = _built(layer, read, first)
    for variable, value in zip(assigned, found[len(moving) :], strict=True):
        if variable.is_resource:
            around.write(variable, value)
    changed = dict(zip(moving, found, strict=False))
    return [changed.get(n, value) for n, value in enumerate(init)]


def _is_handle(layer: TfliteLayer, index: int) -> bool:
    operand = layer.operands[index]
    return operand is not None and operand.dtype == "resource"


def _read(
    layer: TfliteLayer, moving: Sequence[int], assigned: list[Variable], first: Sequence[Expr]
) -> _Read | None:
    """Imports the subgraphs of a loop. If the body assigns variables that are not in `assigned`
    yet, adds them there and returns None.
    """
    loops, known = layer.importer.loops, layer.builder.known
    changing = loops.changing_sizes.setdefault(layer.name, set())
    types = LoopTypes([value.type for value in first], changing, layer.wrong)
    while True:
        captures = Captures(known)
        params = _parameters(layer, moving, assigned, types.types)
        own = dict(zip(moving, params, strict=False))
        inputs = [
            own[n] if n in own else _inside(layer, n, captures) for n in range(len(layer.inputs))
        ]
        memory = Memory(layer.scope.memory, captures)
        memory.values.update(zip(assigned, params[len(moving) :], strict=True))
        body = layer.integer("body_subgraph_index", 0)
        results = layer.importer.subgraph(layer, body, inputs, memory)
        if len(results) != len(inputs):
            raise layer.wrong(f"carries {len(inputs)} values, and its body gives {len(results)}")
        more = [variable for variable in memory.written if variable not in assigned]
        if more:
            _find_all(layer, more, memory)
            assigned += more
            return None
        after = [results[n] for n in moving]
        after += [_value_in(layer, memory, variable) for variable in assigned]
        if not types.widen(after):
            break
    memory = Memory(layer.scope.memory, captures)
    memory.values.update(zip(assigned, params[len(moving) :], strict=True))
    condition = layer.integer("cond_subgraph_index", 0)
    tested = layer.importer.subgraph(layer, condition, inputs, memory)
    if len(tested) != 1 or tested[0].tensor.dtype != "bool":
        raise layer.wrong("has a condition that is no truth value")
    if memory.written:
        raise layer.unsupported("a condition that assigns a variable")
    return _Read(params, reshaped(tested[0], ()), after, captures)


def _find_all(layer: TfliteLayer, variables: Sequence[Variable], memory: Memory) -> None:
    """Gives variables that a loop's body assigns a value before the loop."""
    for variable in variables:
        if variable.is_resource and layer.scope.memory.find(variable) is None:
            layer.importer.variables.define(variable, memory.values[variable].tensor)


def _parameters(
    layer: TfliteLayer,
    moving: Sequence[int],
    assigned: Sequence[Variable],
    types: Sequence[Type],
) -> list[Var]:
    operands = [layer.operands[n] for n in moving]
    names = [operand.name if operand else "" for operand in operands]
    names += [variable.name for variable in assigned]
    return [Var(name or "state", type_) for name, type_ in zip(names, types, strict=True)]


def _built(layer: TfliteLayer, read: _Read, first: Sequence[Expr]) -> list[Expr]:
    """Returns the states after a loop."""
    counter = Var("i", TensorType((), "i64"))
    taken = list(read.captures.parameters.values())
    inner = [var for _, var in taken]
    params = [counter, *read.params, *inner]
    body = Function(params, Tuple([*read.results, *inner]))
    trips: Dim | None = trips_of(layer, read.goes_on, read.params, read.results, first)
    fresh = [Var(f"state{n}", param.type) for n, param in enumerate(params)]
    if isinstance(trips, int):
        goes_on: Expr = call("less", fresh[0], scalar(trips, "i64"))
    else:
        goes_on = inlined(Function(params, read.goes_on), fresh)
    condition = Function(fresh, goes_on)
    init = [*first, *(outer for outer, _ in taken)]
    loop = While(condition, body, init, trips=trips)
    return [TupleGetItem(loop, n) for n in range(len(first))]
