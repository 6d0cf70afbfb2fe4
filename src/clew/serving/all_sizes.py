"""The provider of programs from the build for all sizes, which compiles nothing at a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from clew.build.all_sizes import SizedBuild
from clew.build.result import Build
from clew.build.wishes import tell
from clew.ir.module import Module
from clew.runtime.program import Program
from clew.runtime.sizes_key import SizesKey
from clew.runtime.template import ProgramTemplate
from clew.runtime.variant import Variant
from clew.serving.making import Maker
from clew.serving.often import Manners, Often, Specializing
from clew.serving.served import Declined, Request, Served
from clew.support.errors import ClewWarning
from clew.support.locks import Once

Array = np.ndarray[Any, Any]


class AllSizes:
    """Serves the sizes for which one build is valid, which is made on first use.

    Sizes that calls have often may get builds of their own (`often.py`), unless the model was
    compiled with `Sizes(specialize=False)`.
    """

    name: Final = "the build for all sizes"

    def __init__(
        self,
        maker: Maker,
        module: Module,
        values: Collection[str],
        stored: ProgramTemplate | None = None,
    ) -> None:
        """`module` has names for the elements of inputs that decide sizes, which are `values`.
        `stored` is the program for all sizes from the disk cache, if there is one.
        """
        self.module = module
        self._maker = maker
        self._stored = stored
        self._sized = Once(partial(maker.build_for_all_sizes, module, tuple(values)))
        self.specializing: Specializing | None = None
        """What runs the calls at sizes that they may have often: that of the model's chain. Calls
        without elements are short and rare, so builds for their sizes do not pay off.
        """

    @property
    def sized(self) -> SizedBuild:
        """The build. Errors: those of a build, when it is first read."""
        return self._sized.get()

    @property
    def known(self) -> SizedBuild | None:
        """The build, if it exists."""
        return self._sized.known

    @property
    def weights(self) -> Sequence[Array]:
        """The constants in memory, which other builds share."""
        template = self._template
        return () if template is None else template.constants

    @property
    def _template(self) -> ProgramTemplate | None:
        return self._stored if self.known is None else self.known.template

    def serves_empty(self, variant: Variant) -> bool:
        """Whether the build, as far as it exists, serves the sizes of a variant."""
        template = self._template
        return (
            template is not None
            and not variant.ranks
            and template.from_zero.issuperset(variant.empty)
        )

    def serve(self, request: Request) -> Served[Build] | Declined:
        """Errors: those of the build."""
        sizes = request.sizes
        sized = self.sized
        if sized.unsized:
            part, reason = next(iter(sized.unsized.items()))
            self._tell(part, reason)
            return Declined(self.name, f"{part}: {reason}")
        served = self._served(request.key, sizes)
        if served is None:
            return Declined(self.name, "it is not valid at these sizes")
        often = None if request.is_empty else self._often(request.key, sizes, served.program)
        return served if often is None else replace(served, often=often)

    def _served(self, key: SizesKey, sizes: Mapping[str, int]) -> Served[Build] | None:
        """Returns what serves the calls with a key; None if the build is not valid there."""
        build = self.sized.at(sizes)
        if build is None:
            return None
        weight = len(build.uses)
        return Served(
            self.name, key, sizes, build.program, build, weight=weight, again=self._served
        )

    def _often(self, key: SizesKey, sizes: Mapping[str, int], program: Program) -> Often | None:
        """Returns what runs the calls with a key; None with `Sizes(specialize=False)`."""
        if self.specializing is None:
            return None
        return self.specializing.often(key, sizes, program, self._compile_seconds)

    @property
    def _compile_seconds(self) -> float:
        """The time that the build took, as far as it is known."""
        return 0.0 if self.known is None else sum(self.known.build.seconds.values())

    def program_alone(self, sizes: Mapping[str, int], manners: Manners) -> Program:
        """Returns the program of a build for given sizes alone. It may run in another thread."""
        return self._maker.program_alone(self.module, sizes, manners, self.weights)

    def _tell(self, part: str, reason: str) -> None:
        """Warns once that each set of sizes is compiled for itself."""
        text = f"no build serves all sizes ({part}: {reason})"
        hint = "each set of sizes is compiled when a call first has it; fix those that never change"
        tell([ClewWarning("I319", text, hint=hint)], self._maker.told)
