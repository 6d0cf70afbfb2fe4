"""Builds a region that its backend cannot run as a separate program for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from clew.backends.options import Options
from clew.build.result import Build
from clew.ir.expr import Function, Tuple
from clew.ir.module import Module
from clew.passes.placement.annotate_target import AnnotateTarget
from clew.passes.placement.merge_composite import MergeComposite
from clew.runtime.cache import Cache
from clew.runtime.threads import ThreadPool
from clew.support.dataclass import dataclass
from clew.trace.span import Span

_PLACING = (MergeComposite, AnnotateTarget)


@dataclass(frozen=True)
class Standby:
    """A region on the CPU: takes an array per parameter and returns one per result."""

    build: Build

    def __call__(self, *arrays: Any) -> Sequence[Any]:
        """Runs the region."""
        return self.build.program(arrays)


def standby(
    region: Function,
    options: Options,
    cache: Cache,
    pool: ThreadPool,
    build: Callable[..., Any],
) -> Standby:
    """Returns a region compiled for the CPU, with the passes of the model except placement. `build`
    builds a module.

    Errors: those of `build`.
    """
    body = region.body if isinstance(region.body, Tuple) else Tuple([region.body], span=Span())
    main = Function(region.params, body, span=Span())
    passes = tuple(p for p in options.passes if not isinstance(p, _PLACING))
    own = replace(options, passes=passes, backends=(), trace=False, required=(), fallback=False)
    return Standby(build(Module({"main": main}), own, cache, pool, None))
