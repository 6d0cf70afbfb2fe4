"""Growing states in buffers: the form of a module that a session runs.

A state that grows, `past -> past + seq`, is read and joined by every call. In this form, its input
is a buffer with room for more, and a call writes only the new elements: the graph overwrites a part
of the buffer (`overwrite`), and reads a slice of the result. `WriteInPlace` makes it a write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Attrs, Call, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, building_for, replaces
from clew.ir.size_names import names_in
from clew.ir.state import STATE
from clew.ir.types import TensorType
from clew.ir.visit import all_nodes
from clew.ops.registry import Op, get_op
from clew.support.dataclass import dataclass

HELD: Final = "held"
"""The attribute of a main function that holds the inputs whose memory results may take: pairs of
the names of an input and an output.
"""


@dataclass(frozen=True)
class HeldStates:
    """A module whose growing states lie in buffers.

    Each of `lengths`, names of sizes, is the valid length of some buffers: the size of a new input
    `bool[length]`, whose elements nothing reads. Another input, `bool[length_spare]`, has the size
    of the room behind the new elements. `reasons` says which growing states keep their form.
    """

    module: Module
    lengths: Mapping[str, str]
    reasons: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class _Growing:
    """A state that `joined`, the value of an output, extends along an axis."""

    param: Var
    output: int
    joined: Call
    axis: int
    length: SymDim


def with_held_states(module: Module, pairs: Sequence[tuple[str, str]]) -> HeldStates:
    """Returns a module with growing states in buffers. `pairs` are the names of state inputs and of
    the outputs that feed them. It has the inputs and outputs of the module in the same order, and
    then the new inputs.
    """
    found, reasons = _growing(module, pairs)
    taken = names_in(all_nodes(module.main)) | {p.name for p in module.main.params}
    spares: dict[str, str] = {}
    for state in found:
        name = f"{state.length}_spare"
        while name in taken and str(state.length) not in spares:
            name += "_"
        spares.setdefault(str(state.length), name)
    if not found:
        return HeldStates(module, {}, reasons)
    return HeldStates(_Holder(found, spares).rewrite_module(module), spares, reasons)


def growing_sizes(module: Module, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of the sizes of states along the axes along which they grow."""
    return list(dict.fromkeys(str(length) for *_, length in _candidates(module, pairs)))


def _candidates(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> list[tuple[Var, int, Expr, int, SymDim]]:
    """Returns the states that grow along one axis: each with the number of its output, the output,
    the axis and the size.
    """
    main = module.main
    params = {param.name: param for param in main.params}
    numbers = {name: n for n, name in enumerate(module.output_names)}
    results = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
    found = []
    for name, output in pairs:
        param, number = params[name], numbers[output]
        grown = _grown(param, results[number])
        if grown is not None:
            found.append((param, number, results[number], *grown))
    return found


def _growing(
    module: Module, pairs: Sequence[tuple[str, str]]
) -> tuple[list[_Growing], dict[str, str]]:
    """Returns the states that can lie in buffers, and why others that grow cannot, by name."""
    readers: dict[int, list[Expr]] = {}
    for node in all_nodes(module.main):
        for child in node.children:
            readers.setdefault(child.id, []).append(node)
    fed = Counter(output for _, output in pairs)
    found, reasons = list[_Growing](), dict[str, str]()
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
            found.append(_Growing(param, output, result, axis, length))
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
    def __init__(self, states: Sequence[_Growing], spares: Mapping[str, str]) -> None:
        super().__init__()
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

    def _buffer(self, state: _Growing) -> TensorType:
        """Returns the type of a buffer: what it holds, the new elements, and room for more."""
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
        held = tuple((s.param.name, s.output) for s in self._states.values())
        attrs: dict[str, Any] = {k: v for k, v in old.attrs.items() if k != STATE}
        return Function([*new.params, *counts], whole, Attrs({**attrs, HELD: held}))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        state = self._states.get(old.id)
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
    while name in taken:
        name += "_"
    return name
