"""State-space recurrences over time, computed in chunks by matrix products.

Letters: B batch, S steps, H heads, P elements of a head, G groups of heads, N state elements per
element of a head, Q steps of a chunk, C chunks.

Source: Dao and Gu, Transformers are SSMs, 2024 (Mamba 2).
"""

from __future__ import annotations

from clew.cost.policy.tiles import STEPS_OF_CHUNK
from clew.frontends.building import call, cast, reshaped, scalar, turned
from clew.frontends.lowering.attention import part, places
from clew.ir.dims import Dim, dim_min
from clew.ir.expr import Expr
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Steps:
    """The inputs of a recurrence: `x`, [B, S, H, P], the step lengths `dt`, [B, S, H], the decay
    rates `a`, [H], which are negative, and the projections `b` and `c`, [B, S, G, N].
    """

    x: Expr
    dt: Expr
    a: Expr
    b: Expr
    c: Expr


def scanned(of: Steps, state: Expr) -> tuple[Expr, Expr]:
    """Returns `y[t] = h[t] @ c[t]`, [B, S, H, P], with
    `h[t] = exp(a * dt[t]) * h[t - 1] + dt[t] * outer(x[t], b[t])`, and the last `h`, [B, H, P, N].
    `state` is the `h` before the first step.
    """
    batch, steps, heads, width = of.x.tensor.shape
    groups, size = of.b.tensor.shape[2:]
    height = dim_min(steps, STEPS_OF_CHUNK)
    chunks = (steps + height - 1) // height
    per = heads // groups

    def chunked(x: Expr, *sizes: Dim) -> Expr:
        """Returns [B, S, n, ...] as [B, C, n, Q, ...], padded at the end with zeros: steps of
        length 0.
        """
        rank = x.tensor.rank
        pads: list[Dim] = [0] * (2 * rank)
        pads[rank + 1] = chunks * height - steps
        whole = call("pad", x, pads=tuple(pads)) if height != steps else x
        split = reshaped(whole, (batch, chunks, height, *sizes))
        return call("transpose", split, axes=(0, 1, 3, 2, *range(4, rank + 1)))

    dt = chunked(of.dt, heads)  # [B, C, H, Q]
    x = chunked(call("multiply", of.x, reshaped(of.dt, (batch, steps, heads, 1))), heads, width)
    b, c = (chunked(v, groups, size) for v in (of.b, of.c))  # [B, C, G, Q, N]
    decay = call("multiply", dt, reshaped(of.a, (1, 1, heads, 1)))
    passed = call("cumsum", decay, axis=3)
    total = part(passed, 3, height - 1, height)  # [B, C, H, 1]

    # Within a chunk: attention without a softmax, weighted by the decay between two steps.
    scores: Expr = call("nn.matmul", c, turned(b))  # [B, C, G, Q, Q]
    scores = reshaped(scores, (batch, chunks, groups, 1, height, height))
    between = call("exp", _sums_between(decay, height))
    weights: Expr = call(
        "multiply", scores, reshaped(between, (batch, chunks, groups, per, height, height))
    )
    weights = reshaped(weights, (batch, chunks, heads, height, height))
    near = call("nn.matmul", weights, x)  # [B, C, H, Q, P]

    # The contribution of each chunk to the state, and the states between chunks.
    left = call("exp", call("subtract", total, passed))
    fading = call("multiply", x, reshaped(left, (batch, chunks, heads, height, 1)))
    added = call("nn.matmul", turned(fading), _per_head(b, heads))  # [B, C, H, P, N]
    first = reshaped(state, (batch, 1, heads, width, size))
    states = _states(call("concatenate", first, added, axis=1), total)
    before, last = part(states, 1, 0, chunks), part(states, 1, chunks, chunks + 1)

    far: Expr = call("nn.matmul", _per_head(c, heads), turned(before))  # [B, C, H, Q, P]
    far = call("multiply", far, reshaped(call("exp", passed), (batch, chunks, heads, height, 1)))
    y: Expr = call("transpose", call("add", near, far), axes=(0, 1, 3, 2, 4))
    y = part(reshaped(y, (batch, chunks * height, heads, width)), 1, 0, steps)
    return y, reshaped(last, (batch, heads, width, size))


def _per_head(x: Expr, heads: Dim) -> Expr:
    """Returns [B, C, G, Q, N] repeated for the heads of each group: [B, C, H, Q, N]."""
    batch, chunks, groups, height, size = x.tensor.shape
    if groups == heads:
        return x
    per = heads // groups
    spread = reshaped(x, (batch, chunks, groups, 1, height, size))
    shape = (batch, chunks, groups, per, height, size)
    return reshaped(call("broadcast_to", spread, shape=shape), (batch, chunks, heads, height, size))


def _sums_between(x: Expr, count: Dim) -> Expr:
    """Returns, at [..., i, j], the sum of the elements j + 1 to i along the last axis, and minus
    infinity for i < j. Differences of cumulative sums would suffer from cancellation.
    """
    lead = x.tensor.shape[:-1]
    row, column = reshaped(places(count), (count, 1)), reshaped(places(count), (1, count))
    spread = reshaped(x, (*lead, count, 1))
    kept = call("where", call("greater", row, column), spread, scalar(0.0, x.tensor.dtype))
    sums = call("cumsum", kept, axis=len(lead))
    hidden = scalar(-float("inf"), x.tensor.dtype)
    return call("where", call("greater_equal", row, column), sums, hidden)


def _states(added: Expr, total: Expr) -> Expr:
    """Returns the state before each chunk and the last state, [B, C + 1, H, P, N]. `added` has the
    same shape: the first state, then the contribution of each chunk. `total` is the logarithm of
    the decay over each chunk, [B, C, H, 1].
    """
    batch, count, heads, width, size = added.tensor.shape
    totals = call("transpose", reshaped(total, (batch, count - 1, heads)), axes=(0, 2, 1))
    zero = call("full", shape=(batch, heads, 1), value=0.0, dtype=total.tensor.dtype)
    totals = call("concatenate", zero, totals, axis=2)
    decay = call("exp", _sums_between(totals, count))  # [B, H, C + 1, C + 1]
    by_head = call("transpose", added, axes=(0, 2, 1, 3, 4))
    flat = reshaped(by_head, (batch, heads, count, width * size))
    found = reshaped(call("nn.matmul", decay, flat), (batch, heads, count, width, size))
    return call("transpose", found, axes=(0, 2, 1, 3, 4))


def causal_convolution(x: Expr, past: Expr, kernel: Expr, bias: Expr | None) -> tuple[Expr, Expr]:
    """Returns the causal depthwise convolution over time of `x`, [B, S, K], with `kernel`,
    [taps, K], and the last `taps - 1` inputs. `past`, [B, taps - 1, K], has the inputs before `x`.
    """
    steps, taps = x.tensor.shape[1], kernel.tensor.shape[0]
    assert isinstance(taps, int)
    whole = call("concatenate", past, x, axis=1)
    found: Expr | None = bias
    for n in range(taps):
        weight = part(kernel, 0, n, n + 1)  # [1, K]
        term = call("multiply", part(whole, 1, n, n + steps), weight)
        found = term if found is None else call("add", found, term)
    assert found is not None
    return found, cast(part(whole, 1, steps, steps + taps - 1), x.tensor.dtype)
