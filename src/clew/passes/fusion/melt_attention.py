"""MeltAttention: merges scores, softmax and weighted sum into one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Final

import numpy as np

from clew.ir.dims import Dim
from clew.ir.dims import product as multiplied
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import is_float
from clew.ir.visit import post_order
from clew.ops.math.attention import AXES
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import ROUNDED, Exactness
from clew.support.dataclass import dataclass

# A mask hides a position by at most this value: its score vanishes beside others. In f16, exporters
# write the lowest finite number.
_HIDDEN: Final = -1e9
_HIDDEN_BY_DTYPE: Final = {"f16": -65504.0}
# Constant masks of at most this many elements are examined.
_LARGEST_MASK: Final = 1 << 24
# Masks that are added up; the search for the scores visits their operands again for each.
_MOST_MASKS: Final = 4
_RANKS: Final = {4: "BHSD", 3: "BSD"}


@dataclass(frozen=True)
class MeltAttention(Pass):
    """Merges a product with keys, a softmax, and a product with values into one operator.

    The operator becomes one kernel, whose scores never leave the caches. Operators that only
    prepare its operands become attributes: scalar factors become `scale`; transposes of queries,
    keys, values and the result become layouts; heads of keys and values that are repeated for
    groups of queries are shared instead. A constant causal mask becomes `causal`; any other mask is
    added, or the sum of several, as of a bias and the mask of shifted windows. The guards that
    exporters put after the softmax, 0 for NaN or where the mask hides a whole row, become `guard`.

    Before:
        %2 = transpose(%k, axes=[0, 2, 3, 1]); %3 = nn.matmul(%q, %2); %4 = multiply(%3, 0.125)
        %5 = nn.softmax(%4, axis=3); %6 = nn.matmul(%5, %v)
    After:
        %7 = nn.attention(%q, %k, %v, scale=0.125, k_layout="BSHD")

    Preconditions: softmax is one operator (CanonicalizeOps). Non-goals: scores or weights with
    other users, and dropout; bit-exactness; the choice between NaN and a number for scores that are
    not finite under a mask. Keys that a causal mask hides are not read, and a fully masked row is 0
    unless a score is NaN.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = ROUNDED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Melter(ctx).rewrite_module(module)


@dataclass(eq=False)
class _Operand:
    """An operand before the operators that only prepare it: a node, its axes by letter (`1`: size
    1), a factor, and the skipped nodes.
    """

    node: Expr
    axes: str
    factor: float = 1.0
    passed: list[Expr] = field(default_factory=list)

    @property
    def heads(self) -> Dim:
        """The number of heads."""
        return self.node.tensor.shape[self.axes.index("H")] if "H" in self.axes else 1


@dataclass(frozen=True, eq=False)
class _Mask:
    """A term of the scores, and the shape of the scores that it is added to."""

    node: Expr
    added_to: tuple[Dim, ...]


@dataclass(eq=False)
class _Match:
    """An attention found in the old graph. `root` is the node that the operator replaces."""

    root: Call
    product: Call
    q: _Operand
    k: _Operand
    v: _Operand
    masks: list[_Mask]
    scale: float
    causal: bool
    guard: str
    inner: list[Expr]

    @property
    def scores_shape(self) -> tuple[Dim, ...]:
        """The shape of the scores, with the last axis of the weights."""
        return self.product.children[0].tensor.shape

    @property
    def nodes(self) -> list[Expr]:
        """All nodes that the operator replaces, the root first."""
        absorbed = [*self.inner, *self.q.passed, *self.k.passed, *self.v.passed]
        return list(dict.fromkeys((self.root, self.product, *absorbed)))


class _Melter(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx
        self._users: dict[int, list[Expr]] = {}
        self._by_root: dict[int, _Match] = {}
        self._masks: dict[tuple[object, ...], Expr] = {}

    def enter(self, function: Function) -> None:
        nodes = post_order(function.body)
        for node in nodes:
            for child in dict.fromkeys(node.children):
                self._users.setdefault(child.id, []).append(node)
        self._users.setdefault(function.body.id, []).append(function)
        for node in nodes:
            if isinstance(node, Call) and node.op_name == "nn.matmul":
                found = self._match(node)
                if found is not None:
                    self._by_root[found.root.id] = found

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        found = self._by_root.get(old.id)
        return new if found is None else self._build(found, old)

    # --- finding ---

    def _match(self, product: Call) -> _Match | None:
        """Returns the attention whose last product is this node."""
        axes = _RANKS.get(product.tensor.rank)
        if axes is None or not is_float(product.tensor.dtype):
            return None
        inner: list[Expr] = []
        softmax, guard, judged = _unguarded(product.args[0], inner)
        if softmax is None:
            return None
        scores, masks, factor = _scores(softmax.args[0], inner)
        if scores is None or not _is_only(judged, masks):
            return None
        if any(_groups(mask.added_to, scores.tensor.shape) is None for mask in masks):
            return None
        lead = product.tensor.shape[:-2]
        operands = (*scores.args, product.args[1])
        if any(x.tensor.rank != len(axes) or x.tensor.shape[:-2] != lead for x in operands):
            return None
        if not self._private(inner, product):
            self._ctx.remark(product, "not melted: something else reads the scores or weights")
            return None
        swapped = f"{axes[:-2]}DS"
        q, k = _operand(scores.args[0], axes), _operand(scores.args[1], swapped)
        v = _operand(product.args[1], axes, last="D")
        if k.heads != v.heads:  # groups of queries share both, or neither
            k = _operand(scores.args[1], swapped, shared=False)
            v = _operand(product.args[1], axes, last="D", shared=False)
        scale = factor * q.factor * k.factor
        if v.factor != 1.0 or scale == 0.0 or not np.isfinite(scale):
            return None
        causal = len(masks) == 1 and _is_causal(masks[0].node, scores.tensor.shape)
        root = self._with_transpose(product)
        return _Match(root, product, q, k, v, [] if causal else masks, scale, causal, guard, inner)

    def _private(self, inner: list[Expr], product: Call) -> bool:
        """Whether no node outside reads a value between the two products."""
        inside = {n.id for n in inner} | {product.id}
        return all(u.id in inside for n in inner for u in self._users.get(n.id, ()))

    def _with_transpose(self, product: Call) -> Call:
        """Returns the transpose that is the only reader of a product of four axes, else the
        product.
        """
        users = self._users.get(product.id, [])
        if len(users) == 1 and product.tensor.rank == len(AXES):
            user = users[0]
            if isinstance(user, Call) and user.op_name == "transpose":
                return user
        return product

    # --- building ---

    def _build(self, found: _Match, old: Call) -> Expr:
        with self.covers(*found.nodes):
            operands, layouts = [], []
            for part in (found.q, found.k, found.v):
                node, layout = self._with_all_axes(part)
                operands.append(node)
                layouts.append(layout)
            if found.masks:
                operands.append(self._sum_of_masks(found.masks, found.scores_shape))
            layout = AXES
            if found.root is not found.product:
                layout = "".join(AXES[axis] for axis in found.root.attrs.axes)
            result: Expr = get_op("nn.attention")(
                *operands,
                scale=found.scale,
                causal=found.causal,
                guard=found.guard,
                q_layout=layouts[0],
                k_layout=layouts[1],
                v_layout=layouts[2],
                layout=layout,
            )
            if result.type != old.type:
                result = get_op("reshape")(result, shape=old.tensor.shape)
        return result

    def _with_all_axes(self, part: _Operand) -> tuple[Expr, str]:
        """Returns an operand with all four axes, and its layout."""
        node = self.memo[part.node.id]
        named = part.axes.replace("1", "")
        layout = "".join(a for a in AXES if a not in named) + named
        sizes = [s for s, a in zip(node.tensor.shape, part.axes, strict=True) if a != "1"]
        shape = (*(1,) * (len(AXES) - len(sizes)), *sizes)
        return (
            node if shape == node.tensor.shape else get_op("reshape")(node, shape=shape)
        ), layout

    def _sum_of_masks(self, masks: Sequence[_Mask], shape: tuple[Dim, ...]) -> Expr:
        """Returns the sum of masks for scores with all four axes."""
        total: Expr | None = None
        for mask in masks:
            term = self._mask(mask, shape)
            total = term if total is None else get_op("add")(total, term)
        assert total is not None
        return total

    def _mask(self, mask: _Mask, shape: tuple[Dim, ...]) -> Expr:
        """Returns a mask for scores with all four axes, without the repetitions of a condition."""
        node, key = mask.node, (mask.node.id, mask.added_to, shape)
        made = self._masks.get(key)
        if made is None:
            made = self.memo[node.id]
            condition = _repeated_condition(node)
            with self.covers(node):
                if condition is not None:
                    made = get_op("where")(self.memo[condition.id], *node.children[1:])
                if mask.added_to != shape:
                    made = _regrouped(made, mask.added_to, shape)
                if len(shape) == 3 and made.tensor.rank == len(shape):
                    batch, *rest = made.tensor.shape
                    made = get_op("reshape")(made, shape=(batch, 1, *rest))
            self._masks[key] = made
        return made


def _is_call(node: Expr, *names: str) -> bool:
    return isinstance(node, Call) and node.op_name in names


def _splat(node: Expr) -> float | None:
    """Returns the value of all elements of a splat constant."""
    if isinstance(node, Constant) and node.is_splat and node.tensor.dtype != "bool":
        return float(node.splat_value)
    return None


def _unguarded(weights: Expr, inner: list[Expr]) -> tuple[Call | None, str, Expr | None]:
    """Returns the softmax over the last axis that gives the weights, the guard after it, and the
    mask from which the guard finds fully masked rows.
    """
    guard, mask = "", None
    if isinstance(weights, Call) and weights.op_name == "where":
        test, zero, value = weights.args
        if _splat(zero) != 0.0 or value.type != weights.type:
            return None, "", None
        if _is_call(test, "isnan") and test.children[0] is value:
            inner.append(test)
            guard = "nan"
        else:
            guard, mask = "empty", _hidden_rows(test)
            if mask is None:
                return None, "", None
        inner.append(weights)
        weights = value
    if not (isinstance(weights, Call) and weights.op_name == "nn.softmax"):
        return None, "", None
    if weights.attrs.axis not in (-1, weights.tensor.rank - 1):
        return None, "", None
    inner.append(weights)
    return weights, guard, mask


def _is_only(judged: Expr | None, masks: Sequence[_Mask]) -> bool:
    """Whether the mask that a guard tests, if there is one, is the only one."""
    return judged is None or (len(masks) == 1 and masks[0].node is judged)


def _hidden_rows(test: Expr) -> Expr | None:
    """Returns the mask that a condition tests for rows that are -inf throughout."""
    if not isinstance(test, Call) or test.op_name != "equal" or _splat(test.args[1]) != -math.inf:
        return None
    top = test.args[0]
    if not isinstance(top, Call) or top.op_name != "max" or not top.attrs.keepdims:
        return None
    mask = top.args[0]
    last = mask.tensor.rank - 1
    return mask if top.attrs.axes in ((-1,), (last,)) else None


def _scores(logits: Expr, inner: list[Expr]) -> tuple[Call | None, list[_Mask], float]:
    """Returns the product of queries and keys that gives the logits, its masks, and its factor."""
    masks: list[_Mask] = []
    factor = 1.0
    while isinstance(logits, Call):
        inner.append(logits)
        if logits.op_name == "nn.matmul":
            return logits, masks, factor
        if logits.op_name in ("multiply", "divide"):
            number = _splat(logits.args[1])
            if not number or logits.type != logits.args[0].type:
                break
            factor = factor * number if logits.op_name == "multiply" else factor / number
            logits = logits.args[0]
        elif logits.op_name == "add" and len(masks) < _MOST_MASKS and factor == 1.0:
            scores = [a for a in logits.args if a.type == logits.type and _leads_to_product(a)]
            if len(scores) != 1:
                break
            (mask,) = (a for a in logits.args if a is not scores[0])
            masks.insert(0, _Mask(mask, logits.tensor.shape))
            logits = scores[0]
        elif logits.op_name == "reshape":
            logits = logits.args[0]
        else:
            break
    return None, [], 1.0


def _leads_to_product(node: Expr) -> bool:
    """Whether a product is reached through factors, masks and reshapes."""
    stack, seen = [node], {node.id}
    while stack:
        here = stack.pop()
        if _is_call(here, "nn.matmul"):
            return True
        following: Sequence[Expr] = ()
        if _is_call(here, "multiply", "divide", "reshape"):
            following = here.children[:1]
        elif _is_call(here, "add"):
            following = [c for c in here.children if c.type == here.type]
        stack += [c for c in following if c.id not in seen]
        seen.update(c.id for c in following)
    return False


def _groups(shape: tuple[Dim, ...], onto: tuple[Dim, ...]) -> list[int] | None:
    """Returns the number of leading axes of `shape` that a reshape joins to each leading axis of
    `onto`; None if it does anything else, or moves one of the last two axes.
    """
    if shape[-2:] != onto[-2:]:
        return None
    counts, place = list[int](), 0
    for size in onto[:-2]:
        first = place
        joined: Dim = 1
        while place < len(shape) - 2 and (joined != size or shape[place] == 1):
            joined, place = joined * shape[place], place + 1
        if joined != size:
            return None
        counts.append(place - first)
    return counts if place == len(shape) - 2 else None


def _regrouped(mask: Expr, shape: tuple[Dim, ...], onto: tuple[Dim, ...]) -> Expr:
    """Returns a mask of scores of a shape as one of scores that a reshape joins to `onto`."""
    sizes = (*(1,) * (len(shape) - mask.tensor.rank), *mask.tensor.shape)
    full, joined, place = list[Dim](), list[Dim](), 0
    for count in _groups(shape, onto) or ():
        part = slice(place, place + count)
        same = all(size == 1 for size in sizes[part])
        full += sizes[part] if same else shape[part]
        joined.append(1 if same else multiplied(shape[part]))
        place += count
    full += sizes[place:]
    if tuple(full) != sizes:
        mask = get_op("broadcast_to")(mask, shape=tuple(full))
    return get_op("reshape")(mask, shape=(*joined, *sizes[place:]))


def _is_causal(mask: Expr, shape: tuple[Dim, ...]) -> bool:
    """Whether a mask is constant and hides exactly the keys after each query."""
    if not isinstance(mask, Constant) or mask.is_splat or mask.tensor.rank < 2:
        return False
    *lead, rows, columns = mask.tensor.concrete
    if (rows, columns) != shape[-2:] or any(d != 1 for d in lead):
        return False
    if rows * columns > _LARGEST_MASK:
        return False
    values = mask.data.reshape(rows, columns)
    seen = np.arange(columns)[None, :] <= np.arange(rows)[:, None]
    hidden = values[~seen].astype(np.float64) <= _HIDDEN_BY_DTYPE.get(mask.tensor.dtype, _HIDDEN)
    return bool((values[seen] == 0).all() and hidden.all())


def _repeated_condition(mask: Expr) -> Expr | None:
    """Returns the condition that a mask of two numbers repeats along further axes, if there is
    one.
    """
    if not (isinstance(mask, Call) and mask.op_name == "where"):
        return None
    condition, *numbers = mask.args
    if any(_splat(n) is None or n.tensor.size != 1 for n in numbers):
        return None
    found = condition
    while isinstance(found, Call):
        if found.op_name == "broadcast_to":
            found = found.args[0]
        elif found.op_name == "logical_and" and any(_all_true(a) for a in found.args):
            found = next((a for a in found.args if not _all_true(a)), found.args[0])
        else:
            break
    return None if found is condition else found


def _all_true(node: Expr) -> bool:
    if not isinstance(node, Constant) or node.tensor.dtype != "bool":
        return False
    if node.is_splat:
        return bool(node.splat_value)
    return math.prod(node.tensor.concrete) <= _LARGEST_MASK and bool(node.data.all())


def _operand(node: Expr, axes: str, last: str = "", *, shared: bool = True) -> _Operand:
    """Returns an operand before the operators that only move, repeat or scale its elements. Its
    heads stay repeated unless they are `shared`.

    `last` is the axis that must stay innermost, because its elements are read contiguously.
    """
    found = here = _Operand(node, axes)
    while isinstance(here.node, Call):
        following = _before(here, here.node)
        if following is None or ("G" in following.axes and not shared):
            break
        here = following
        named = here.axes.replace("1", "")
        if "G" not in named and (not last or named.endswith(last)):
            found = here
    return found


def _before(here: _Operand, call: Call) -> _Operand | None:
    """Returns the operand before an operator that attributes can replace, else None."""
    source = call.args[0] if call.args else call
    axes: str | None = None
    factor = here.factor
    if call.op_name == "transpose":
        order = [a % len(here.axes) for a in call.attrs.axes]
        axes = "".join(here.axes[order.index(place)] for place in range(len(order)))
    elif call.op_name in ("multiply", "divide") and source.type == call.type:
        number = _splat(call.args[1])
        if number:
            axes = here.axes
            factor = factor * number if call.op_name == "multiply" else factor / number
    elif call.op_name == "reshape":
        axes = _through_reshape(source.tensor.shape, call.tensor.shape, here.axes)
    elif call.op_name == "broadcast_to" and "G" in here.axes:
        sizes = zip(here.axes, call.tensor.shape, strict=True)
        if source.tensor.shape == tuple(1 if axis == "G" else size for axis, size in sizes):
            axes = here.axes.replace("G", "1")
    if axes is None:
        return None
    return _Operand(source, axes, factor, [*here.passed, call])


def _through_reshape(before: tuple[Dim, ...], after: tuple[Dim, ...], axes: str) -> str | None:
    """Returns the axes before a reshape that adds or drops axes of size 1, or that splits the heads
    of groups into `H` and `G`; None for any other reshape.
    """
    sizes = [(size, axis) for size, axis in zip(after, axes, strict=True) if size != 1]
    found, place = "", 0
    for size, axis in sizes:
        while place < len(before) and before[place] == 1:
            found, place = found + "1", place + 1
        if place == len(before):
            return None
        if before[place] == size:
            found, place = found + axis, place + 1
        elif axis == "H" and place + 1 < len(before) and before[place] * before[place + 1] == size:
            found, place = found + "HG", place + 2
        else:
            return None
    if any(size != 1 for size in before[place:]):
        return None
    return found + "1" * (len(before) - place)
