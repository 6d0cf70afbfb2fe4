"""RelateSizes: names the sizes of loops' states that grow alike in terms of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from clew.ir.dims import Dim, SymDim
from clew.ir.expr import While
from clew.ir.late_sizes import plain_size
from clew.ir.module import Module
from clew.ir.types import TensorType, TupleType
from clew.ir.visit import post_order
from clew.passes.base import Pass, PassContext
from clew.passes.specialize import Specializer
from clew.patterns.exactness import EXACT, Exactness
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class RelateSizes(Pass):
    """Names the sizes of a loop's states in terms of each other: those that grow by the same number
    in each iteration differ by what they differ by before the first. The keys and values of a
    decoder, which begin with as many rows, then have equal sizes, and a kernel can read both.

    Before:
        fn(%i: i64[], %keys: f32[?0, 8], %values: f32[?1, 8]) -> (f32[?0 + 1, 8], f32[?1 + 1, 8])
    After:
        fn(%i: i64[], %keys: f32[?0, 8], %values: f32[?0, 8]) -> (f32[?0 + 1, 8], f32[?0 + 1, 8])

    Preconditions: none. Non-goals: sizes that do not grow by a number.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        while True:  # the sizes of an inner loop's states may be those of an outer one's
            nodes = post_order([function for _, function in module], into_functions=True)
            related: dict[str, Dim] = {}
            for node in nodes:
                if isinstance(node, While):
                    related |= _related(node)
            if not related:
                return module
            module = Specializer(related, {}, {}).rewrite_module(module)


class _Size(NamedTuple):
    """A size of a state that grows by a number in each iteration."""

    name: str
    first: Dim
    step: int


def _related(loop: While) -> dict[str, Dim]:
    """Returns sizes of a loop's states in terms of others."""
    found: dict[str, Dim] = {}
    known: list[_Size] = []
    for size in sorted(set(_grown(loop)), key=lambda size: size.name):
        for other in known:
            rest = size.first - other.first
            if size.step == other.step and isinstance(rest, int):
                least, more = (other, size) if rest >= 0 else (size, other)
                found[more.name] = SymDim.symbol(least.name) + abs(rest)
                if least is size:
                    known[known.index(other)] = size
                break
        else:
            known.append(size)
    return _settled(found)


def _grown(loop: While) -> Iterator[_Size]:
    """Yields the sizes of states; those of which two axes say different things are left out."""
    results = loop.body.body.type
    assert isinstance(results, TupleType)
    states = zip(loop.init, loop.body.params[1:], results.fields, strict=False)
    found: dict[str, _Size | None] = {}
    for first, param, after in states:
        types = (first.type, param.type, after)
        if not all(isinstance(t, TensorType) for t in types):
            continue
        shapes = [t.shape for t in types if isinstance(t, TensorType)]
        if len(set(map(len, shapes))) > 1:
            continue
        for begin, dim, then in zip(*shapes, strict=True):
            name = plain_size(dim)
            if name is None:
                continue
            step = then - dim
            size = _Size(name, begin, step) if isinstance(step, int) else None
            found[name] = size if found.get(name, size) == size else None
    yield from (size for size in found.values() if size is not None)


def _settled(found: dict[str, Dim]) -> dict[str, Dim]:
    """Returns sizes in terms of those that stay."""
    while any(isinstance(d, SymDim) and d.symbols & found.keys() for d in found.values()):
        found = {n: d.substitute(found) for n, d in found.items() if isinstance(d, SymDim)}
    return found
