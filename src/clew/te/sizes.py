"""Expressions and tensor expressions at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clew.ir.dims import Dim, Sizes, SymDim
from clew.te.expr import Checked, Index, Load, Reduce, Scalar, Sequential, Size, size
from clew.te.tensor import Tensor, stages
from clew.te.walk import over, post_order


class ExpressionsAt:
    """Expressions at given sizes, each computed once; sizes that are not given stay free. `source`
    gives the values of loads.
    """

    def __init__(self, sizes: Mapping[str, int], source: Callable[[Any], Any]) -> None:
        self._sizes = Sizes(sizes)
        self._source = source
        # By the ids of what they replace, which is kept alive.
        self._images: dict[int, tuple[Scalar, Scalar]] = {}

    def value(self, dim: Dim) -> Dim:
        """Returns a dimension at the given sizes: a number if these are all that it depends on."""
        if isinstance(dim, SymDim) and not dim.symbols <= self._sizes.by_name.keys():
            return dim.substitute(self._sizes.by_name)
        return self._sizes.value(dim)

    def shape(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """Returns dimensions at the given sizes."""
        return tuple(map(self.value, dims))

    def index(self, index: Index) -> Index:
        """Returns a loop variable or axis. Its facts stay: they mark loops whose iterations may
        compute an element again.
        """
        found = self.of(index)
        assert isinstance(found, Index)
        return found

    def of(self, expr: Scalar) -> Scalar:
        """Returns an expression; shared parts stay shared."""
        images = self._images
        for node in post_order(expr, images):
            children = tuple([images[id(c)][1] for c in node.children])
            images[id(node)] = node, self._node(node, children)
        return images[id(expr)][1]

    def _node(self, node: Scalar, children: tuple[Scalar, ...]) -> Scalar:
        match node:
            case Index():
                return Index(
                    node.name, self.value(node.extent), node.role, node.facts, repeats=node.repeats
                )
            case Size():
                return size(self.value(node.dim))
            case Load():
                return Load(self._source(node.source), children)
            case Reduce():
                return Reduce(node.combiner, children[0], [self.index(a) for a in node.axes])
            case Sequential():
                return node.over_axes(children, [self.index(a) for a in node.over])
            case Checked():
                places = node.places
                places = replace(
                    places, count=self.value(places.count), size=self.value(places.size)
                )
                return Checked(children[0], places, node.hold, node.site)
        return over(node, children)


def tensors_at(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], sizes: Mapping[str, int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the inputs and outputs of a computation at given sizes."""
    made: dict[int, Tensor] = {}
    at = ExpressionsAt(sizes, lambda tensor: made[id(tensor)])
    for tensor in (*inputs, *stages(outputs)):
        axes = [at.index(axis) for axis in tensor.axes]
        body = None if tensor.body is None else at.of(tensor.body)
        shape, layout, role = at.shape(tensor.shape), tensor.layout, tensor.role
        made[id(tensor)] = Tensor(tensor.name, shape, tensor.dtype, axes, body, layout, role)
    return [made[id(t)] for t in inputs], [made[id(t)] for t in outputs]
