"""The smallest part of a model that fails alone: around a node, of the program, of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from clew.bisection.cases import Case, completed, units
from clew.bisection.checks import BuildCheck, Check
from clew.bisection.kernels import Fault, alone
from clew.bisection.reduce import Reducer, maker
from clew.bisection.reduced import Reduced
from clew.bisection.session import Session
from clew.ir.expr import Expr, Function, Tuple
from clew.ir.interpret import interpret_values
from clew.ir.visit import post_order


def smallest_around(
    session: Session, check: Check, stage: int, node: Expr, *, kernels: bool = False
) -> Reduced | None:
    """Returns the smallest failing part around a node of a stage; with `kernels`, also with as few
    operators in each kernel as possible. None if nothing fails, or reduction is off.
    """
    if not session.seconds:
        return None
    main = session.main(stage)
    reducer = Reducer(check, session.say, session.seconds)
    make = maker(main, session.all_values(stage))
    members = reducer.neighborhood(main, _seeds(main, node), make)
    if members is None:
        return None
    case = _with_fewer_outputs(reducer, make(reducer.smaller(members, make)))
    iterations: list[int] = []
    while (found := reducer.inside_loop(case)) is not None:
        case, iteration = _smaller(reducer, found[0]), found[1]
        iterations.append(iteration)
    if kernels:
        case = reducer.smaller_kernels(case)
    return reduced(reducer.smaller_sizes(case), check, iterations)


def _smaller(reducer: Reducer, case: Case) -> Case:
    """Returns the failing case with as few nodes and outputs as possible."""
    main = case.module.main
    own = {p.id: case.inputs[p.name] for p in main.params}
    wanted = {n.id for n in post_order(main.body)}
    values = own | interpret_values(main, list(own.values()), wanted)
    make = maker(main, values)
    whole = {n.id for n in units(main)}
    if not reducer.fails(make(whole)):
        return case
    return _with_fewer_outputs(reducer, make(reducer.smaller(whole, make)))


def _with_fewer_outputs(reducer: Reducer, case: Case) -> Case:
    return reducer.fewer_outputs(case, lambda names: _only(case, names))


def _seeds(main: Function, node: Expr) -> set[int]:
    """Returns the node, or, for tuples and constants, the nodes that read it; or else all nodes."""
    own = units(main)
    found = {n.id for n in own if n.id == node.id}
    found = found or {n.id for n in own if any(c.id == node.id for c in n.children)}
    return found or {n.id for n in own}


def smallest_program(session: Session, check: BuildCheck, fault: Fault) -> Reduced | None:
    """Returns the fewest nodes of the program with which a kernel loses its operand: from those
    between the operand's producer and the kernel, or else from all.
    """
    if not session.seconds:
        return None
    assert fault.lost is not None
    main = session.main(session.last)
    reducer = Reducer(check, session.say, session.seconds)
    make = maker(main, session.all_values(session.last))
    order = [n.id for n in units(main)]
    behind = [n.id for n in post_order(fault.lost) if n.id in set(order)]
    start = order.index(behind[-1]) if behind else 0
    members = set(order[start : order.index(fault.node.id) + 1])
    if not reducer.fails(make(members)):
        members = set(order)
        if not reducer.fails(make(members)):
            return None
    case = make(reducer.smaller(members, make))
    case = reducer.smaller_kernels(case)
    return reduced(reducer.smaller_sizes(case), check)


def smallest_kernel(session: Session, check: BuildCheck, fault: Fault) -> Reduced | None:
    """Returns the fewest operators of a kernel with which it is still wrong."""
    if not session.seconds:
        return None
    function = fault.function
    reducer = Reducer(check, session.say, session.seconds)
    wanted = {n.id for n in post_order(function.body)}
    sizes = session.build.sizes
    values = interpret_values(function, fault.operands, wanted, sizes=sizes)
    values |= {p.id: v for p, v in zip(function.params, fault.operands, strict=True)}
    whole = {n.id for n in units(function)}

    def kernel(inner: Function) -> Function:
        attrs = dict(function.attrs)
        if len(units(inner)) < len(whole):  # the number of its parts, which is lower now
            attrs.pop("fusion", None)
            attrs.pop("stages", None)
        return Function(inner.params, inner.body, attrs)

    make = maker(function, values, kernel, sizes)
    case = make(reducer.smaller(whole, make))
    if not reducer.fails(case):
        case = alone(function, fault.operands, fault.expected, sizes)
    return reduced(reducer.smaller_sizes(case), check)


def reduced(case: Case, check: Check, iterations: Sequence[int] = ()) -> Reduced | None:
    """Returns a case as part of the verdict, for the given iterations of nested loops; None if
    it does not fail (any more).
    """
    try:
        error = check.error(case.module, case.inputs, case.expected)
    except Exception:  # a part that does not run alone
        return None
    if error <= check.tolerance:
        return None
    found = tuple(iterations)
    return Reduced(
        case.module, case.inputs, case.expected, case.operators, error, check, iterations=found
    )


def _only(case: Case, names: Sequence[str]) -> Case:
    """Returns the case with some of its outputs."""
    main = case.module.main
    fields = dict(zip(case.module.output_names, main.body.children, strict=True))
    body = Tuple([fields[n] for n in names])
    read = {n.id for n in post_order(body)}
    params = [p for p in main.params if p.id in read]
    inputs = {p.name: case.inputs[p.name] for p in params}
    return completed(params, body, inputs, {n: case.expected[n] for n in names}, case.sizes)
