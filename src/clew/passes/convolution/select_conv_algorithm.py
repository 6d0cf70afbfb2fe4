"""SelectConvAlgorithm: selects an algorithm for each convolution by a cost model."""

from __future__ import annotations

from dataclasses import field
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from clew.cost.convolution import WINDOW, WINOGRAD_TILES
from clew.cost.policy.convolutions import SPLIT_GAIN, WINOGRAD_GAIN
from clew.cost.policy.precision import MOST_ERROR_OF_WINOGRAD
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import Type
from clew.machine.target import Target
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.conv_by_size import by_size
from clew.passes.convolution.conv_in_parts import in_parts
from clew.passes.convolution.convolutions import Algorithm, plain_weight
from clew.passes.convolution.winograd import (
    direct_cycles,
    error_of_tiles,
    on_phases,
    winograd,
)
from clew.passes.decisions import Decision, Decisions, Defaults, subject_of
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass
from clew.support.errors import InputError

WINOGRAD, BF16X3 = "winograd", "bf16x3"
_ALGORITHMS: Final = (WINOGRAD, BF16X3)


@dataclass(frozen=True)
class SelectConvAlgorithm(Pass):
    """Computes each convolution of floats with an `f32` result, or of pairs of `i16`, by the
    algorithm that the cost model expects to be fastest.

    - Direct: `nn.conv2d` unchanged. With narrow floats, dot product instructions compute it.
    - `winograd`: 3x3 windows of stride 1 between transforms of 4x4, 3x3 or 2x2 tiles. A tile takes
      36 products instead of 144, 25 instead of 81, or 16 instead of 36. Its weights are 4, 25/9 or
      16/9 times as large; FoldConstant computes their transform. The transforms widen narrow
      floats. A dilated convolution becomes an undilated one on images of every d-th line and column
      (`space_to_batch`). A convolution of clips (`nn.conv3d_frames`) becomes one of images whose
      channels are those of all frames in the window. Integers are transformed exactly, by other
      matrices, where 16 bits hold the transforms and 32 bits the reduced sums.
    - `bf16x3`: six products of `bf16` parts on a matrix unit, as `SplitProducts` computes dense
      layers: pixels are rows and channels the depth, once per tap.

    With free sizes, a kernel contains the direct algorithm and the one that is expected to be
    fastest at typical sizes (Winograd's with the tile sizes that gain enough at some); the sizes of
    a run select one (`nn.conv2d_by_size`). For a dilated convolution, both compute every d-th line
    and column.

    Padding becomes part of the transform or of the split image, so the `pad` before the convolution
    is removed unless something else reads it.

    Before:
        %1 = pad(%0, pads=[0, 0, 1, 1, 0, 0, 0, 1, 1, 0])
        %2 = nn.conv2d(%1, layout_transform(w, "OIHW", "OIHW16i32o"), data_layout="NCHW16c", ...)
    After:
        %2 = nn.conv2d_winograd(%0, nn.winograd_weight(w, tile=3, block=32), tile=3,
                                padding=[1, 1, 1, 1])

    `algorithms` lists the candidates besides the direct one. Winograd must be `min_gain` times as
    fast as the direct algorithm, bf16x3 `min_gain_of_parts` times as fast as all others. `tiles`
    lists the tile sizes to consider, of which a convolution of `f32` or `f64` takes those whose
    rounding error is expected to be at most `max_error` times that of the direct algorithm, as
    estimated from its weights. Random weights give 0.9, 1.4 and 2.6 for 2x2, 3x3 and 4x4. `parts`
    is the number of parts of an f32. `exclude` holds name patterns of layers that stay direct.
    `decisions` may select another algorithm than the cost model, for sizes that are known.

    Preconditions: AlterLayout has laid images out in blocks; FoldConstant and DeadCode run after
    it. Non-goals: groups, 8-bit integers, narrow images of free size (they stay direct).

    Errors: I088 for an unknown algorithm.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = Exactness(
        "integers",
        "rounding; overflow; an infinity or NaN makes all results of its tile NaN (`winograd`)",
    )

    algorithms: tuple[str, ...] = _ALGORITHMS
    tiles: tuple[int, ...] = WINOGRAD_TILES
    parts: int = 3
    max_error: float = MOST_ERROR_OF_WINOGRAD
    min_gain: float = WINOGRAD_GAIN
    min_gain_of_parts: float = SPLIT_GAIN
    exclude: tuple[str, ...] = ()
    decisions: Decisions = field(default_factory=Defaults)

    def run(self, module: Module, ctx: PassContext) -> Module:
        unknown = [name for name in self.algorithms if name not in _ALGORITHMS]
        if unknown:
            raise InputError(
                "I088",
                f"unknown convolution algorithm {unknown[0]!r}",
                hint=f"algorithms are {', '.join(_ALGORITHMS)}",
            )
        if ctx.target is None:
            return module
        return _Selector(self, ctx, ctx.target).rewrite_module(module)


class _Selector(Rewriter):
    def __init__(self, options: SelectConvAlgorithm, ctx: PassContext, target: Target) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        packs = isinstance(new.op, Op) and new.op.traits.packs_weight
        if not packs or self._excluded(old):
            return new
        weight = plain_weight(new, new.op_name)
        if weight is None:
            return new
        options, target = self._options, self._target
        direct = Algorithm("direct", direct_cycles(new, weight, target), lambda: new)
        in_vectors, in_bf16 = [direct], list[Algorithm]()
        tiles = self._within_budget(old, new, weight) if WINOGRAD in options.algorithms else ()
        in_vectors += winograd(new, tiles, target)
        if BF16X3 in options.algorithms:
            in_bf16 += in_parts(new, options.parts, target)
        if [*in_vectors, *in_bf16] == [direct]:
            return new
        selected = self._decided(
            old, new, weight.type, [*in_vectors, *in_bf16], self._select(in_vectors, in_bf16)
        )
        sized = None
        with self.covers(old, old.args[1]):
            if selected is not direct and not new.tensor.is_static:
                sized = self._by_size(new, weight, selected, tiles, in_bf16)
            name = selected.name if sized is None else "by size"
            costs = ", ".join(f"{a.name} {a.cycles / 1e3:.0f}" for a in (*in_vectors, *in_bf16))
            self._ctx.remark(old, f"{name}: thousands of cycles expected: {costs}")
            return sized if sized is not None else selected.build()

    def _within_budget(self, old: Call, conv: Call, weight: Constant) -> tuple[int, ...]:
        """Returns the tiles whose rounding error stays within the budget. Integers are exact, and
        rounding the operands causes a larger error.
        """
        tiles, dtypes = self._options.tiles, {conv.args[0].tensor.dtype, weight.tensor.dtype}
        if not dtypes <= {"f32", "f64"} or weight.tensor.concrete[-2:] != (WINDOW, WINDOW):
            return tiles
        errors = {tile: error_of_tiles(weight.data, tile) for tile in tiles}
        most = self._options.max_error
        beyond = [f"{t}x{t} {e:.1f}" for t, e in errors.items() if e > most]
        if beyond:
            found = ", ".join(beyond)
            self._ctx.remark(old, f"rounding errors beyond {most:g} times the direct: {found}")
        return tuple(tile for tile, error in errors.items() if error <= most)

    def _decided(
        self,
        old: Call,
        conv: Call,
        plain: Type,
        algorithms: list[Algorithm],
        selected: Algorithm,
    ) -> Algorithm:
        """Returns the algorithm that `decisions` choose instead of the one selected by cost.
        `plain` is the type of the plain weight.
        """
        if not conv.tensor.is_static:
            return selected
        names = {algorithm.name: algorithm for algorithm in algorithms}
        # How panels hold the weight is a decision of its own.
        subject = f"{subject_of(conv, {'weight_layout'})}, {plain}"
        decision = Decision("convolution", subject, tuple(names), selected.name, old.layers)
        chosen, remark = self._options.decisions.choose(decision)
        if remark:
            self._ctx.remark(old, remark)
        return names[chosen]

    def _by_size(
        self,
        conv: Call,
        weight: Constant,
        selected: Algorithm,
        tiles: tuple[int, ...],
        in_bf16: list[Algorithm],
    ) -> Expr | None:
        """Returns a convolution of free sizes that combines all algorithms which may be fastest at
        some of them; None if it uses the selected one at all sizes.
        """
        options = self._options
        if conv.op_name != "nn.conv2d":
            return None  # `nn.conv3d_frames`
        has_tiles = selected not in in_bf16
        dilation, size = conv.attrs.dilation, conv.tensor.shape[2:4]
        if has_tiles and dilation != (1, 1):
            conv = on_phases(conv)
        found = by_size(
            conv,
            weight,
            self._target,
            tiles=sorted(tiles, reverse=True) if has_tiles else (),
            min_gain=options.min_gain,
            parts=options.parts if selected in in_bf16 else 0,
            min_gain_of_parts=options.min_gain_of_parts,
        )
        if has_tiles and dilation != (1, 1):
            return get_op("batch_to_space")(found, block=dilation, size=size)
        return found

    def _select(self, in_vectors: list[Algorithm], in_bf16: list[Algorithm]) -> Algorithm:
        """Returns the fastest algorithm, subject to the required gains. The first one in
        `in_vectors` is the direct algorithm.
        """
        options, direct = self._options, in_vectors[0]
        fastest = min(in_vectors, key=lambda a: a.cycles)
        for parts in in_bf16:
            if fastest.cycles >= options.min_gain_of_parts * parts.cycles:
                return parts
        return fastest if direct.cycles >= options.min_gain * fastest.cycles else direct

    def _excluded(self, old: Call) -> bool:
        return any(fnmatchcase(name, p) for p in self._options.exclude for name in old.layers)
