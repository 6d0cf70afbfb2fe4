"""Makes channel counts sizes of a kernel, so that convolutions of one structure share its code.

A network repeats a convolution with more channels at every scale. The number of channel blocks is
only the trip count of a loop; the code is otherwise the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clew.backends.cpu.kernel_sizes import KernelSizes
from clew.cost.policy.sizes import CHANNELS_OF_COUNT
from clew.ir.dims import Dim, SymDim, substitute
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.rewrite import building_for
from clew.ir.types import TensorType, map_dims
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.support.errors import ClewError


def with_channel_counts(sizes: KernelSizes) -> KernelSizes:
    """Returns a function of free sizes in which channel counts have names as well.

    Before:
        fn (%x: f32[1, 8, h, w, 8], %w: f32[4, 8, 3, 3, 8, 16], ...) -> f32[1, 8, h, w, 8]
    After (`dims={"c0": 8, "c1": 4}`):
        fn (%x: f32[1, c0, h, w, 8], %w: f32[c1, c0, 3, 3, 8, 16], ...) -> f32[1, 2*c1, h, w, 8]

    It is returned unchanged if no operator has such counts (`Op.counts`), or if other operators do
    not compute the same shapes from the names.
    """
    calls = [node for node in post_order(sizes.function.body) if isinstance(node, Call)]
    found = [call for call in calls if isinstance(call.op, Op) and call.op.counts_rule is not None]
    if len(found) != 1 or not all(isinstance(a, Var) for a in found[0].args):
        return sizes
    try:
        made = _made(sizes.function, found[0])
    except ClewError:  # an operator needs a number
        return sizes
    if made is None:
        return sizes
    function, names = made
    return replace(
        sizes, function=function, dims={**sizes.dims, **names.dims}, typical=names.typical
    )


class _Names:
    """The names, with the numbers they stand for and the numbers to schedule for."""

    def __init__(self) -> None:
        self.dims: dict[str, int] = {}
        self.typical: dict[str, int] = {}

    def blocks(self, count: int, channels: int) -> Dim:
        """Returns a dimension for `count` blocks of `channels` channels; `count` itself if the code
        may depend on it.
        """
        times, left = divmod(count * channels, CHANNELS_OF_COUNT)
        if left or CHANNELS_OF_COUNT % channels or times < 2:
            return count
        name = self._named(times)
        # Counts in a range of a factor of four share code, which is scheduled for its middle.
        self.typical[str(name)] = 4 << (times.bit_length() - 2) // 2 * 2
        return CHANNELS_OF_COUNT // channels * name

    def cost(self, cycles: int) -> SymDim:
        """Returns a name for a cost."""
        return self._named(cycles)

    def _named(self, number: int) -> SymDim:
        name = f"c{len(self.dims)}"
        self.dims[name] = number
        return SymDim.symbol(name)


def _made(function: Function, call: Call) -> tuple[Function, _Names] | None:
    """Returns a function in which counts have names, and the names; None if it has no counts, or if
    an operator does not compute its type from them.
    """
    names, new = _Names(), dict[int, Expr]()
    rule = call.op.counts_rule if isinstance(call.op, Op) else None
    assert rule is not None
    found = rule([a.tensor for a in call.args], call.attrs, names)
    if found is None:
        return None
    types, attrs = found
    for arg, type_ in zip(call.args, types, strict=True):
        assert isinstance(arg, Var)
        new[arg.id] = Var(arg.name, type_)
    with building_for(call):
        new[call.id] = result = Call(call.op, [new[a.id] for a in call.args], attrs)
    before, after = call.tensor, result.tensor
    for param in function.params:
        if param.id not in new:
            own = param.tensor
            if own.layout == before.layout and own.shape[1] == before.shape[1]:
                shape = (own.shape[0], after.shape[1], *own.shape[2:])
                own = TensorType(shape, own.dtype, own.layout)
            new[param.id] = Var(param.name, own)
    for node in post_order(function.body):
        if node.id not in new:
            with building_for(node):
                new[node.id] = _over(node, new)
        if map_dims(new[node.id].type, lambda dim: substitute(dim, names.dims)) != node.type:
            return None
    params = [new[p.id] for p in function.params]
    with building_for(function):
        made = Function(params, new[function.body.id], function.attrs)  # type: ignore[arg-type]
    return made, names


def _over(node: Expr, new: Mapping[int, Expr]) -> Expr:
    match node:
        case Call():
            return Call(node.op, [new[a.id] for a in node.args], node.attrs)
        case Tuple():
            return Tuple([new[f.id] for f in node.fields])
        case TupleGetItem():
            return TupleGetItem(new[node.value.id], node.index)
    return node
