"""A build for all sizes of a model's free dimensions.

Its kernels take sizes as arguments. For each set of sizes it makes a program, in which every shape
is a number; this compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clew.backends.options import Options
from clew.build.build import build_template
from clew.build.result import Build, BuildTemplate
from clew.ir.dims import SymDim, at_least, is_unknown
from clew.ir.expr import Expr, Function
from clew.ir.module import Module
from clew.ir.types import TensorType, UnrankedType, leaves
from clew.ir.visit import inner_functions, post_order
from clew.runtime.cache import Cache
from clew.runtime.template import ProgramTemplate
from clew.runtime.threads import ThreadPool
from clew.support.shown import Shown


class SizedBuild(Shown):
    """A build whose programs at given sizes share kernels and weights.

    `unsized` says, by kernel or value, why some cannot serve all sizes; then `at` returns None for
    all sizes.
    """

    def __init__(self, build: BuildTemplate) -> None:
        self.build = build
        self.unsized = {**dict(build.unsized), **_unranked(build)}
        conditions = dict.fromkeys(_conditions(build))
        self.template = ProgramTemplate(build.program, build.segments, tuple(conditions))

    def _about(self) -> str:
        return f"for all sizes, {self.build._about()}"

    def at(self, sizes: Mapping[str, int]) -> Build | None:
        """Returns the build at given sizes; None if it is not valid there: a build for those sizes
        alone takes its place.
        """
        found = None if self.unsized else self.template.at(sizes)
        if found is None:
            return None
        return self.build.at(*found)


def build_for_all_sizes(
    module: Module, options: Options, cache: Cache, pool: ThreadPool
) -> SizedBuild:
    """Returns the build of a module for all sizes of its free dimensions."""
    return SizedBuild(build_template(module, options, cache, pool))


def _unranked(build: BuildTemplate) -> dict[str, str]:
    """Returns the values of a rank that only a run knows. Operators on them run on the host; where
    sizes decide the rank, a build for given sizes has kernels for them.
    """
    return {
        ", ".join(node.span.layers) or "a value": "its rank is known only in a run"
        for node in _nodes(build.stages[-1].module.main)
        if any(isinstance(leaf, UnrankedType) for leaf in leaves(node.type))
    }


def _conditions(build: BuildTemplate) -> Iterator[SymDim]:
    """Yields the dimensions that must be at least 0: what kernels need, and that no value is
    empty.
    """
    for binary in build.binaries.values():
        yield from binary.code.needs
    last = build.stages[-1].module
    for node in _nodes(last.main):
        for leaf in leaves(node.type):
            for dim in leaf.shape if isinstance(leaf, TensorType) else ():
                if isinstance(dim, SymDim) and not is_unknown(dim) and not at_least(dim, 1):
                    condition = dim - 1
                    assert isinstance(condition, SymDim)
                    yield condition


def _nodes(function: Function) -> Iterator[Expr]:
    """Yields the parameters and nodes of a function, and of all functions inside it."""
    pending = [function]
    while pending:
        current = pending.pop()
        yield from current.params
        for node in post_order(current.body):
            yield node
            pending += inner_functions(node)
