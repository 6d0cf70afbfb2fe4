"""Decides which operators need no kernel: their result is existing memory (`view_offsets`), or
memory that their inputs are written into (`part_offsets`).

This is the only place that decides it. `FuseOps` leaves these calls outside kernels, `PlaceParts`
handles parts that cannot be written in place, and the program builder plans memory accordingly.
"""

from __future__ import annotations

from clew.cost.policy.fusion import SHARE_WRITTEN_IN_PLACE
from clew.ir.dims import Dim, is_unknown, product, typical
from clew.ir.expr import Call, Expr, Function, TupleGetItem
from clew.ir.late_sizes import sizes_in
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import post_order
from clew.ops.registry import Op, argument_references, runs_on_host
from clew.passes.base import PassContext


def is_reshape(call: Call) -> bool:
    """Whether a call's result is its whole argument in another shape."""
    return isinstance(call.op, Op) and call.op.name == "reshape"


def is_view(call: Call) -> bool:
    """Whether a call's results are contiguous pieces of its first argument's memory."""
    return is_reshape(call) or view_offsets(call) is not None


def view_offsets(call: Call) -> tuple[Dim, ...] | None:
    """Returns, for each result, the element offset in the argument's memory at which it begins;
    `None` if a kernel must compute the results.
    """
    if not isinstance(call.op, Op) or call.op.compute is None or len(call.args) != 1:
        return None
    if not _is_known(call.type) or not _is_known(call.args[0].type):
        return None
    if is_reshape(call):
        return (0,)
    return call.op.view_offsets([call.args[0].tensor], call.attrs)


def part_offsets(call: Expr) -> tuple[Dim, ...] | None:
    """Returns, for each argument, the element offset in the result's memory at which it begins, if
    each argument is contiguous there; `None` if not, or if the call is not a concatenation.
    """
    if not isinstance(call, Call) or not isinstance(call.op, Op):
        return None
    if call.op.name != "concatenate" or not _is_known(call.type) or runs_on_host(call):
        return None
    if not all(_is_known(a.type) for a in call.args):
        return None
    shape = call.tensor.shape
    axis = call.attrs.axis % len(shape)
    if product(shape[:axis]) != 1 or 0 in shape:
        return None
    offsets: list[Dim] = []
    at: Dim = 0
    for arg in call.args:
        offsets.append(at)
        at = at + arg.tensor.size
    return tuple(offsets)


def is_kernel(function: Function) -> bool:
    """Whether a function is compiled to a kernel before the run: for known shapes, or for all sizes
    that the model's inputs may have.
    """
    return function.is_primitive and not function.backend and is_settled(function)


def is_settled(function: Function) -> bool:
    """Whether the loops of a primitive function depend only on the sizes of the model's inputs: no
    size and no attribute depends on a value of the run.
    """
    nodes = (*function.params, *post_order(function.body))
    calls = [n for n in nodes if isinstance(n, Call)]
    if any(argument_references(n.attrs) or any(map(sizes_in, n.attrs.values())) for n in calls):
        return False
    return all(_is_known(n.type) for n in nodes)


def _is_known(type_: Type) -> bool:
    """Whether the sizes of a value follow from those of the model's inputs."""
    return all(
        isinstance(t, TensorType) and not any(map(is_unknown, t.shape)) for t in leaves(type_)
    )


def whole(node: Expr) -> Expr:
    """Returns the value that a node shows entirely: itself, or the value below reshapes and the
    like.
    """
    while isinstance(node, Call):
        offsets = view_offsets(node)
        if offsets is None or len(offsets) != 1 or node.tensor.size != node.args[0].tensor.size:
            break
        node = node.args[0]
    return node


def place_of(node: Expr) -> tuple[int, int]:
    """Returns an identity for a computed value: the node that computes it, and the number of the
    result.
    """
    if isinstance(node, TupleGetItem):
        return node.value.id, node.index
    return node.id, 0


def left_in_place(call: Call, ctx: PassContext) -> bool:
    """Whether it is worth having the producers of an unfused concatenation write it in place."""
    if not isinstance(call.op, Op) or call.op.name != "concatenate":
        return False
    if part_offsets(call) is None:
        ctx.remark(call, "concatenate is copied: its parts are not contiguous in it")
        return False
    if not worthwhile(call, [made_by_kernel(a) for a in call.args]):
        ctx.remark(call, "concatenate is copied: less than half of it is computed by kernels")
        return False
    return True


def worthwhile(call: Call, placed: list[bool]) -> bool:
    """Whether enough of a concatenation is written in place, given a flag for each argument."""
    return _share(call, placed) >= SHARE_WRITTEN_IN_PLACE


def _share(call: Call, placed: list[bool]) -> float:
    sizes = [typical(a.tensor.size) for a in call.args]
    seen: set[tuple[int, int]] = set()
    found = 0
    for arg, size, here in zip(call.args, sizes, placed, strict=True):
        key = place_of(whole(arg))
        found += size if here and key not in seen else 0
        seen.add(key)
    return found / sum(sizes)


def made_by_kernel(arg: Expr) -> bool:
    """Whether a kernel will compute a value, or a concatenation will hold it in place."""
    node = whole(arg)
    if isinstance(node, TupleGetItem):
        node = node.value
    if isinstance(node, Call) and isinstance(node.op, Function):
        return node.op.is_primitive and not node.op.backend
    if not isinstance(node, Call) or not isinstance(node.op, Op) or runs_on_host(node):
        return False
    return view_offsets(node) is None and not argument_references(node.attrs)
