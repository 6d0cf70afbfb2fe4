"""Products whose weight is a row per output channel: the form in which groups of input channels are
together in memory.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.registry import get_op
from clew.quantization.sites import Site


def in_rows(module: Module, sites: Collection[Site]) -> Module:
    """Returns a module in which the weights of these products that are matrices are `[N, K]`."""
    turned = {s.call.id: s for s in sites if s.is_matrix and s.channel != 0}
    return _Rows(turned).rewrite_module(module) if turned else module


class _Rows(Rewriter):
    def __init__(self, sites: dict[int, Site]) -> None:
        super().__init__()
        self._sites = sites

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        site = self._sites.get(old.id)
        if site is None:
            return new
        weight = site.weight
        with self.covers(old):
            rows = Constant(np.ascontiguousarray(weight.data.T), name=weight.name)
            dtype = str(new.attrs.get("out_dtype", ""))
            return get_op("nn.dense")(new.args[0], rows, weight_layout="NK", out_dtype=dtype)
