"""A build for all sizes of a model's free dimensions.

Its kernels take sizes as arguments. For each set of sizes it makes a program, in which every shape
is a number; this compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from clew.backends.options import Options
from clew.build.build import build_module, build_template
from clew.build.conditions import conditions_of
from clew.build.result import Build, BuildTemplate
from clew.ir.module import Module
from clew.ir.types import UnrankedType, leaves
from clew.ir.visit import all_nodes
from clew.passes.specialize import Specialize
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
        module, binaries = build.stages[-1].module, build.binaries.values()
        conditions = conditions_of(module.main, binaries)
        self.template = ProgramTemplate(build.program, build.segments, conditions)

    def _about(self) -> str:
        return f"for all sizes, {self.build._about()}"

    def at(self, sizes: Mapping[str, int]) -> Build | None:
        """Returns the build at given sizes; None if it is not valid there: a build for those sizes
        alone takes its place.
        """
        found = None if self.unsized else self.template.at(sizes)
        if found is None:
            return None
        return self.build.at(*found, sizes)


def build_for_all_sizes(
    module: Module, options: Options, cache: Cache, pool: ThreadPool
) -> SizedBuild:
    """Returns the build of a module for all sizes of its free dimensions."""
    return SizedBuild(build_template(module, options, cache, pool))


def build_at(
    module: Module,
    options: Options,
    cache: Cache,
    pool: ThreadPool,
    sizes: Mapping[str, int],
) -> Build:
    """Returns a build of a module at given sizes of its free dimensions: the one for all sizes, or
    one for these sizes alone where that is not valid.
    """
    if sizes:
        found = build_for_all_sizes(module, options, cache, pool).at(sizes)
        if found is not None:
            return found
    alone = Specialize(tuple(sizes.items())) if sizes else None
    return build_module(module, options, cache, pool, alone)


def _unranked(build: BuildTemplate) -> dict[str, str]:
    """Returns the values of a rank that only a run knows. Operators on them run on the host; where
    sizes decide the rank, a build for given sizes has kernels for them.
    """
    return {
        ", ".join(node.span.layers) or "a value": "its rank is known only in a run"
        for node in all_nodes(build.stages[-1].module.main)
        if any(isinstance(leaf, UnrankedType) for leaf in leaves(node.type))
    }
