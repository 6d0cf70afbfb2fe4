"""A build for all sizes of a model's free dimensions.

Its kernels take sizes as arguments. For each set of sizes it makes a program, in which every shape
is a number; this compiles nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clew.backends.options import Options
from clew.build.build import build_module, build_template
from clew.build.conditions import conditions_of, sizes_from_zero
from clew.build.result import Build, BuildTemplate
from clew.ir.dims import Expected, is_unknown
from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.size_names import attribute_names
from clew.ir.types import UnrankedType, leaves, sizes_in
from clew.ir.visit import all_nodes, post_order
from clew.ops.registry import Op
from clew.passes.fusion.views import view_offsets
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

    def __init__(
        self, build: BuildTemplate, values: Collection[str] = (), expected: Expected = ()
    ) -> None:
        """`values` are names of values; operators that they put on the host are unsized.
        `expected` holds likely sizes.
        """
        self.build = build
        self.unsized = {**dict(build.unsized), **_unranked(build), **_on_host(build, set(values))}
        module, binaries = build.stages[-1].module, build.binaries.values()
        conditions = conditions_of(module.main, binaries, build.stages[0].module.main)
        if any(map(is_unknown, conditions)):
            self.unsized["a kernel"] = "it needs a size of the data to be large enough"
        from_zero = () if self.unsized else sizes_from_zero(module.main, conditions)
        self.template = ProgramTemplate(build.program, build.segments, conditions, from_zero)
        if not self.unsized:
            named = set(values).union(*(sizes_in(p.type) for p in module.main.params))
            self.template.prepare(named, dict(expected))

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
    module: Module,
    options: Options,
    cache: Cache,
    pool: ThreadPool,
    values: Collection[str] = (),
) -> SizedBuild:
    """Returns the build of a module for all sizes of its free dimensions, some of which are
    `values` of inputs.
    """
    made = build_template(module, options, cache, pool)
    return SizedBuild(made, values, options.sizes.expected)


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


def _on_host(build: BuildTemplate, values: set[str]) -> dict[str, str]:
    """Returns the operators that run on the host because an attribute is a named value; with a
    number, they may have a kernel.
    """
    if not values:
        return {}
    nodes = list(all_nodes(build.stages[-1].module.main))
    kernels = [n for n in nodes if isinstance(n, Function) and n.is_primitive]
    inside = {n.id for kernel in kernels for n in post_order(kernel)}
    return {
        ", ".join(node.span.layers) or node.op_name: "a value of an input must be a number here"
        for node in nodes
        if isinstance(node, Call) and node.id not in inside
        if isinstance(node.op, Op) and not node.op.host and view_offsets(node) is None
        if values & attribute_names([node])
    }
