"""SplitProducts: f32 products on a unit for narrow floats, with f32 precision."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from clew.cost.policy.caches import SHARE_OF_SPLIT_PIECE
from clew.cost.policy.precision import (
    DEPTH_TO_SPLIT,
    LEAST_PIECE_OF_DEPTH,
    ROWS_OF_SPLIT_BAND,
    ROWS_OF_WHOLE_WEIGHTS,
    ROWS_TO_SPLIT,
    ROWS_TO_SPLIT_FREE,
    UNITS_TO_SPLIT,
)
from clew.ir.dims import product, typical
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ops.math.parts import TILE_DEPTH, parts_of
from clew.ops.registry import argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass

# Elements of a weight that are examined together.
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class SplitProducts(Pass):
    """Computes large `f32` dense layers as six products of `bf16` parts on a matrix unit.

    An f32 is the sum of three parts (`split_parts`). The products of parts that affect the last bit
    of the result are summed in `f32`, which is as exact as fused multiply-adds. Numbers below 1e-33
    lose bits, because the unit treats its smallest numbers as 0.

    Before:
        %1: f32[128, 3072] = nn.dense(%0, w)
    After:
        %1: bf16[8, 24, 3, 16, 32] = split_parts(%0)
        %2: f32[128, 3072] = nn.dense(%1, w, out_dtype="f32", parts=3, rows=[128])

    For up to `whole_rows` rows, weights stay whole in memory, because such layers are bound by
    reading them: a kernel splits each weight once for all rows as it runs. This requires finite
    weights. For more rows, the weights are split beforehand; they then take 1.5 times the memory,
    but sums stay in tiles.

    If the number of rows is known only at run time, the layer becomes `nn.dense_by_rows`: an f32
    product for fewer than `enough_rows` rows, and a product of parts from `enough_rows` rows up.
    Its kernel splits the data band by band. Both forms of the weights are kept; together they take
    2.5 times the memory.

    A deep layer becomes several products, each added to the one before, so that the operands stay
    in the cache. If the number of rows is free, this is planned for at most `rows_of_band` rows. A
    layer of fewer than `min_rows` rows stays in f32, because it is bound by reading its weights.

    Preconditions: weights are constants, layouts are plain. Non-goals: convolutions.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = Exactness(
        "none", "rounding as that of f32 products; numbers below 1e-33 lose bits"
    )

    parts: int = 3
    min_rows: int = ROWS_TO_SPLIT
    whole_rows: int = ROWS_OF_WHOLE_WEIGHTS
    enough_rows: int = ROWS_TO_SPLIT_FREE
    min_depth: int = DEPTH_TO_SPLIT
    min_units: int = UNITS_TO_SPLIT
    share_of_cache: float = SHARE_OF_SPLIT_PIECE
    least_piece: int = LEAST_PIECE_OF_DEPTH
    rows_of_band: int = ROWS_OF_SPLIT_BAND

    def run(self, module: Module, ctx: PassContext) -> Module:
        fits = ctx.target is not None and ctx.target.tile_shape("bf16", "bf16") is not None
        return _Splitter(self, ctx).rewrite_module(module) if fits else module


class _Splitter(Rewriter):
    def __init__(self, options: SplitProducts, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._split: dict[int, Expr] = {}

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        data, weight = new.args[:2] if self._is_dense(new) else (None, None)
        if data is None or not isinstance(weight, Constant):
            return new
        reason = self._unfit(new)
        rows = product(tuple(data.tensor.shape[:-1]))
        whole = not reason and isinstance(rows, int) and rows <= self._options.whole_rows
        if whole:
            reason = _not_finite(weight)
        if reason:
            self._ctx.remark(old, f"stays a product of f32: {reason}")
            return new
        result: Expr | None = None
        for start, end in self._pieces(new):
            if isinstance(rows, int):
                made = self._of_parts(new, self._split_of(data), weight, (start, end), whole=whole)
            else:
                made = self._by_rows(new, weight, (start, end))
            result = made if result is None else get_op("add")(made, result)
        assert result is not None
        return result

    def _split_of(self, data: Expr) -> Expr:
        """Returns the parts of the data, from one call for all their readers."""
        found = self._split.get(data.id)
        if found is None:
            split = get_op("split_parts")(data, parts=self._options.parts)
            found = self._split[data.id] = split
        return found

    def _of_parts(
        self, call: Call, data: Expr, weight: Constant, at: tuple[int, int], *, whole: bool
    ) -> Expr:
        """Returns the product over a piece of the depth, computed from parts of the data."""
        parts, layout = self._options.parts, call.attrs.weight_layout
        if whole:
            piece = piece_of_weight(weight, layout, *at)
        else:
            piece = split_weight(weight, weight.tensor.concrete, layout, parts, *at)
        rows = call.args[0].tensor.shape[:-1]
        attrs = call.attrs.with_(out_dtype="f32", parts=parts, rows=rows, start=at[0])
        return Call(call.op, [data, piece], attrs)

    def _by_rows(self, call: Call, weight: Constant, at: tuple[int, int]) -> Expr:
        """Returns the product over a piece of the depth, in f32 or from parts by the row count."""
        parts, layout = self._options.parts, call.attrs.weight_layout
        plain = piece_of_weight(weight, layout, *at)
        pieces = split_weight(weight, weight.tensor.concrete, layout, parts, *at)
        return get_op("nn.dense_by_rows")(
            call.args[0], plain, pieces, least_rows=self._options.enough_rows,
            weight_layout=layout, parts_layout=layout, units=call.attrs.units, parts=parts,
            start=at[0],
        )  # fmt: skip

    def _pieces(self, call: Call) -> list[tuple[int, int]]:
        """Returns the pieces of the depth that are multiplied one after the other, sized so that
        the operands stay in the cache.
        """
        assert self._ctx.target is not None
        *outer, depth = call.args[0].tensor.shape
        assert isinstance(depth, int)
        rows = product(tuple(outer))
        if not isinstance(rows, int):
            rows = min(typical(rows), self._options.rows_of_band)
        data_bytes = 2 * self._options.parts * rows * depth
        room = int(self._ctx.target.l2_bytes * self._options.share_of_cache)
        return pieces_of(depth, data_bytes, room, self._options.least_piece)

    def _is_dense(self, call: Call) -> bool:
        """Whether a call is an f32 dense layer."""
        if call.op_name != "nn.dense" or argument_references(call.attrs):
            return False
        plain = call.attrs.weight_layout in ("NK", "KN") and call.attrs.parts == 1
        return plain and call.args[0].tensor.dtype == "f32"

    def _unfit(self, call: Call) -> str:
        """Returns why a dense layer stays unchanged; "" if the pass splits it."""
        *outer, depth = call.args[0].tensor.shape
        units = call.tensor.shape[-1]
        if not isinstance(depth, int) or not isinstance(units, int):
            return "its depth or its number of columns is not static"
        rows = typical(product(tuple(outer)))
        if rows < self._options.min_rows:
            return f"with {rows} rows, each weight is used too few times"
        if depth < self._options.min_depth or units < self._options.min_units:
            return f"{depth} by {units} weights are too few"
        if depth % TILE_DEPTH:
            return f"its depth {depth} is not a multiple of {TILE_DEPTH}"
        return ""


def pieces_of(depth: int, data_bytes: int, room: int, least: int) -> list[tuple[int, int]]:
    """Returns pieces of a depth whose data fit the room, none shorter than `least`."""
    pieces = max(1, min(-(-data_bytes // room), depth // least))
    size = -(-depth // pieces // TILE_DEPTH) * TILE_DEPTH
    return [(at, min(at + size, depth)) for at in range(0, depth, size)]


def _not_finite(weight: Constant) -> str:
    data = weight.data
    step = max(1, _AT_ONCE * len(data) // max(data.size, 1))
    finite = all(np.isfinite(data[n : n + step]).all() for n in range(0, len(data), step))
    return "" if finite else "its weight has infinities or NaN"


def piece_of_weight(weight: Constant, layout: str, start: int, end: int) -> Constant:
    """Returns a piece of a weight along its depth."""
    axis = layout.index("K")
    shape = list(weight.tensor.concrete)
    if (start, end) == (0, shape[axis]):
        return weight
    shape[axis] = end - start
    piece = (slice(None),) * axis + (slice(start, end),)
    return weight.derived(f"[{start}:{end}]", TensorType(tuple(shape), "f32"), lambda w: w[piece])


def split_weight(
    weight: Constant, whole: tuple[int, ...], layout: str, parts: int, start: int, end: int
) -> Constant:
    """Returns the parts of a piece of a weight side by side along its depth. `whole` is the shape
    of the whole weight as a matrix.
    """
    axis = layout.index("K")
    shape = list(whole)
    shape[axis] = parts * (end - start)
    piece = (slice(None),) * axis + (slice(start, end),)

    def make(data: Any) -> Any:
        return np.concatenate(parts_of(data.reshape(whole)[piece], parts), axis=axis)

    return weight.derived(f"parts{parts}[{start}:{end}]", TensorType(tuple(shape), "bf16"), make)
