"""A loop nest at given sizes: everything that a call brings is a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clew.ir.dims import Sizes, substitute
from clew.loop.ir import Buffer, For, If, Nest, Prefetch, Stmt, Store, transform
from clew.te.expr import INDEX, Checked, Imm, Index, Load, Scalar, Size
from clew.te.walk import over, post_order


def at_sizes(nest: Nest, sizes: Mapping[str, int]) -> Nest:
    """Returns the nest with the sizes of its buffers, loops and expressions replaced by numbers.

    Loops that do not run at these sizes are kept. The facts of loops stay: they mark the loops
    whose iterations may compute an element twice.
    """
    if not nest.sizes:
        return nest
    return _AtSizes(sizes).nest(nest)


class _AtSizes:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._named = sizes
        self._sizes = Sizes(sizes)
        # By the ids of what they replace, which the nest keeps alive.
        self._buffers: dict[int, Buffer] = {}
        self._images: dict[int, Scalar] = {}

    def nest(self, nest: Nest) -> Nest:
        inputs, outputs = (tuple(map(self._buffer, part)) for part in (nest.inputs, nest.outputs))
        return replace(nest, inputs=inputs, outputs=outputs).with_body(
            transform(nest.body, self._statement)
        )

    def _buffer(self, buffer: Buffer) -> Buffer:
        found = self._buffers.get(id(buffer))
        if found is None:
            memory = None if buffer.memory is None else self._buffer(buffer.memory)
            shape = tuple(self._sizes.value(d) for d in buffer.shape)
            found = self._buffers[id(buffer)] = replace(buffer, shape=shape, memory=memory)
        return found

    def _statement(self, stmt: Stmt) -> Stmt | None:
        match stmt:
            case For():
                index = self._expression(stmt.index)
                assert isinstance(index, Index)
                return replace(stmt, index=index)
            case Store():
                indices = tuple(map(self._expression, stmt.indices))
                buffer, value = self._buffer(stmt.buffer), self._expression(stmt.value)
                return replace(stmt, buffer=buffer, indices=indices, value=value)
            case Prefetch():
                indices = tuple(map(self._expression, stmt.indices))
                return replace(stmt, buffer=self._buffer(stmt.buffer), indices=indices)
            case If():
                return replace(stmt, cond=self._expression(stmt.cond))
        return None

    def _expression(self, expr: Scalar) -> Scalar:
        images = self._images
        for node in post_order(expr, images):
            images[id(node)] = self._node(node, tuple([images[id(c)] for c in node.children]))
        return images[id(expr)]

    def _node(self, node: Scalar, children: tuple[Scalar, ...]) -> Scalar:
        match node:
            case Index():
                return Index(node.name, self._sizes.value(node.extent), node.role, node.facts)
            case Size():
                return Imm(self._sizes.value(node.dim), INDEX)
            case Load():
                return Load(self._buffer(node.source), children)
            case Checked():
                places = node.places
                count, size = (substitute(d, self._named) for d in (places.count, places.size))
                places = replace(places, count=count, size=size)
                return Checked(children[0], places, node.hold, node.site)
        return over(node, children)
