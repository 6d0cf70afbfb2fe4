"""Makes the builds of one model, counts them, and reports the user's requests without effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clew.backends.options import Options
from clew.build.all_sizes import SizedBuild, build_for_all_sizes
from clew.build.build import build_module
from clew.build.result import Build, BuildTemplate
from clew.build.wishes import kept_layers, tell, unknown_layers
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.passes.share_constants import ShareConstants
from clew.passes.specialize import Specialize
from clew.runtime.cache import Cache
from clew.runtime.program import Program
from clew.runtime.threads import shared_pool
from clew.serving.often import Manners
from clew.support.budgets import in_force
from clew.support.errors import ClewWarning

Array = np.ndarray[Any, Any]


class Maker:
    """Makes the builds of a model with its options. `made` counts them, `warned` holds their
    warnings, and `told` the texts of those that were issued.
    """

    def __init__(
        self,
        model: Module | DeferredModule,
        options: Options,
        cache: Cache,
        told: set[str] | None = None,
    ) -> None:
        self.model = model
        self.options = options
        self.cache = cache
        self.pool = shared_pool(options.threads)
        self.told: set[str] = set() if told is None else told
        self.warned: list[ClewWarning] = []
        self.made = 0

    def build(self, module: Module, specialize: Specialize | None) -> Build:
        """Returns a build of the model's module, for sizes and values.

        Errors: those of a build.
        """
        with in_force(self.options.budgets):
            build = build_module(module, self.options, self.cache, self.pool, specialize)
        self.tell(module, build)
        self.made += 1
        return build

    def build_for_all_sizes(self, module: Module, values: Collection[str]) -> SizedBuild:
        """Returns the build for all sizes. `values` are names of elements of inputs.

        Errors: those of a build.
        """
        with in_force(self.options.budgets):
            found = build_for_all_sizes(module, self.options, self.cache, self.pool, values)
        if not found.unsized:
            self.made += 1
            self.tell(module, found.build)
        return found

    def program_alone(
        self,
        module: Module,
        sizes: Mapping[str, int],
        manners: Manners,
        weights: Sequence[Array],
    ) -> Program:
        """Returns the program of a build for given sizes alone, which shares weights. It may run in
        another thread.
        """
        quiet = replace(
            self.options,
            passes=(*self.options.passes, ShareConstants(weights)),
            trace=False,
            instruments=(manners,),
            on_progress=manners.on_progress,
        )
        alone = Specialize(tuple(sizes.items()))
        with in_force(self.options.budgets):
            return build_module(module, quiet, self.cache, self.pool, alone).program

    def tell(self, module: Module, build: BuildTemplate) -> None:
        """Raises an error, or issues a warning once, for each request of the user that had no
        effect.
        """
        unmet = list(build.unmet)
        if not isinstance(self.model, Module):
            names = kept_layers(self.options.passes)
            unmet += unknown_layers(names, module, "keep_f32", certain=False)
        tell(unmet, self.told)
        self.warned += [wish for wish in unmet if isinstance(wish, ClewWarning)]
