"""Custom torch operators without a clew operator, which torch runs between native segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils import _pytree as pytree

from clew.frontends.building import fields
from clew.frontends.torch.dtypes import check_tensor
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.tensors import reader, writer
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Expr
from clew.ir.types import TensorType, TupleType, Type, substitute_type
from clew.ops.common import tensor_type
from clew.ops.registry import Op
from clew.ops.signature import Signature

# Libraries whose operators torch itself takes apart, or knows to be no functions of tensors.
_OWN: Final = ("aten", "prims", "prim", "higher_order", "inductor", "_c10d_functional")


def is_custom(target: Any) -> bool:
    """Whether a call is of an operator that a user's library declares, and that changes no
    argument.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace in _OWN:
        return False
    return not target._schema.is_mutable


def called_back(layer: Layer) -> Expr | list[Expr]:
    """Returns the results of a custom operator, which torch runs.

    Errors: U061, U062 (results that are not dense tensors of the CPU).
    """
    names = list(layer.arguments)
    values = [layer.arguments[name] for name in names]
    leaves, tree = pytree.tree_flatten(values)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Expr)]
    if any(isinstance(leaf, SymDim) for leaf in leaves):
        raise layer.unsupported("a size that may change, as a number")
    fakes = layer.fakes
    for fake in fakes:
        check_tensor(fake, f"a result of {layer.op}")
    results = [layer.importer.type_of(fake) for fake in fakes]
    several = isinstance(layer.node.meta.get("val"), (list, tuple))
    op = _operator(layer, leaves, tree, [t.tensor for t in tensors], results, several)
    call = op(*tensors)
    return fields(call, len(results)) if several else call


def _operator(
    layer: Layer,
    leaves: Sequence[Any],
    tree: Any,
    inputs: Sequence[TensorType],
    results: Sequence[TensorType],
    several: bool,
) -> Op:
    """Returns a host operator for one call, whose arguments other than tensors are fixed."""
    target: Any = layer.node.target
    names = list(layer.arguments)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Expr)]
    write = [writer(torch_dtype(layer, n, leaves)) for n in places]
    read = [reader(fake.dtype) for fake in layer.fakes]

    def run(*arrays: np.ndarray[Any, Any]) -> Any:
        given = list(leaves)
        for place, array, make in zip(places, arrays, write, strict=True):
            given[place] = make(np.asarray(array, order="C"))
        arguments = dict(zip(names, pytree.tree_unflatten(given, tree), strict=True))
        with torch.no_grad():
            found = target(**arguments)
        made = found if several else [found]
        plain = [f(x.contiguous()) for f, x in zip(read, made, strict=True)]
        return tuple(plain) if several else plain[0]

    def types(*given: Type) -> Type:
        bound = _bound(inputs, [tensor_type(layer.op, g) for g in given])
        made = [substitute_type(r, bound) for r in results]
        return TupleType(tuple(made)) if several else made[0]

    op = Op(
        name=f"torch.{layer.op.rpartition('.')[0]}",
        make_signature=lambda: Signature(tuple(f"x{n}" for n in range(len(inputs))), 0, "", {}),
        doc=f"`{target}`, called back.",
        host=True,
    )
    op.reference_rule = run
    op.types(types)
    return op


def torch_dtype(layer: Layer, place: int, leaves: Sequence[Any]) -> torch.dtype:
    """Returns the dtype that torch gives a tensor among the arguments' leaves."""
    fakes = pytree.tree_leaves([layer.fake(name) for name in layer.arguments], lambda x: x is None)
    kept = [f for f in fakes if isinstance(f, torch.Tensor)]
    number = sum(isinstance(leaf, Expr) for leaf in leaves[:place])
    found: torch.dtype = kept[number].dtype
    return found


def _bound(declared: Sequence[TensorType], given: Sequence[TensorType]) -> dict[str, Dim]:
    """Returns the sizes of operands by their names in the imported graph."""
    return {
        str(wanted): size
        for want, have in zip(declared, given, strict=True)
        for wanted, size in zip(want.shape, have.shape, strict=True)
        if isinstance(wanted, SymDim) and wanted.symbols == frozenset((str(wanted),))
    }
