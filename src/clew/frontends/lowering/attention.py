"""Attention: `nn.attention`, or its steps where the scores are changed in between."""

from __future__ import annotations

import math
from dataclasses import field

from clew.frontends.building import call, cast, reshaped, scalar
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass


@dataclass
class Attention:
    """Attention to be built: operands of four axes in any order, and changes to the scores.

    `masks` are conditions under which a key counts; `added` broadcasts to [B, N, S, T].
    """

    q: Expr
    k: Expr
    v: Expr
    layouts: tuple[str, str, str] = ("BSHD", "BSHD", "BSHD")
    scale: float = 0.0
    causal: bool = False
    softcap: float = 0.0
    added: Expr | None = None
    masks: list[Expr] = field(default_factory=list)
    sink: Expr | None = None

    def size(self, operand: int, axis: str) -> Dim:
        """Returns a size of q, k or v by its axis: B, S (queries or keys), H (heads), D."""
        shape = (self.q, self.k, self.v)[operand].tensor.shape
        return shape[self.layouts[operand].index(axis)]

    def add(self, bias: Expr) -> None:
        """Adds to the scores."""
        self.added = bias if self.added is None else call("add", self.added, bias)

    def built(self) -> Expr:
        """Returns the result, [B, S, N * D]."""
        if self.causal and not self._starts_together:
            self.masks.append(causal_mask(self.size(0, "S"), self.size(1, "S")))
            self.causal = False
        if self.softcap or self.sink is not None:
            found = self._step_by_step()
        else:
            operands = [self.q, self.k, self.v]
            if (mask := self._mask()) is not None:
                operands.append(mask)
            q_layout, k_layout, v_layout = self.layouts
            found = call(
                "nn.attention",
                *operands,
                scale=self.scale,
                causal=self.causal,
                q_layout=q_layout,
                k_layout=k_layout,
                v_layout=v_layout,
                layout="BSHD",
            )
        batch, rows, heads, width = found.tensor.shape
        return reshaped(found, (batch, rows, heads * width))

    def _step_by_step(self) -> Expr:
        """Returns the result, [B, S, N, D], computed by products and a softmax: for scores limited
        to (-softcap, softcap), or heads with an additional key that has a score but no value.
        """
        q, k, v = (
            call("transpose", x, axes=tuple(layout.index(axis) for axis in order))
            for x, layout, order in zip(
                (self.q, self.k, self.v), self.layouts, ("BHSD", "BHDS", "BHSD"), strict=True
            )
        )
        batch, heads, rows, depth = q.tensor.shape
        groups, keys = v.tensor.shape[1:3]
        dtype = q.tensor.dtype
        # Heads that share keys are rows of one product.
        shared = (batch, groups, heads // groups * rows, depth)
        scores: Expr = call("nn.matmul", reshaped(q, shared), k)
        scores = reshaped(scores, (batch, heads, rows, keys))
        scale = self.scale or 1.0 / math.sqrt(depth)  # type: ignore[arg-type]
        scores = call("multiply", scores, scalar(scale, dtype))
        if self.softcap:
            limit = scalar(self.softcap, dtype)
            scores = call("multiply", call("tanh", call("divide", scores, limit)), limit)
        if self.added is not None:
            scores = call("add", scores, self.added)
        hidden = scalar(-float("inf"), dtype)
        if self.causal:
            self.masks.append(causal_mask(rows, keys))
        for mask in self.masks:
            scores = call("where", mask, scores, hidden)
        if self.sink is not None:
            sinks = reshaped(cast(self.sink, dtype), (1, self.sink.tensor.shape[0], 1, 1))
            sinks = call("broadcast_to", sinks, shape=(batch, heads, rows, 1))
            scores = call("concatenate", scores, sinks, axis=3)
        weights = part(call("nn.softmax", scores, axis=3), 3, 0, keys)
        found: Expr = call("nn.matmul", reshaped(weights, (*shared[:3], keys)), v)
        found = reshaped(found, (batch, heads, rows, v.tensor.shape[3]))
        return call("transpose", found, axes=(0, 2, 1, 3))

    @property
    def _starts_together(self) -> bool:
        """Whether the first query is at the position of the first key."""
        return self.size(0, "S") == self.size(1, "S")

    def _mask(self) -> Expr | None:
        """Returns conditions and addends as one mask: a condition if nothing is added."""
        if not self.masks:
            return self.added
        whole = self.masks[0]
        for other in self.masks[1:]:
            whole = call("logical_and", whole, other)
        if self.added is None:
            return whole
        return call("where", whole, self.added, scalar(-float("inf"), self.added.tensor.dtype))


def causal_mask(rows: Dim, keys: Dim) -> Expr:
    """Returns the keys that each query sees, bool[S, T]; the last query is at the last key's
    position.
    """
    row = reshaped(places(rows, keys - rows), (rows, 1))
    return call("less_equal", reshaped(places(keys), (1, keys)), row)


def places(count: Dim, start: Dim = 0) -> Expr:
    """Returns consecutive integers from a start, `i32[count]`."""
    return call("arange", start=start, stop=start + count, step=1, dtype="i32")


def part(x: Expr, axis: int, begin: Dim, end: Dim) -> Expr:
    """Returns a slice along an axis: `x` itself if the slice is the whole axis."""
    if begin == 0 and end == x.tensor.shape[axis]:
        return x
    return call("slice", x, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))
