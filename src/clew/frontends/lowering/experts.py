"""Mixtures of experts: groups tokens into blocks by expert, and sums the experts' results.

Letters: T tokens, k experts of a token, P = T * k pairs, E experts, M rows of a block, B blocks.
"""

from __future__ import annotations

from clew.cost.policy.tiles import ROWS_OF_EXPERT
from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.lowering.attention import part, places
from clew.ir.dims import Dim, dim_max, dim_min
from clew.ir.expr import Expr
from clew.ops.math.ranking import selects_by_rank
from clew.support.dataclass import dataclass


def chosen_experts(scores: Expr, chosen: int, *, is_normalized: bool) -> tuple[Expr, Expr]:
    """Returns the experts of each token, i64[T, k], and the weights of their results, f32[T, k].
    The weights are the `chosen` largest of the softmax of `scores`, f32[T, E]. With
    `is_normalized`, they are divided by their sum.
    """
    odds = call("nn.softmax", scores, axis=1)
    op = "top_k_ranked" if selects_by_rank(scores.tensor.shape[1], chosen) else "top_k"
    shares, experts = fields(call(op, odds, k=chosen, axis=1, largest=True), 2)
    if is_normalized:
        shares = call("divide", shares, call("sum", shares, axes=(1,), keepdims=True))
    return experts, shares


def sparsely_chosen(scores: Expr, chosen: int, tolerance: float) -> tuple[Expr, Expr]:
    """Returns the experts of each token, i64[T, k], and the weights of their results, f32[T, k].
    The experts have the `chosen` largest of `scores`, f32[T, E]. The weight of each is its share in
    a softmax over the experts that remain after the choices before it, and whose scores are lower
    by at most `tolerance`, relative to the larger of its score and theirs.

    Source: Liu et al., GRIN: GRadient-INformed MoE, 2024, equation 6 (SparseMixer-v2).
    """
    largest, experts = fields(call("top_k", scores, k=chosen, axis=1, largest=True), 2)
    count, dtype = scores.tensor.shape[1], scores.tensor.dtype
    numbers = reshaped(cast(places(count), "i64"), (1, count))
    zero, size = scalar(0, dtype), call("abs", scores)
    taken: Expr | None = None
    shares = []
    for n in range(chosen):
        best, own = part(largest, 1, n, n + 1), part(experts, 1, n, n + 1)
        below = call("subtract", best, scores)
        far: Expr = call("divide", below, call("maximum", size, best))
        far = call("greater", far, scalar(tolerance, dtype))
        if taken is not None:
            far = call("logical_or", far, taken)
        odds = call("where", far, zero, call("exp", call("negative", below)))
        total = call("sum", odds, axes=(1,), keepdims=True)
        shares.append(call("divide", scalar(1, dtype), total))
        here = call("equal", numbers, own)
        taken = here if taken is None else call("logical_or", taken, here)
    return experts, call("concatenate", *shares, axis=1)


@dataclass(frozen=True)
class Dispatch:
    """Pairs of a token and one of its experts, in blocks of M rows. All pairs of a block have the
    same expert.

    `experts` is the expert of each block, i32[B], `tokens` the token of each row, i32[B * M], and
    `rows` the row of each pair, i32[T * k]. Rows without a pair read the first token, and their
    results are unused.
    """

    experts: Expr
    tokens: Expr
    rows: Expr
    chosen: int
    height: Dim

    def blocks(self, x: Expr) -> Expr:
        """Returns the rows of all blocks, [B, M, K], gathered from the tokens `x`, [T, K]."""
        found = call("gather", x, self.tokens, axis=0, from_end=False)
        return reshaped(found, (self.experts.tensor.shape[0], self.height, x.tensor.shape[1]))

    def total(self, results: Expr, shares: Expr) -> Expr:
        """Returns, for each token, the sum over its experts of `results`, [B, M, K], times
        `shares`, [T, k]: [T, K].
        """
        blocks, height, width = results.tensor.shape
        tokens = shares.tensor.shape[0]
        flat = reshaped(results, (blocks * height, width))
        own: Expr = call("gather", flat, self.rows, axis=0, from_end=False)
        own = reshaped(own, (tokens, self.chosen, width))
        weighted = call("multiply", own, reshaped(shares, (tokens, self.chosen, 1)))
        return call("sum", weighted, axes=(1,), keepdims=False)


def dispatched(experts: Expr, count: int) -> Dispatch:
    """Returns the blocks for the experts of each token, i64[T, k], out of `count` experts.

    A block has P // `count` rows, but at least 1 and at most `ROWS_OF_EXPERT`. Blocks of a decode
    step thus have one row and no padding. There are never more blocks than pairs.
    """
    tokens, chosen = experts.tensor.shape
    assert isinstance(chosen, int)
    pairs = tokens * chosen
    height = dim_min(dim_max(pairs // count, 1), ROWS_OF_EXPERT)
    blocks = dim_min(pairs, pairs // height + count)
    of_pair = reshaped(cast(experts, "i32"), (pairs,))
    one, tall = scalar(1, "i32"), places(1, height)
    here = cast(call("equal", reshaped(of_pair, (pairs, 1)), places(count)), "i32")
    before = call("cumsum", here, axis=0, exclusive=True)
    number = call("sum", call("multiply", before, here), axes=(1,), keepdims=False)
    members = call("sum", here, axes=(0,), keepdims=False)
    own = call("divide", call("subtract", call("add", members, tall), one), tall)
    ends = call("cumsum", own, axis=0)
    first = call("multiply", call("subtract", ends, own), tall)
    rows = call("add", call("gather", first, of_pair, axis=0, from_end=False), number)
    passed = call("greater_equal", reshaped(places(blocks), (blocks, 1)), ends)
    owner = call("sum", cast(passed, "i32"), axes=(1,), keepdims=False)
    owner = call("minimum", owner, scalar(count - 1, "i32"))  # for unused blocks at the end
    empty = call("full", shape=(blocks * height,), value=0, dtype="i32")
    pair = call("scatter_elements", empty, rows, places(pairs), axis=0)
    token = call("divide", pair, scalar(chosen, "i32"))
    return Dispatch(owner, token, rows, chosen, height)
