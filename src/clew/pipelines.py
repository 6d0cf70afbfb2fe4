"""The ordered pass lists, each line saying why."""

from __future__ import annotations

from collections.abc import Sequence

from clew.backends.backend import Backend
from clew.cost.products import fastest_float
from clew.machine.target import Target, host
from clew.passes.base import Pass
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.convolution.select_conv_algorithm import SelectConvAlgorithm
from clew.passes.convolution.skip_padding import SkipPadding
from clew.passes.convolution.split_transposed import SplitTransposed
from clew.passes.fusion.flatten_clips import FlattenClips
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.melt_attention import MeltAttention
from clew.passes.fusion.place_parts import PlaceParts
from clew.passes.placement.assign_backends import AssignBackends
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.passes.precision.split_products import SplitProducts
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.combine_parallel_matmul import CombineParallelMatmul
from clew.passes.simplify.dead_code import DeadCode
from clew.passes.simplify.decompose_ops import DecomposeOps
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from clew.passes.simplify.fold_constant import FoldConstant
from clew.passes.simplify.fold_empty import FoldEmpty
from clew.passes.simplify.fold_structure import FoldStructure
from clew.passes.simplify.inline_composites import InlineComposites
from clew.passes.simplify.simplify_expr import SimplifyExpr
from clew.passes.simplify.simplify_inference import SimplifyInference
from clew.passes.simplify.unroll_loops import UnrollLoops
from clew.passes.specialize import Specialize


def pipeline(
    opt_level: int = 3,
    precision: str = "f32",
    keep_f32: Sequence[str] = (),
    *,
    target: Target | None = None,
    backends: Sequence[Backend] = (),
) -> list[Pass]:
    """Returns the passes in order, for the pass manager to choose from by level.

    0: what is needed to run. 1: fewer, fused kernels. 2: less arithmetic. 3: layouts for vectors.
    `precision` is the dtype that products are of: `auto` is the one that `target` multiplies
    fastest (this machine, if there is no target). `keep_f32` names layers that stay in f32.
    `backends` are those beside the CPU and the host, which take regions in this order.
    """
    if precision == "auto":
        precision = fastest_float(target or host())
    products: Pass = SplitProducts()
    if precision != "f32":
        products = ConvertPrecision(precision, tuple(keep_f32))
    return [
        UnrollLoops(),  # loops of unknown sizes become what all others look at
        FoldEmpty(),  # before all rules: no pass or rule below has to expect sizes of 0
        InlineComposites(),  # what no pass before took is operators again, for all that follow
        SimplifyInference(),  # training's operators have no kernels
        NarrowIntegers(),  # while it is plain to see what weights are made of
        FoldConstant(),  # arithmetic on weights goes first: the patterns below meet constants
        FoldStructure(),  # with all sizes known that will be: what follows looks for tensors
        SimplifyExpr(),  # fewer spellings for the patterns
        EliminateCommonSubexpr(),  # a pattern's repeated operand is one node
        CanonicalizeOps(),  # blocks whole again, matrix products as layers
        *_placement(target, backends),  # on whole layers, before any is rewritten for the CPU
        MeltAttention(),  # on whole softmaxes; heads are plain to see before products are combined
        FoldScaleAxis(),  # batch norms into weights, once they and the layers are plain to see
        SplitTransposed(),  # with scales in the weights: it hides the channels from them
        CombineParallelMatmul(),  # on final weights
        DeadCode(),  # no layout is converted for what nobody reads
        SkipPadding(),  # on final weights, before windows of one tap are known for products
        FlattenClips(),  # on final weights; what follows knows images
        products,  # on whole layers with their final weights, and before weights are packed
        AlterLayout(),  # with all operators settled that have a layout of their own
        SelectConvAlgorithm(),  # on blocks, which transforms and products of parts read and write
        DecomposeOps(),  # what has no kernel of its own, once patterns have looked for it whole
        FoldConstant(),  # packed and concatenated weights
        DeadCode(),  # what folding left
        InlineComposites(),  # what a pass among these put together: kernels call no functions
        FuseOps(mode="none" if opt_level == 0 else "auto"),  # late: it hides operators in kernels
        PlaceParts(),  # last: it goes by which kernels there are, and in what order
    ]


def _placement(target: Target | None, backends: Sequence[Backend]) -> list[Pass]:
    """Returns the passes that make regions for backends beside the CPU and the host; none without
    such backends.
    """
    if not backends:
        return []
    machine = target or host()
    return [
        FoldScaleAxis(),  # a backend, too, is given layers with their batch norms in the weights
        DeadCode(),  # and nothing that nobody reads
        *(p for backend in backends for p in backend.passes(machine)),  # what they ask for
        AssignBackends(tuple(backends)),  # last: later passes leave regions alone
    ]


def pipeline_of_kernel(specialize: Specialize) -> list[Pass]:
    """Returns the passes over the operators of a kernel whose sizes a run has told: they become
    kernels anew, as with all sizes known some are views, or nothing.
    """
    return [specialize, FoldEmpty(), DecomposeOps(), FoldConstant(), FuseOps(), PlaceParts()]
