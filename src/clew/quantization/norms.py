"""Folds batch norms into the weights of the products that they follow, so that each weight is
final.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import users
from clew.ops.registry import get_op
from clew.quantization.sites import Site, sites_of

Array = NDArray[Any]


@dataclass
class Folded:
    """A module whose batch norms are folded; `into` has, by the layer of a norm, that of the
    product which took it over.
    """

    module: Module
    into: dict[str, str] = field(default_factory=dict)


def fold_norms(module: Module) -> Folded:
    """Returns a module that computes the same values, with `nn.batch_norm` of constants folded into
    weight and bias of a product that only the norm reads.
    """
    folder = _Folder({s.result.id: s for s in sites_of(module)})
    return Folded(folder.rewrite_module(module), folder.into)


class _Folder(Rewriter):
    def __init__(self, sites: dict[int, Site]) -> None:
        super().__init__()
        self._sites = sites
        self._users: dict[int, list[Expr]] = {}
        self.into: dict[str, str] = {}

    def enter(self, function: Function) -> None:
        self._users.update(users(function))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "nn.batch_norm":
            return new
        site = self._sites.get(old.args[0].id)
        if site is None or len(self._users[site.result.id]) != 1:
            return new
        given = [a for a in new.args[1:] if isinstance(a, Constant)]
        if len(given) != len(new.args) - 1:
            return new
        numbers = [np.asarray(a.data, np.float64) for a in given]
        gamma, beta, mean, variance = numbers
        scale = gamma / np.sqrt(variance + new.attrs.epsilon)
        if not np.isfinite(scale).all() or new.type != old.type:
            return new
        weight, bias = site.weight.data, site.bias_constant
        along = [1] * weight.ndim
        along[site.channel] = -1
        shift = beta - mean * scale
        if bias is not None:
            shift = shift + bias.data.reshape(-1) * scale
        spatial = -1 - site.channel_axis
        product = self.memo[site.call.id]
        assert isinstance(product, Call)
        norm_and_bias = (old, site.bias) if site.bias else (old,)
        with self.covers(site.call, *norm_and_bias):  # the product is named after its own layer
            scaled = (weight * scale.reshape(along)).astype(np.float32)
            made = Call(product.op, [product.args[0], Constant(scaled)], product.attrs)
        with self.covers(*norm_and_bias, site.call):
            added = shift.astype(np.float32).reshape((-1,) + (1,) * spatial)
            result = get_op("add")(made, Constant(added))
        for layer in old.span.layers:
            self.into[layer] = site.name
        return result
