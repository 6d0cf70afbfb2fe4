"""States in buffers: the form of a module that a session runs.

A growing state, `past -> past + seq`, is concatenated with new elements in every call. In this
form, its input is a buffer with spare room, and a call writes only the new elements: the graph
overwrites a part of the buffer (`overwrite`) and reads a slice of the result. `WriteInPlace` turns
the overwrite into an in-place write.

A state of fixed capacity, of which a call replaces some elements (`Op.scatter`), already has this
form, unless a concatenation with the rest of the state replaces a range: that becomes `overwrite`.

A state that is padded to a total before its elements are replaced, `past -> max(past, total)`, also
grows. Its buffer has room for the total and more, so the padding disappears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clew.cost.policy.fusion import STATE_BYTES
from clew.ir.dims import Dim, SymDim, dim_max, typical
from clew.ir.expr import Attrs, Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.size_names import names_in
from clew.ir.state import STATE
from clew.ir.types import TensorType
from clew.ir.visit import all_nodes
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.simplify.simplify_rules import one_of_the_sizes, size_of_an_axis
from clew.passes.specialize import Specializer
from clew.patterns import RuleRewriter
from clew.support.dataclass import dataclass

_SIZE_RULES: Final = (one_of_the_sizes, size_of_an_axis)
"""Rules that turn reads of a state's size into the size itself, so that it does not depend on the
state's buffer.
"""

HELD: Final = "held"
"""The attribute of a main function that holds the inputs whose memory results may take: pairs of
the names of an input and an output.
"""


@dataclass(frozen=True)
class HeldStates:
    """A module whose states lie in buffers: the growing ones, and those of `fixed` capacity.

    Each of `lengths`, names of sizes, is the valid length of some buffers: the size of a new input
    `bool[length]`, whose elements nothing reads. Another input, `bool[length_spare]`, has the size
    of the room behind the new elements. `reasons` says which growing states keep their form.
    """

    module: Module
    lengths: Mapping[str, str]
    reasons: Mapping[str, str]
    fixed: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Growing:
    """A state that `joined`, the value of an output, extends along an axis."""

    param: Var
    output: int
    joined: Call
    axis: int
    length: SymDim


@dataclass(frozen=True, eq=False)
class _Fixed:
    """A state whose next value, an output, differs in some elements. If a concatenation replaces a
    range of it, `begin` and `axis` are the place of that range.
    """

    param: Var
    output: int
    result: Call
    begin: Dim | None = None
    axis: int = 0


def with_held_states(module: Module, pairs: Sequence[tuple[str, str]]) -> HeldStates:
    """Returns a module with growing states in buffers. `pairs` are the names of state inputs and of
    the outputs that feed them. It has the inputs and outputs of the module in the same order, and
    then the new inputs.
    """
    module = RuleRewriter(_SIZE_RULES).rewrite_module(module)
    module, rooms = _with_rooms(module, pairs)
    found, reasons = _growing(module, pairs)
    fixed = _fixed(module, pairs)
    size = sum(typical(state.param.tensor.memory_bytes) for state in fixed)
    if not rooms and not found and size < STATE_BYTES:
        fixed = []
    taken = _names(module)
    spares = dict(rooms)
    for name in dict.fromkeys(str(state.length) for state in found):
        spares[name] = _free(f"{name}_spare", taken)
    if not found and not fixed:
        return HeldStates(module, {}, reasons)
    made = _Holder(found, spares, fixed).rewrite_module(module)
    return HeldStates(made, spares, reasons, [state.param.name for state in fixed])


def _names(module: Module) -> set[str]:
    return names_in(all_nodes(module.main)) | {p.name for p in module.main.params}


def _with_rooms(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> tuple[Module, Mapping[str, str]]:
    """Returns a module in which states that are padded to a total have spare room, and the names of
    the sizes of that room, by the names of the lengths.
    """
    readers, taken = _readers(module), _names(module)
    padded: dict[str, tuple[Dim, set[int]]] = {}
    for param, _, result, axis, length in _candidates(module, pairs):
        total = _total(param, result, axis, length, readers)
        if total is None:
            continue
        if padded.setdefault(str(length), (total, set()))[0] != total:
            return module, {}
        pad = result.children[0]
        padded[str(length)][1].update((param.id, pad.id, result.id))
    nodes = [n for n in all_nodes(module.main) if not isinstance(n, (Function, Tuple))]
    for name, (_, own) in padded.items():
        if any(node.id not in own and name in names_in([node]) for node in nodes):
            return module, {}  # the graph depends on the length itself
    rooms = {name: _free(f"{name}_spare", taken) for name in padded}
    sizes = {
        name: total + SymDim.symbol(rooms[name], least=0) for name, (total, _) in padded.items()
    }
    return (_Unpadded(sizes).rewrite_module(module), rooms) if rooms else (module, {})


def _total(
    param: Var, result: Expr, axis: int, length: SymDim, readers: Mapping[int, list[Expr]]
) -> Dim | None:
    """Returns the total to which a state is padded before its elements are replaced, if nothing
    reads the result beyond the total; None for other states.
    """
    if not isinstance(result, Call) or not isinstance(result.op, Op):
        return None
    pad = result.args[0] if result.op.scatter_rule is not None else None
    if not isinstance(pad, Call) or pad.op_name != "pad" or pad.args[0] is not param:
        return None
    if readers[param.id] != [pad] or readers[pad.id] != [result] or len(pad.args) > 1:
        return None
    parts = [n for n in readers[result.id] if isinstance(n, Call)]
    ends = {n.attrs.end[0] for n in parts if _range(n, result, axis) is not None}
    if len(ends) != 1 or any(_range(n, result, axis) is None for n in parts):
        return None
    (total,) = ends
    fits = isinstance(total, (int, SymDim)) and dim_max(length, total) == result.tensor.shape[axis]
    return total if fits else None


class _Unpadded(Specializer):
    """Substitutes sizes, and removes pads of width 0."""

    def __init__(self, sizes: Mapping[str, Dim]) -> None:
        super().__init__(sizes, {}, {})

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        made = super().rewrite_call(old, new)
        if isinstance(made, Call) and made.op_name == "pad" and not any(made.attrs.pads):
            replaces(old, made.args[0])
            return made.args[0]
        return made


def growing_states(module: Module, pairs: Sequence[tuple[str, str]]) -> list[Growing]:
    """Returns the growing states that a concatenation extends and nothing else reads."""
    return _growing(module, pairs)[0]


def growing_sizes(module: Module, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of the lengths of growing states."""
    return list(dict.fromkeys(str(length) for *_, length in _candidates(module, pairs)))


def growing_places(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> dict[str, tuple[int, int, SymDim]]:
    """Returns the growing states by input name: for each, the number of its output, the axis along
    which it grows, and its size along that axis.
    """
    return {p.name: (number, axis, n) for p, number, _, axis, n in _candidates(module, pairs)}


def _candidates(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> list[tuple[Var, int, Expr, int, SymDim]]:
    """Returns the states that grow along one axis: each with the number of its output, the output,
    the axis and the size.
    """
    found = []
    for param, number, result in _states(module, pairs):
        grown = _grown(param, result)
        if grown is not None:
            found.append((param, number, result, *grown))
    return found


def _states(module: Module, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[Var, int, Expr]]:
    """Yields each state with the number of its output, and the output."""
    main = module.main
    params = {param.name: param for param in main.params}
    numbers = {name: n for n, name in enumerate(module.output_names)}
    results = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
    for name, output in pairs:
        yield params[name], numbers[output], results[numbers[output]]


def _readers(module: Module) -> dict[int, list[Expr]]:
    """Returns the readers of each value of the main function."""
    readers: dict[int, list[Expr]] = {}
    for node in all_nodes(module.main):
        for child in node.children:
            readers.setdefault(child.id, []).append(node)
    return readers


def _fixed(module: Module, pairs: Sequence[tuple[str, str]]) -> list[_Fixed]:
    """Returns the states of fixed capacity that can lie in buffers."""
    readers = _readers(module)
    fed = Counter(output for _, output in pairs)
    found = []
    for param, output, result in _states(module, pairs):
        if fed[module.output_names[output]] > 1 or not isinstance(result, Call):
            continue
        if param.type != result.type or not isinstance(result.op, Op):
            continue
        if result.op.scatter_rule is not None:
            alone = readers[param.id] == [result] and result.args.count(param) == 1
            if alone and result.args[0] is param:
                found.append(_Fixed(param, output, result))
            continue
        begin = _replaced(param, result)
        if begin is not None and readers[param.id] == [a for a in result.args if _reads(a, param)]:
            axis = result.attrs.axis % result.tensor.rank
            found.append(_Fixed(param, output, result, begin, axis))
    return found


def _reads(value: Expr, param: Var) -> bool:
    return any(child is param for child in value.children)


def _replaced(param: Var, result: Call) -> Dim | None:
    """Returns the first position that a concatenation replaces; None unless it consists of the
    state's own elements at unchanged positions and one range of new elements.
    """
    if result.op_name != "concatenate" or len(result.args) not in (2, 3):
        return None
    axis = result.attrs.axis % result.tensor.rank
    ranges = [_range(arg, param, axis) for arg in result.args]
    own = [n for n, place in enumerate(ranges) if place is not None]
    sizes = [arg.tensor.shape[axis] for arg in result.args]
    end = param.tensor.shape[axis]
    match own:
        case [0] | [0, 2] if ranges[0] is not None and ranges[0][0] == 0:
            begin: Dim = sizes[0]
        case [1] if len(sizes) == 2:
            begin = 0
        case _:
            return None
    last = ranges[-1]
    if own[-1] == len(sizes) - 1:
        assert last is not None
        return begin if last == (end - sizes[-1], end) else None
    return begin


def _range(value: Expr, whole: Expr, axis: int) -> tuple[Dim, Dim] | None:
    """Returns the range of an axis of `whole` if a value is a slice of it along this axis."""
    if not isinstance(value, Call) or value.op_name != "slice" or value.args[0] is not whole:
        return None
    attrs = value.attrs
    if attrs.axes is None or [a % whole.tensor.rank for a in attrs.axes] != [axis]:
        return None
    if argument_references(attrs):  # an end that only the run knows
        return None
    return (attrs.begin[0], attrs.end[0]) if tuple(attrs.strides) == (1,) else None


def _growing(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> tuple[list[Growing], dict[str, str]]:
    """Returns the states that can lie in buffers, and why others that grow cannot, by name."""
    readers = _readers(module)
    fed = Counter(output for _, output in pairs)
    found, reasons = list[Growing](), dict[str, str]()
    added: dict[str, Dim] = {}
    for param, output, result, axis, length in _candidates(module, pairs):
        name = param.name
        more = result.tensor.shape[axis] - length
        if not isinstance(result, Call) or not _joins(result, param, axis):
            reasons[name] = "its output is no concatenation that begins with it"
        elif fed[module.output_names[output]] > 1:
            reasons[name] = "its output feeds several inputs"
        elif any(node is not result for node in readers[param.id]):
            reasons[name] = "more than the concatenation reads it"
        elif result.args.count(param) > 1:
            reasons[name] = "it occurs twice in the concatenation"
        elif added.setdefault(str(length), more) != more:
            reasons[name] = f"others of size {length} grow by {added[str(length)]}, it by {more}"
        else:
            found.append(Growing(param, output, result, axis, length))
    return found, reasons


def _grown(param: Var, result: Expr) -> tuple[int, SymDim] | None:
    """Returns the axis along which a result is larger than a state, and the size of the state
    there; None if there is not exactly one.
    """
    before, after = param.type, result.type
    if not isinstance(before, TensorType) or not isinstance(after, TensorType):
        return None
    if before.rank != after.rank or before.layout or after.layout:
        return None
    axes = [n for n in range(before.rank) if before.shape[n] != after.shape[n]]
    size = before.shape[axes[0]] if len(axes) == 1 else 0
    if not isinstance(size, SymDim) or str(size) not in size.symbols:
        return None
    rest = [d for n, d in enumerate(before.shape) if n != axes[0] and isinstance(d, SymDim)]
    return None if any(size.symbols & dim.symbols for dim in rest) else (axes[0], size)


def _joins(result: Call, param: Var, axis: int) -> bool:
    return (
        isinstance(result.op, Op)
        and result.op.name == "concatenate"
        and result.attrs.axis % result.tensor.rank == axis
        and result.args[0] is param
        and len(result.args) > 1
    )


class _Holder(Rewriter):
    def __init__(
        self, states: Sequence[Growing], spares: Mapping[str, str], fixed: Sequence[_Fixed]
    ) -> None:
        super().__init__()
        self._fixed = {state.result.id: state for state in fixed}
        self._states = {state.joined.id: state for state in states}
        self._spares = spares
        self._written: dict[int, Expr] = {}

    def rewrite_module(self, module: Module) -> Module:
        for state in self._states.values():
            with building_for(state.param):
                self.memo[state.param.id] = Var(state.param.name, self._buffer(state))
        new = super().rewrite_module(module)
        with building_for(module.main.body):
            return new.with_functions({"main": self._main(module.main, new.main)})

    def _buffer(self, state: Growing) -> TensorType:
        """Returns the type of a buffer: valid elements, new elements, and spare room."""
        spare = SymDim.symbol(self._spares[str(state.length)], least=0)
        shape = list(state.joined.tensor.shape)
        shape[state.axis] = shape[state.axis] + spare
        return replace(state.param.tensor, shape=tuple(shape))

    def _main(self, old: Function, new: Function) -> Function:
        body = new.body
        results = list(body.fields) if isinstance(body, Tuple) else [body]
        for number, value in self._written.items():
            results[number] = value
        sizes = [n for pair in self._spares.items() for n in pair]
        taken = {param.name for param in new.params}
        names = (_free(f"{name}.count", taken) for name in sizes)
        counts = [
            Var(name, TensorType((SymDim.symbol(size, least=0),), "bool"))
            for name, size in zip(names, sizes, strict=True)
        ]
        whole = Tuple(results) if isinstance(body, Tuple) else results[0]
        growing = [(s.param.name, s.output) for s in self._states.values()]
        held = (*growing, *((s.param.name, s.output) for s in self._fixed.values()))
        attrs: dict[str, Any] = {k: v for k, v in old.attrs.items() if k != STATE}
        return Function([*new.params, *counts], whole, Attrs({**attrs, HELD: held}))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        state, fixed = self._states.get(old.id), self._fixed.get(old.id)
        if fixed is not None and fixed.begin is not None:
            place = next(n for n, arg in enumerate(old.args) if not _reads(arg, fixed.param))
            whole, inner = self.memo[fixed.param.id], new.args[place]
            changed = get_op("overwrite")(whole, inner, begin=fixed.begin, axis=fixed.axis)
            replaces(old, changed)
            return changed
        if state is None:
            return new
        buffer, *added = new.args
        part = added[0] if len(added) == 1 else get_op("concatenate")(*added, axis=state.axis)
        made = get_op("overwrite")(buffer, part, begin=state.length, axis=state.axis)
        self._written[state.output] = made
        end = old.tensor.shape[state.axis]
        result = get_op("slice")(made, begin=(0,), end=(end,), strides=(1,), axes=(state.axis,))
        replaces(old, result)
        return result


def _free(name: str, taken: set[str]) -> str:
    """Returns a name that is not taken, which is taken from then on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
