"""The ordered pass lists, with a reason for each line."""

from __future__ import annotations

from collections.abc import Sequence

from clew.cost.products import fastest_float
from clew.machine.target import Target, host
from clew.passes.base import Pass
from clew.passes.convolution.alter_layout import AlterLayout
from clew.passes.convolution.channels_first import ChannelsFirst
from clew.passes.convolution.fill_groups import FillGroups
from clew.passes.convolution.flatten_clips import FlattenClips
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.convolution.join_columns import JoinColumns
from clew.passes.convolution.lift_signals import LiftSignals
from clew.passes.convolution.multiply_patches import MultiplyPatches
from clew.passes.convolution.select_conv_algorithm import SelectConvAlgorithm
from clew.passes.convolution.skip_padding import SkipPadding
from clew.passes.convolution.split_transposed import SplitTransposed
from clew.passes.convolution.transform_frames import TransformFrames
from clew.passes.convolution.vectorize_signals import VectorizeSignals
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.melt_attention import MeltAttention
from clew.passes.fusion.place_parts import PlaceParts
from clew.passes.fusion.write_in_place import WriteInPlace
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.claims import Claims
from clew.passes.placement.merge_compiler_regions import MergeCompilerRegions
from clew.passes.placement.merge_composite import MergeComposite
from clew.passes.placement.partition_graph import PartitionGraph
from clew.passes.placement.rules import FIRST, Rule
from clew.passes.precision.attend_codes import AttendCodes
from clew.passes.precision.bound_sums import BoundSums
from clew.passes.precision.convert_precision import ConvertPrecision
from clew.passes.precision.fold_offsets import FoldOffsets
from clew.passes.precision.move_quantization import MoveQuantization
from clew.passes.precision.multiply_codes import MultiplyCodes
from clew.passes.precision.narrow_integers import NarrowIntegers
from clew.passes.precision.requantize_sums import RequantizeSums
from clew.passes.precision.split_products import SplitProducts
from clew.passes.precision.tabulate import Tabulate
from clew.passes.precision.widen_halves import WidenHalves
from clew.passes.simplify.bind_constants import BindConstants
from clew.passes.simplify.canonicalize_ops import CanonicalizeOps
from clew.passes.simplify.combine_lookups import CombineLookups
from clew.passes.simplify.combine_parallel_matmul import CombineParallelMatmul
from clew.passes.simplify.dead_code import DeadCode
from clew.passes.simplify.decompose_ops import DecomposeOps
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from clew.passes.simplify.flatten_sequences import FlattenSequences
from clew.passes.simplify.fold_constant import FoldConstant
from clew.passes.simplify.fold_empty import FoldEmpty
from clew.passes.simplify.fold_structure import FoldStructure
from clew.passes.simplify.inline_composites import InlineComposites
from clew.passes.simplify.map_rows import MapRows
from clew.passes.simplify.relate_sizes import RelateSizes
from clew.passes.simplify.simplify_expr import SimplifyExpr
from clew.passes.simplify.simplify_inference import SimplifyInference
from clew.passes.simplify.split_extremes import SplitExtremes
from clew.passes.simplify.stack_appends import StackAppends
from clew.passes.simplify.stack_sequences import StackSequences
from clew.passes.simplify.unroll_loops import UnrollLoops
from clew.passes.specialize import Specialize


def pipeline(
    opt_level: int = 3,
    precision: str = "f32",
    keep_f32: Sequence[str] = (),
    *,
    target: Target | None = None,
    backends: Sequence[Claims] = (),
    place: Rule = FIRST,
) -> list[Pass]:
    """Returns the passes in order. The pass manager selects from them by optimization level.

    Level 0: required to run. 1: fewer, fused kernels. 2: less arithmetic. 3: vector layouts.
    `precision` is the dtype of products' operands: `auto` is the one that `target` multiplies
    fastest (this machine without a target). `keep_f32` names layers that stay in f32. `backends`
    are those besides the CPU and the host, which take regions in this order, as `place` says.
    """
    exact_codes = precision == "f32"
    if precision == "auto":
        precision = fastest_float(target or host())
    products: Pass = SplitProducts()
    if precision != "f32":
        products = ConvertPrecision(precision, tuple(keep_f32))
    return [
        MapRows(),  # first: no loop remains to which the next passes apply
        StackAppends(),  # before others: the loops that remain keep their states' sizes
        StackSequences(),  # likewise those that read what they append to
        FlattenSequences(),  # likewise those whose elements differ in size
        UnrollLoops(),  # before all rules: loops of varying sizes become plain operators
        RelateSizes(),  # before all rules: operators on several states need to know equal sizes
        FoldEmpty(),  # before all rules: no later pass or rule needs to handle sizes of 0
        InlineComposites(),  # composites no earlier pass took become plain operators again
        SimplifyInference(),  # operators for training have no kernels
        BindConstants(),  # so that weights of loops and branches are visible inside
        MoveQuantization(),  # so that operators between layers do not hide quantized operands
        BoundSums(),  # while weights are as in the model
        NarrowIntegers(signed=bool(backends)),  # while the origin of weights is still visible
        RequantizeSums(),  # likewise for that of biases
        MultiplyCodes(exact_codes, precision),  # likewise for that of weights of a few bits
        FoldConstant(),  # folds arithmetic on weights, so that later patterns see constants
        FoldStructure(),  # all sizes that will be known are known; later passes expect tensors
        ChannelsFirst(),  # likewise constants; before the rules that remove what it leaves
        SimplifyExpr(),  # fewer forms for the patterns to match
        EliminateCommonSubexpr(),  # makes a pattern's repeated operand one node
        FoldOffsets(),  # once sums have all their constants; before layouts
        CombineLookups(),  # repeated parts of texts are one node
        Tabulate(),  # whole functions of bytes, before parts of them are merged with others
        CanonicalizeOps(),  # restores whole blocks, and turns matrix products into layers
        *_placement(
            target, backends, place
        ),  # on whole layers, before any is rewritten for the CPU
        MeltAttention(),  # needs whole softmaxes, and heads before products are combined
        FoldScaleAxis(),  # folds batch norms into weights, once both are visible
        SplitTransposed(),  # after scales are in the weights: it hides the channels from them
        CombineParallelMatmul(),  # needs final weights
        DeadCode(),  # so that no layout is converted for an unused value
        TransformFrames(),  # needs final weights of signals
        SkipPadding(),  # needs final weights; before windows of one tap become products
        LiftSignals(),  # likewise
        FlattenClips(),  # needs final weights; later passes expect images
        MultiplyPatches(),  # on images; the products that it makes are products for the next passes
        FillGroups(),  # on images with final weights; before layouts
        AttendCodes(),  # needs whole attention; before widened values become narrow ones
        WidenHalves(),  # needs whole layers, like the next one, which leaves its products alone
        products,  # needs whole layers with final weights; before weights are packed
        JoinColumns(),  # needs the dtype of products; before layouts
        VectorizeSignals(),  # after JoinColumns, which takes the dot products; before layouts
        SplitExtremes(),  # while layouts are plain
        AlterLayout(),  # after all operators with their own layouts are final
        SelectConvAlgorithm(),  # on blocks, which transforms and bf16x3 products read and write
        DecomposeOps(),  # operators without kernels, after patterns have matched them whole
        FoldConstant(),  # packs and concatenates weights
        DeadCode(),  # removes what folding left unused
        InlineComposites(),  # composites that a pass above built: kernels call no functions
        FuseOps(mode="none" if opt_level == 0 else "auto"),  # late: it hides operators in kernels
        WriteInPlace(),  # needs kernels
        PlaceParts(),  # last: it depends on the kernels and their order
    ]


def _placement(target: Target | None, backends: Sequence[Claims], place: Rule) -> list[Pass]:
    """Returns the passes that make regions for backends other than the CPU and the host; none
    without such backends.
    """
    if not backends:
        return []
    machine = target or host()
    return [
        FoldScaleAxis(),  # a backend, too, is given layers with their batch norms in the weights
        DeadCode(),  # and nothing that nobody reads
        *(p for backend in backends for p in backend.passes(machine)),  # what they ask for
        *placement(backends, place),  # later passes leave regions alone
        NarrowIntegers(),  # of what is left to the CPU, in the form that it multiplies
    ]


def placement(backends: Sequence[Claims], place: Rule = FIRST) -> list[Pass]:
    """Returns the four passes that make regions for backends, as a rule says. The first backend
    chooses first.
    """
    chosen = tuple(backends)
    return [
        MergeComposite(chosen, place),  # first: a match of a pattern goes to a backend whole
        AnnotateTarget(chosen, place),
        MergeCompilerRegions(tuple(b.name for b in chosen)),
        PartitionGraph(),
    ]


def pipeline_of_kernel(specialize: Specialize) -> list[Pass]:
    """Returns the passes for a kernel whose sizes became known during a run. Its operators are
    fused again, since with known sizes some become views or disappear.
    """
    return [specialize, FoldEmpty(), DecomposeOps(), FoldConstant(), FuseOps(), PlaceParts()]
