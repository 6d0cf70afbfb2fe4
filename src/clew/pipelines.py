"""The ordered pass lists; each line gives its reason."""

from __future__ import annotations

from collections.abc import Sequence

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
    opt_level: int = 3, precision: str = "f32", keep_f32: Sequence[str] = ()
) -> list[Pass]:
    """Returns the passes in order; the pass manager selects from them by level.

    0: passes required to run. 1: fewer, fused kernels. 2: less arithmetic. 3: layouts for vectors.
    `precision` is the dtype of products; `keep_f32` names layers that stay in f32.
    """
    products: Pass = SplitProducts()
    if precision != "f32":
        products = ConvertPrecision(precision, tuple(keep_f32))
    return [
        UnrollLoops(),  # first, so that all later passes see loops of unknown sizes unrolled
        FoldEmpty(),  # before all rules: no later pass or rule has to handle sizes of 0
        InlineComposites(),  # composites that no earlier pass replaced become operators again
        SimplifyInference(),  # training operators have no kernels
        NarrowIntegers(),  # while the quantization of weights is still visible
        FoldConstant(),  # folds arithmetic on weights, so that the patterns below meet constants
        FoldStructure(),  # once all sizes are known; later passes look for tensors
        SimplifyExpr(),  # fewer spellings for the patterns
        EliminateCommonSubexpr(),  # a pattern's repeated operand becomes one node
        CanonicalizeOps(),  # restores whole blocks, and turns matrix products into layers
        MeltAttention(),  # on whole softmaxes; before products are combined, which hides heads
        FoldScaleAxis(),  # moves batch norms into weights, once both are recognizable
        SplitTransposed(),  # after scales are in the weights: it hides the channels from them
        CombineParallelMatmul(),  # on final weights
        DeadCode(),  # so that no layout is converted for an unused value
        SkipPadding(),  # on final weights; turns windows of one tap into products
        FlattenClips(),  # on final weights; later passes handle images only
        products,  # on whole layers with their final weights, and before weights are packed
        AlterLayout(),  # once all operators with their own layouts are settled
        SelectConvAlgorithm(),  # on blocks, which transforms and products of parts read and write
        DecomposeOps(),  # operators without a kernel, after patterns have matched them whole
        FoldConstant(),  # packs and concatenates weights
        DeadCode(),  # values left over by folding
        InlineComposites(),  # functions that the passes above built: kernels call no functions
        FuseOps(mode="none" if opt_level == 0 else "auto"),  # late: it hides operators in kernels
        PlaceParts(),  # last: it depends on the set of kernels and their order
    ]


def pipeline_of_kernel(specialize: Specialize) -> list[Pass]:
    """Returns the passes for the operators of a kernel whose sizes only became known in a run. They
    form kernels anew, because with known sizes some operators become views or disappear.
    """
    return [specialize, FoldEmpty(), DecomposeOps(), FoldConstant(), FuseOps(), PlaceParts()]
