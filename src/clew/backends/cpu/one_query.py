"""Attention of one query whose heads share keys and values.

Each key is then read once for all heads of its group: these heads are the rows of a tile of
queries, so that the keys and values of a long cache are not read again for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clew.ir.dims import Dim, SymDim, dim_min
from clew.ir.expr import Call, Expr, Function, Var
from clew.ir.types import TensorType
from clew.ops.math.attention import AXES
from clew.ops.registry import get_op
from clew.passes.specialize import Specializer


def one_query(function: Function) -> tuple[Function, Dim] | None:
    """Returns a kernel with the results of attention for one query, and a dimension that is 1 where
    there is one query, else 0; None if the kernel computes something else.

    Its parameters and result are the memory of those of `function`, in other shapes: the queries
    `[batch, 1, heads, elements]` are `[batch, groups, heads of a group, elements]`. The result may
    be cast.

    Before:
        fn (%q: f32[b, s, 16, 64], %k: f32[b, 4, t, 64], %v: f32[b, 4, t, 64])
    After, at `s` = 1:
        fn (%q: f32[b, 4, 4, 64], %k: f32[b, 4, t, 64], %v: f32[b, 4, t, 64])
    """
    root = _attention(function)
    if root is None or root.attrs.causal:
        return None
    attrs = root.attrs
    if any(layout.replace("S", "") != "BHD" for layout in (attrs.q_layout, attrs.layout)):
        return None
    queries = root.args[0].tensor.shape
    rows, heads = (queries[attrs.q_layout.index(axis)] for axis in "SH")
    groups = root.args[1].tensor.shape[attrs.k_layout.index("H")]
    if not isinstance(heads, int) or not isinstance(groups, int) or heads <= groups:
        return None
    where: Dim = 1
    sizes: dict[str, Dim] = {}
    if isinstance(rows, SymDim):
        if str(rows) not in rows.symbols:
            return None
        sizes, where = {str(rows): 1}, 1 - dim_min(rows - 1, 1)
    elif rows != 1:
        return None
    alone = Specializer(sizes, {}, {}).rewrite_function(function) if sizes else function
    grouped = _grouped(alone, groups, heads // groups)
    return None if grouped is None else (grouped, where)


def _attention(function: Function) -> Call | None:
    """Returns the attention whose result, which may be cast, a kernel computes."""
    root = function.body
    if isinstance(root, Call) and root.op_name == "cast":
        root = root.args[0]
    return root if isinstance(root, Call) and root.op_name == "nn.attention" else None


def _grouped(function: Function, groups: int, each: int) -> Function | None:
    """Returns the kernel for one query with the heads of a group as rows of queries."""
    root = _attention(function)
    assert root is not None
    (q, k, v, *masks), scales = root.args[:4], root.args[4:]
    batch, width = (q.tensor.shape[root.attrs.q_layout.index(axis)] for axis in "BD")
    changed: dict[int, Var] = {}
    if not _reshape(q, (batch, groups, each, width), changed):
        return None
    for mask in masks:
        shape = mask.tensor.shape
        if len(shape) < 3 or shape[-3] == 1:  # it holds for all heads
            continue
        if shape[-2] != 1:
            return None
        if not _reshape(mask, (*shape[:-3], groups, each, shape[-1]), changed):
            return None
    params = [changed.get(p.id, p) for p in function.params]
    args = [changed.get(a.id, a) for a in (q, k, v, *masks, *scales)]
    attrs: Mapping[str, object] = {**root.attrs, "q_layout": AXES, "layout": AXES}
    made = get_op("nn.attention")(*args, **attrs)
    if function.body is not root:
        assert isinstance(function.body, Call)
        made = get_op("cast")(made, **function.body.attrs)
    return Function(params, made, function.attrs)


def _reshape(value: Expr, shape: tuple[Dim, ...], changed: dict[int, Var]) -> bool:
    """Adds a parameter with the memory of another, in a shape. Returns whether that is possible."""
    if not isinstance(value, Var) or not isinstance(value.type, TensorType):
        return False
    changed[value.id] = Var(value.name, replace(value.type, shape=shape))
    return True
