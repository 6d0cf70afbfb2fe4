"""Counts the FLOPs of a model's convolutions and matrix products from its tensor expressions."""

from __future__ import annotations

from clew.build.result import Build
from clew.cost.work import product_flops_of
from clew.ir.dims import Dim
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.ops.work import counted
from clew.passes.simplify.expand import expand
from clew.te.analysis import Kind


def model_flops(build: Build) -> int:
    """Returns the FLOPs of one run of the imported model: two for each multiply-add.

    As usual, nothing else counts, so the rates of all engines refer to the same work, independent
    of their algorithms. Both branches of a condition count; the body of a loop counts once.
    """
    for stage in build.stages:
        found = build.known(module_flops(stage.module))
        if found is not None:
            return found
    return 0


def module_flops(module: Module) -> Dim:
    """Returns the FLOPs of a graph's sums of products."""
    whole = expand(module, lambda node: isinstance(node.op, Op) and node.op.compute is None)  # type: ignore[attr-defined]
    total: Dim = 0
    for node in post_order([function for _, function in whole], into_functions=True):
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            continue
        found = counted(product_flops_of, node)
        if found and node.op.kind([a.tensor for a in node.args], node.attrs) is Kind.ANCHOR:
            total = total + found
    return total
