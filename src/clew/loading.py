"""`load_compiled`: loads a saved model without importing the compiler.

The operators' package is imported only if the model calls operators between kernels, and the rest
of the compiler only if the shapes of some kernels are known only during the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from clew.machine.needs import check_machine
from clew.profiled import ProfiledModel
from clew.runtime.artifact import (
    BuildReader,
    HostResolver,
    Json,
    LoadedBuild,
    LoadedKernel,
    LoadedTemplate,
    has_host_steps,
    has_regions,
    read_inputs,
    read_needs,
    read_outputs,
    read_ranges,
)
from clew.runtime.container import Container, read_container, read_opened
from clew.runtime.input_spec import InputSpec, bound_sizes, check_sizes, size_names
from clew.runtime.model import Ready, SizesKey, kept_sizes, sizes_key
from clew.runtime.output_spec import OutputSpec
from clew.runtime.program import Program
from clew.runtime.template import ProgramTemplate
from clew.runtime.threads import shared_pool, thread_count
from clew.runtime.variant import Variant
from clew.support.call_form import CallForm
from clew.support.errors import CompileError, InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.locks import Lock
from clew.support.near import listed
from clew.support.rooms import room
from clew.support.shown import counted
from clew.support.size_ranges import SizeRanges

# Exceptions from reading inconsistent text.
_CONTRADICTIONS = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, AssertionError, RecursionError,
    OverflowError, MemoryError,
)  # fmt: skip


class LoadedModel(ProfiledModel[LoadedKernel]):
    """A saved model, called like the compiled model that was saved.

    A model with symbolic sizes runs at all sizes if one build serves them; others, and sizes for
    which that build is not valid, run only at the sizes that were built before it was saved.
    """

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        outputs: Sequence[OutputSpec],
        deciding: Sequence[int],
        builds: Sequence[LoadedBuild],
        sizes: SizeRanges,
        template: LoadedTemplate | None = None,
        variants: Mapping[Variant, LoadedModel] | None = None,
        form: CallForm | None = None,
    ) -> None:
        super().__init__(inputs, outputs, form)
        self._sizes = sizes
        self._deciding = tuple(deciding)
        for position in deciding:
            inputs[position].decides = True
        self._template = template
        self.variants = dict(variants or {})
        self._builds = {build.key: build for build in builds}
        self._fixed = frozenset(self._builds)
        self._symbolic = any(not i.is_static for i in inputs) or bool(deciding)
        only = len(builds) == 1 and template is None and not self.variants
        self._last = builds[0] if only else None
        self._lock = Lock()
        if template is not None:
            template.template.prepare(size_names(inputs), dict(sizes.expected))

    def _about(self) -> str:
        parts = ["all sizes"] if self._template is not None else []
        if self._builds and self._template is None:
            parts.append(counted(len(self._builds), "size"))
        at = listed([*parts, *map(str, self.variants)])
        return f"{super()._about()}, saved for {at}"

    @property
    def sizes(self) -> SizeRanges:
        """The ranges that were given for free dimensions, by name."""
        return self._sizes

    @property
    def sized(self) -> ProgramTemplate | None:
        """The program for all sizes, if there is one."""
        return self._template.template if self._template is not None else None

    @property
    def kernels(self) -> list[LoadedKernel]:
        """The kernels in the order they run; with builds for several sizes, those of the last run.

        Errors: I044 if there are several builds and none has run yet.
        """
        if self._last is None and self._template is not None:
            return list(self._template.kernels)
        if self._last is None:
            raise InputError(
                "I044",
                f"the model is built for {len(self._builds)} sizes and has not run yet",
                hint="run it once",
            )
        return list(self._last.kernels)

    @property
    def program(self) -> Program:
        """The program of a model with a single build."""
        assert self._last is not None, "several builds"
        return self._last.program

    def program_for(self, arrays: Sequence[Any]) -> Program:
        if self._symbolic:
            return self.program_at(sizes_key(arrays, self._deciding), arrays)
        return self.program

    def program_at(self, key: SizesKey, arrays: Sequence[Any]) -> Program:
        """Returns the program of a model with symbolic sizes for checked inputs, given their
        key.
        """
        self._last = self._build_of(key, arrays)
        return self._last.program

    def _last_key(self) -> SizesKey | None:
        return self._last.key if self._symbolic and self._last is not None else None

    def ready_for(self, arrays: Sequence[Any]) -> Ready[LoadedKernel]:
        build = self._build_for(arrays) if self._symbolic else self._last
        assert build is not None
        uses = [(k, k.segment, k.step) for k in build.kernels]
        return Ready(build.program, build.segments, uses)

    def _build_for(self, arrays: Sequence[Any]) -> LoadedBuild:
        if not self._symbolic and self._last is not None:
            return self._last
        return self._build_of(sizes_key(arrays, self._deciding), arrays)

    def _build_of(self, key: SizesKey, arrays: Sequence[Any]) -> LoadedBuild:
        found = self._builds.get(key)
        if found is None:
            check_sizes(self._inputs, arrays, self._sizes)
            variant = self._variant_for(arrays)
            if variant is not None:
                return variant._build_for(arrays)
            found = self._at(key, arrays)
        if found is None:
            wanted = [a.shape for a in arrays if hasattr(a, "shape")]
            known = [_sizes(key[0]) for key in self._builds if key in self._fixed]
            if self._template is not None:
                known.insert(0, "other sizes")
            known += map(str, self.variants)
            raise InputError(
                "I046",
                f"the saved model has no build for inputs of {_sizes(wanted)}"
                f"{' with these values' if self._deciding else ''}; "
                f"it has those for {' and '.join(known)}",
                hint="compile the model, run it at these sizes too, and save it again",
            )
        return found

    def _at(self, key: SizesKey, arrays: Sequence[Any]) -> LoadedBuild | None:
        """Returns the build for all sizes at those of some inputs; None if there is none."""
        if self._template is None:
            return None
        made = self._template.at(key, bound_sizes(self._inputs, arrays))
        if made is not None:
            with self._lock:
                most = len(self._fixed) + kept_sizes(len(made.kernels))
                while len(self._builds) >= most:
                    del self._builds[next(k for k in self._builds if k not in self._fixed)]
                self._builds[key] = made
        return made

    def serves(self, arrays: Sequence[Any]) -> bool:
        """Whether the model can run at the sizes of some checked inputs."""
        if not self._symbolic:
            return self._last is not None
        key = sizes_key(arrays, self._deciding)
        if key in self._builds or self._at(key, arrays) is not None:
            return True
        variant = self._variant_for(arrays)
        return variant is not None and variant.serves(arrays)

    def _variant_for(self, arrays: Sequence[Any]) -> LoadedModel | None:
        """Returns the variant that serves checked inputs, if there is one."""
        variant = Variant.of(self._inputs, arrays) or Variant.by_ones(self._inputs, arrays)
        return None if variant is None else self.variants.get(variant)


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
    return _loaded(lambda: read_container(Path(path)), str(path), threads, backends)


def load_opened(
    file: BinaryIO, threads: int | None, *, checked: bool, backends: Sequence[Any] = ()
) -> LoadedModel:
    """Returns the model in an open file, as `load_compiled` does. `checked` skips the checksum,
    which reads the whole file, for callers that have verified the file.

    Errors: as `load_compiled`.
    """
    shown = "the stored build"
    return _loaded(lambda: read_opened(file, shown, checked=checked), shown, threads, backends)


def _loaded(
    read: Callable[[], Container], shown: str, threads: int | None, backends: Sequence[Any]
) -> LoadedModel:
    count = thread_count(threads)
    pool = shared_pool(count)
    container = read()
    try:
        text = container.text
        check_machine(read_needs(text))
        resolve = _host_resolver() if has_host_steps(text) else None
        regions = None
        if has_regions(text) or backends:
            regions = room("saved_regions")(backends, count)
        loops = room("saved_loop") if resolve is not None else None
        reader = BuildReader(container, pool, resolve, regions, loops)
        return _model(reader, container.text, container.text)
    except _CONTRADICTIONS as error:
        raise CompileError(
            "C055",
            f"{shown} contradicts itself: {error!r}",
            hint="compile the model and save it again",
        ) from error


def _model(reader: BuildReader, whole: Json, text: Json) -> LoadedModel:
    """Returns the model or variant that `text` describes; `whole` is the text of the file."""
    builds, template = reader.builds(text), reader.template(text)
    variants = {
        Variant.from_json(part): _model(reader, whole, part) for part in text.get("variants", ())
    }
    assert builds or template is not None or variants, "no build"
    inputs, outputs, sizes = read_inputs(text), read_outputs(whole), read_ranges(whole)
    form = CallForm.of(whole.get("form"))
    return LoadedModel(inputs, outputs, text["deciding"], builds, sizes, template, variants, form)


def _host_resolver() -> HostResolver:
    """Imports the operators and returns the function that finds one by name."""
    resolver: HostResolver = room("saved_step")
    return resolver


def _sizes(shapes: Sequence[tuple[int, ...] | None]) -> str:
    return ", ".join("[" + ", ".join(map(str, s or ())) + "]" for s in shapes)
