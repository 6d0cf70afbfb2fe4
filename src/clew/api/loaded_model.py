"""`load_compiled`: loads a saved model without importing the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew.api.profiled_model import ProfiledModel
from clew.backends.compile_options import CompileOptions
from clew.runtime.artifact import LoadedBuild, LoadedKernel
from clew.serving.from_file import LoadedChain, read_saved
from clew.serving.ready import Ready
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.near import listed
from clew.support.shown import counted
from clew.support.size_ranges import SizeRanges


class LoadedModel(ProfiledModel[LoadedKernel, LoadedBuild]):
    """A saved model, called like the compiled model that was saved.

    A model with symbolic sizes runs at all sizes if one build serves them; others, and sizes for
    which that build is not valid, run only at the sizes that were built before it was saved.
    """

    _chain: LoadedChain

    def __init__(self, chain: LoadedChain) -> None:
        super().__init__(chain, chain.outputs, chain.form)

    def _about(self) -> str:
        chain = self._chain
        parts = ["all sizes"] if chain.template is not None else []
        if chain.builds and chain.template is None:
            parts.append(counted(len(chain.builds), "size"))
        at = listed([*parts, *(str(v) for v in chain.variants if not v.held)])
        return f"{super()._about()}, saved for {at}"

    @property
    def sizes(self) -> SizeRanges:
        """The ranges that were given for free dimensions, by name."""
        return self._chain.interface.ranges

    @property
    def compile_options(self) -> CompileOptions:
        """The options that the model was compiled with, except code, threads and files, which are
        not saved.

        Errors: those of wrong values, for a file of another version of clew.
        """
        return CompileOptions.of_record(self._chain.options)

    @property
    def kernels(self) -> list[LoadedKernel]:
        """The kernels in the order they run; with builds for several sizes, those of the latest
        call.

        Errors: I044 if there are several builds and none has run yet.
        """
        latest, template = self._chain.latest, self._chain.template
        if latest is not None:
            return list(latest.build.kernels)
        if template is not None:
            return list(template.kernels)
        raise InputError(
            "I044",
            f"the model is built for {len(self._chain.builds)} sizes and has not run yet",
            hint="run it once",
        )

    def ready_for(self, arrays: Sequence[Any]) -> Ready[LoadedKernel]:
        """Returns program, segments and kernels for checked inputs."""
        build = self.served_for(arrays).build
        return Ready(build.program, build.segments, [(k, k.segment, k.step) for k in build.kernels])


@coded_exhaustion
def load_compiled(
    path: str | Path, threads: int | None = None, *, backends: Sequence[Any] = ()
) -> LoadedModel:
    """Returns a model written by `save`, ready to run with a number of threads. `backends` are
    those it was compiled with (docs/adding-a-backend.md).

    Its constants are pages of the file, shared by all processes that load it. Replacing the file is
    safe; truncating it in place while a model runs is not. The file contains native code: load only
    files you trust.

    Errors: I012 (threads), C050 to C054 (the file), C055 (inconsistent contents), C056 and C057
    (made for another machine), C061 (an operator that is not registered), C072 (a missing
    backend), C003 (linking).
    """
    return LoadedModel(read_saved(path, threads, backends))
