"""Counterparts of the passes of TVM's Relay, for users who name these."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

COUNTERPARTS: Final = {
    "AlterOpLayout": "AlterLayout",
    "ConvertLayout": "AlterLayout",
    "CombineParallelBatchMatmul": "CombineParallelMatmul",
    "CombineParallelConv2D": "CombineParallelMatmul",
    "CombineParallelDense": "CombineParallelMatmul",
    "DeadCodeElimination": "DeadCode",
    "EliminateCommonSubexpression": "EliminateCommonSubexpr",
    "RemoveUnusedFunctions": "DeadCode",
    "ForwardFoldScaleAxis": "FoldScaleAxis",
    "BackwardFoldScaleAxis": "FoldScaleAxis",
    "CanonicalizeCast": "SimplifyExpr",
    "DynamicToStatic": "FoldConstant",
    "EvaluateConstantShape": "FoldConstant",
    "FakeQuantizationToInteger": "MoveQuantization",
    "FlattenAtrousConv": "SimplifyExpr",
    "Inline": "InlineComposites",
    "Legalize": "DecomposeOps",
    "QnnCanonicalize": "MoveQuantization",
    "QnnLegalize": "MoveQuantization",
    "ToMixedPrecision": "ConvertPrecision",
}
"""Passes of clew that do the work of Relay's."""

_OTHERWISE: Final = {
    "AnnotateSpans": "not needed: every node keeps its layers",
    "Defunctionalization": "clew has no higher-order functions",
    "FastMath": "not needed: kernels compute exp and tanh in vectors, to 2 ulp",
    "FirstOrderGradient": "clew compiles inference only",
    "InferType": "not needed: nodes are typed when they are built",
    "LambdaLift": "not needed: functions may be inside functions",
    "MergeComposite": "clew.patterns.partition, or clew.partitioning.MergeComposite for a backend",
    "AnnotateTarget": "pass backends=[...]: it runs only then",
    "MergeCompilerRegions": "pass backends=[...]: it runs only then",
    "PartitionGraph": "pass backends=[...]: it runs only then",
    "PlanDevices": "pass backends=[...]: programs copy between memory spaces by themselves",
    "ToANormalForm": "not needed: graphs may share nodes, and print one per line",
    "ToBasicBlockNormalForm": "not needed: graphs may share nodes",
    "ToGraphNormalForm": "not needed: graphs may share nodes",
}


def counterpart(name: str, known: Collection[str]) -> str:
    """Returns what to use in place of a pass of Relay; empty for other names."""
    pass_name = COUNTERPARTS.get(name, "")
    if pass_name:
        absent = "" if pass_name in known else ", which is not among the passes of this compilation"
        return f"Relay's {name} is clew's {pass_name}{absent}"
    why = _OTHERWISE.get(name, "")
    return f"Relay's {name}: {why}" if why else ""
