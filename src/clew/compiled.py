"""A compiled model: call it, look at its kernels and its trace.

It is the whole of one public class, so it is longer than other files: each method hands its work to
a separate module, and the choice of the build for a call is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from clew.backends.options import Options
from clew.build.all_sizes import SizedBuild, build_at, build_for_all_sizes
from clew.build.build import build_module
from clew.build.inputs import declared_inputs, form_of, inputs_of, outputs_of
from clew.build.kernel_trace import kernel_traces
from clew.build.replacing import Replacing
from clew.build.result import Build, BuildTemplate, RegionUse
from clew.build.saving import SavedModel, SavedUse, save
from clew.build.specializing import Manners, SpecializedSizes, Specializer
from clew.build.stored_builds import StoredBuild
from clew.build.tracing import VERIFY_OPTIONS, trace_of, verify
from clew.build.variants import Variants
from clew.build.wishes import kept_layers, tell, unknown_layers
from clew.conversions import Conversions
from clew.graph_json import ExecutorGraph
from clew.ir.deciding import deciding_params
from clew.ir.defaults import Defaults
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.ir.size_names import SizeReader
from clew.kernel import Kernel, never_built
from clew.loading import LoadedModel
from clew.passes.name_values import named_values
from clew.passes.share_constants import ShareConstants
from clew.passes.specialize import Specialize, with_sizes_from_zero
from clew.profiled import ProfiledModel
from clew.runtime.cache import Cache
from clew.runtime.input_spec import check_sizes
from clew.runtime.model import (
    Ready,
    SizesKey,
    decides_now,
    described,
    kept_sizes,
    sizes_key,
)
from clew.runtime.ownership import Held
from clew.runtime.program import Program
from clew.runtime.segment import NativeSegment
from clew.runtime.state import growing_by_convention
from clew.runtime.threads import shared_pool
from clew.runtime.variant import Variant, is_empty
from clew.support.bounds import bounds_in_force
from clew.support.budgets import in_force
from clew.support.errors import ClewError, GraphTypeError, InputError, locate
from clew.support.lazy import cached_property
from clew.support.locks import Lock
from clew.support.rooms import room
from clew.support.shown import counted
from clew.support.size_ranges import SizeRanges
from clew.trace.trace import Trace
from clew.trace.verify import VerifyReport

Array = np.ndarray[Any, Any]
# A build that was compiled for its sizes takes about as much memory as so many programs at sizes.
_OF_OWN: Final = 16
# The most sets of sizes for which a model remembers the variant that serves them.
_SERVED: Final = 1024


class _Route(NamedTuple):
    """The program for calls at some sizes, if no variant serves them, and, for later queries about
    the last run, its build or, if the stored model has it, the key and the sizes. `specializes`
    says whether the sizes may get their own build.
    """

    program: Program
    build: Build | None
    stored_sizes: tuple[SizesKey, Mapping[str, int]] | None
    specializes: bool


class CompiledModel(ProfiledModel[Kernel]):
    """A compiled model.

    ```python
    outputs = compiled(x)  # arrays in the order of the inputs
    outputs = compiled.run({"input": x})  # by name; a dict by output name
    ```

    Calls may come from several threads at once. One build serves all sizes of a model with symbolic
    sizes, and all values of inputs that decide sizes (`inputs` marks these). For calls with sizes
    of 0 that this build does not serve, or with inputs that may have any rank, there is one such
    build for each set of empty sizes and of ranks (a variant). Sizes and values have their own
    build if that build is not valid for them (a negative value), if the values decide more than
    sizes, if some kernel cannot take its sizes from a call, or if the model uses other backends.
    `builds_made` counts builds. The programs of the last 32 sets of sizes are kept.
    """

    def __init__(
        self,
        module: Module | DeferredModule,
        options: Options,
        cache: Cache,
        *,
        is_stored: bool = True,
        defaults: Defaults | None = None,
    ) -> None:
        """With `is_stored`, the build comes from the cache, or is stored there once it is made.
        `defaults` are the inputs that are constants until a call replaces them.
        """
        inputs = declared_inputs(module) if not isinstance(module, Module) else inputs_of(module)
        super().__init__(inputs, outputs_of(module), form_of(module))
        self.budgets = options.budgets
        self._model = module
        self.options = options
        self._cache = cache
        self._replacing = Replacing[CompiledModel](defaults)
        self._replaceable = self._replacing.names
        self._pool = shared_pool(options.threads)
        self._by_value: tuple[int, ...] = ()
        # What a build for all sizes is made of: the module, with names for values that decide.
        self._free: Module | None = self._name_values(module)
        self._any_rank = any(i.takes_any_shape for i in self._inputs)
        # Whether the graph depends on which sizes are 1, or on more.
        self._by_ones = (
            not isinstance(module, Module)
            and not self._any_rank
            and any(not i.is_static for i in self._inputs)
        )
        self._symbolic = (
            not isinstance(module, Module)
            or any(not i.is_static for i in self._inputs)
            or bool(self._by_value)
        )
        # Growing states start empty, so the build for all sizes should serve a size of 0 as well.
        growing = growing_by_convention(self._inputs, self._outputs)
        if self._free is not None and self._serves_all and self._accepts_empty(growing):
            with suppress(ClewError):  # a build for size 0 alone may be possible
                self._free = with_sizes_from_zero(self._free, growing)
        self._builds: dict[SizesKey, Build] = {}
        self._sized: SizedBuild | None = None
        # The keys of builds that come from a build for all sizes, or from a variant: a file holds
        # these in another form.
        self._at_sizes: set[SizesKey] = set()
        self._traces: dict[int, Trace] = {}
        self._told: set[str] = set()
        self._lock = Lock()
        self._own_builds = 0
        self._variants = Variants[CompiledModel](module)
        # The variants that served calls, by the key of the inputs.
        self._served: dict[SizesKey, CompiledModel] = {}
        # The model of the variant that ran last, with the key of its inputs.
        self._in_variant: tuple[SizesKey, CompiledModel] | None = None
        self._often: Specializer | None = None
        self._last: Build | None = None
        self._stored: LoadedModel | None = None
        # The build's place in the cache, if it may be stored there.
        self._place: StoredBuild | None = None
        # The sizes of the last run, if the stored model ran it.
        self._last_sizes: tuple[SizesKey, Mapping[str, int]] | None = None
        self._routes: dict[SizesKey, _Route] = {}
        if isinstance(module, Module) and self._free is not None and is_stored:
            self._place = StoredBuild(module, options, cache)
            self._stored = self._place.load()
        if not self._symbolic and self._stored is None:
            with self._lock:
                self._last = self._make(((), ()), self.module, None)
        if self._serves_all and self._stored is None and self._free is not None:
            with in_force(self.budgets):
                self._for_all_sizes(self._free)
        self._expect_empty(growing)
        self._store()

    @property
    def module(self) -> Module:
        """The model's graph as imported. If values of inputs decide the graph, this is the graph of
        the last run.

        Errors: I044 if values of inputs decide the graph and the model has not run yet.
        """
        if isinstance(self._model, Module):
            return self._model
        imported: Module = self.build.stages[0].module
        return imported

    @property
    def _serves_all(self) -> bool:
        """Whether a build for all sizes may serve this model. Some values that decide sizes are
        known only in a run, and other backends take regions of known shapes.
        """
        return self._symbolic and self._free is not None and not self.options.backends

    def _name_values(self, module: Module | DeferredModule) -> Module | None:
        """Finds the inputs whose values decide sizes. Returns the module with names for these
        values; None if one build cannot serve them.
        """
        if not isinstance(module, Module):
            self._decide_by(self._deciding(module))
            return None
        deciding = deciding_params(module.main)
        named = named_values(module, deciding)
        if named is None:
            self._decide_by(deciding)
            return None if deciding else module
        self._decide_by(tuple(named.names))
        for number, names in named.names.items():
            self._inputs[number].value_names = names
        return named.module

    def _deciding(self, module: DeferredModule) -> tuple[int, ...]:
        return tuple(map(self._input_names.index, module.deciding))

    def _decide_by(self, positions: tuple[int, ...]) -> None:
        """Records which inputs' values decide sizes."""
        self._by_value = positions
        for number, given in enumerate(self._inputs):
            given.decides = number in positions

    # --- variants ---

    def _compiled_variant(self, variant: Variant, module: Module) -> CompiledModel:
        options = replace(self.options, sizes=self.options.sizes.without(variant.empty))
        if variant.ranks or variant.ones is not None:
            return CompiledModel(module, options, self._cache)
        passes = (*options.passes, ShareConstants(self._weights))
        # Builds for single sizes do not pay off (see `_run`).
        options = replace(options, passes=passes, specialize=False)
        made = CompiledModel(module, options, self._cache, is_stored=False)
        made._told.update(self._told)
        return made

    @property
    def _weights(self) -> Sequence[Array]:
        """The constants of the build for all sizes, as far as they are in memory."""
        if self._sized is not None:
            return self._sized.template.constants
        sized = self._stored.sized if self._stored is not None else None
        return sized.constants if sized is not None else ()

    def _expect_empty(self, names: Collection[str]) -> None:
        """Makes the variant in which the named sizes are 0, if the model accepts size 0 for all of
        them.
        """
        variant = Variant(empty=tuple(sorted(names)))
        if self._stored is not None and variant in self._stored.variants:
            return
        if self._sized is not None and self._sized.unsized:
            return
        if self._serves_empty(variant):
            return
        if self._serves_all and self._accepts_empty(names):
            # An error concerns only calls with these sizes, which report it.
            with suppress(ClewError), in_force(self.budgets):
                self._variants.get(variant, self._compiled_variant)

    def _accepts_empty(self, names: Collection[str]) -> bool:
        """Whether there are names, and the ranges of sizes accept 0 for all of them."""
        return bool(names) and all(0 in self.options.sizes.of(name) for name in names)

    def _serves_empty(self, variant: Variant) -> bool:
        """Whether the build for all sizes serves the sizes of a variant."""
        sized = self._sized.template if self._sized is not None else None
        if sized is None and self._stored is not None:
            sized = self._stored.sized
        return sized is not None and not variant.ranks and sized.from_zero.issuperset(variant.empty)

    def _variant_for(self, key: SizesKey, arrays: Sequence[Any]) -> CompiledModel | None:
        """Returns the model of a variant that serves checked inputs; None if this model has to.

        Errors: I317 for sizes that the model was not compiled for.
        """
        by_class = self._any_rank or self._by_ones
        if key in self._builds or not (by_class or is_empty(arrays)):
            return None
        served = self._served.get(key)
        if served is not None:
            return served
        if self._sized is None and self._stored is not None and self._stored.serves(arrays):
            return None
        check_sizes(self._inputs, arrays, self.options.sizes)
        with self._about_inputs(arrays):
            variant = Variant.of(self._inputs, arrays)
            if variant is None and self._by_ones:
                variant = Variant.by_ones(self._inputs, arrays)
            if variant is None or self._serves_empty(variant):
                return None
            found = self._variants.get(variant, self._compiled_variant)
            if found is not None and by_class:
                try:
                    found.program_for(arrays)
                except ClewError:  # an import for these sizes may succeed, or reports why not
                    return None
        if found is not None:
            if len(self._served) >= _SERVED:
                self._served.clear()
            self._served[key] = found
        return found

    def _make_for(self, key: SizesKey, arrays: Sequence[Any]) -> Build:
        """Returns a build for these inputs.

        Errors: I317 for sizes that the model was not compiled for, and those of a build.
        """
        check_sizes(self._inputs, arrays, self.options.sizes)
        variant = self._variant_for(key, arrays)
        if variant is not None:
            build = variant._build_for(arrays)
            self._keep(key, build)
            self._at_sizes.add(key)  # the variant saves it
            return build
        if isinstance(self._model, Module):
            made = self._at(key, self._names_of(arrays)) if self._serves_all else None
            return made or self._make(key, self._model, self._specialization(self._model, arrays))
        with bounds_in_force(self.options.bounds):
            module = self._model.module_for(dict(zip(self._input_names, arrays, strict=True)))
        found = {*self._by_value, *self._deciding(self._model), *deciding_params(module.main)}
        positions = tuple(sorted(found))
        if positions != self._by_value:  # keys of earlier builds lack the new positions
            self._builds.clear()
            self._routes.clear()
            self._decide_by(positions)
        return self._make(
            sizes_key(arrays, positions), module, self._specialization(module, arrays)
        )

    def _at(self, key: SizesKey, sizes: Mapping[str, int]) -> Build | None:
        """Returns the build for all sizes, at given sizes; None if it does not serve them."""
        assert self._free is not None
        with in_force(self.budgets):
            build = self._for_all_sizes(self._free).at(sizes)
        if build is not None:
            self._keep(key, build)
            self._at_sizes.add(key)
        return build

    def _for_all_sizes(self, module: Module) -> SizedBuild:
        """Returns the build for all sizes, made on first use."""
        if self._sized is None:
            values = [name for i in self._inputs for name in i.value_names]
            self._sized = build_for_all_sizes(module, self.options, self._cache, self._pool, values)
            self._routes.clear()  # from now on, the stored model serves no more
            if not self._sized.unsized:
                self._own_builds += 1
                self._tell(module, self._sized.build)
        return self._sized

    def _store(self) -> None:
        """Stores the build for all sizes in the cache, unless it came from there."""
        if self._place is None or self._stored is not None:
            return
        made: BuildTemplate | None = self._last
        if self._sized is not None:
            made = None if self._sized.unsized else self._sized.build
        if made is not None:
            self._place.keep(self._write, made.constant_bytes)

    def _keep(self, key: SizesKey, build: Build, *, is_own: bool = False) -> None:
        """Keeps a build for the next call at its sizes. `is_own` says whether it was compiled for
        them, which takes longer, and more memory.
        """
        kernels = len(build.uses)
        while len(self._builds) >= kept_sizes(_OF_OWN * (1 + kernels) if is_own else kernels):
            oldest = next(iter(self._builds))
            self._builds.pop(oldest)
            self._at_sizes.discard(oldest)
            self._routes.pop(oldest, None)
        self._builds[key] = build
        self._routes.pop(key, None)

    def _make(self, key: SizesKey, module: Module, specialize: Specialize | None) -> Build:
        with in_force(self.budgets):
            build = build_module(module, self.options, self._cache, self._pool, specialize)
        self._tell(module, build)
        self._keep(key, build, is_own=True)
        self._own_builds += 1
        return build

    def _tell(self, module: Module, build: BuildTemplate) -> None:
        """Raises an error, or issues a warning once, for each request of the user that had no
        effect.
        """
        unmet = list(build.unmet)
        if not isinstance(self._model, Module):
            names = kept_layers(self.options.passes)
            unmet += unknown_layers(names, module, "keep_f32", certain=False)
        tell(unmet, self._told)

    # --- inputs with default values ---

    def _with_replaced(
        self, inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[CompiledModel, Mapping[str, Any]]:
        values, first, rest = self._replacing.split(inputs, named)
        if not values:
            return self, {}
        given = self._arranged(first, rest, ())
        with self._lock, in_force(self.budgets):
            model = self._replacing.model(values, self._compiled_with)
        return model, {**dict(zip(self._input_names, given, strict=True)), **values}

    def _compiled_with(self, module: Module | DeferredModule) -> CompiledModel:
        return CompiledModel(module, self.options, self._cache)

    def _refuse_replaced(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        values = self._replacing.split(given, named).values
        if values:
            raise self._replacing.refusal(values)

    # --- running ---

    @property
    def segment(self) -> NativeSegment | None:
        """The native segment that does all the work of a call. None if a call runs more than that,
        if calls differ in sizes, or if the model has its own budgets.
        """
        if self._symbolic or self._any_rank or self.budgets is not None:
            return None
        if any(0 in spec.shape for spec in self._inputs):
            return None
        whole = self.program_for(()).whole
        return whole if isinstance(whole, NativeSegment) else None

    def program_for(self, arrays: Sequence[Any]) -> Program:
        if self._symbolic:
            key = sizes_key(arrays, self._by_value)
            variant = self._variant_for(key, arrays)
            if variant is not None:
                self._in_variant, self._last = (key, variant), None
                return variant.program_for(arrays)
            return self._program_at(key, arrays)
        if self._stored is not None:
            return self._stored.program
        assert self._last is not None
        return self._last.program

    def _run(self, checked: Sequence[Any], held: Held) -> list[Any]:
        if not self._symbolic:
            return super()._run(checked, held)
        key = sizes_key(checked, self._by_value)
        route = self._routes.get(key)
        if route is None:
            variant = self._variant_for(key, checked)
            if variant is not None:
                self._in_variant, self._last = (key, variant), None
                return variant._run(checked, held)
            route = self._route(key, checked)
        program, self._last, self._last_sizes, specializes = route
        self._in_variant = None
        if not specializes:
            return self.outside(program, program(checked, held))
        if self._often is None:
            self._often = Specializer(self._program_alone, self._compile_seconds)
        results = self._often.run(key, self._names_of, program, checked, held)
        return self.outside(program, results)

    def _route(self, key: SizesKey, arrays: Sequence[Any]) -> _Route:
        """Returns the route of calls that no variant serves, given a call's key and inputs. It is
        kept as long as the program.
        """
        program = self._program_at(key, arrays)
        build, stored = self._last, self._stored
        # Calls with empty inputs are short and rare, so builds for single sizes do not pay off.
        specializes = self.options.specialize and self._serves_all and not is_empty(arrays)
        # Other builds are for these sizes alone.
        is_common = key in self._at_sizes or (stored is not None and key not in self._builds)
        route = _Route(
            program, build, None if build else self._last_sizes, specializes and is_common
        )
        if build is None:
            assert stored is not None, "a program without a build"
            most = kept_sizes(len(stored.kernels))
            while len(self._routes) >= most:
                self._routes.pop(next(iter(self._routes)), None)
        if build is None or self._builds.get(key) is build:
            self._routes[key] = route
        return route

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that the model met often, and what became of a build for them alone: it takes
        over once it is ready, if it is faster. `specialize=False` turns this off.
        """
        own = self._often.told() if self._often is not None else ()
        return (*own, *(s for model in self._variants.models.values() for s in model.specialized))

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        others = [*self._variants.models.values(), *self._replacing.models]
        return self._own_builds + sum(m.builds_made for m in others)

    @property
    def _compile_seconds(self) -> float:
        """The time that the build for all sizes took, as far as it is known."""
        return sum(self._sized.build.seconds.values()) if self._sized is not None else 0.0

    def _program_alone(self, sizes: Mapping[str, int], manners: Manners) -> Program:
        """Returns the program of a build for given sizes alone; it may run in another thread."""
        assert self._free is not None
        quiet = replace(
            self.options,
            passes=(*self.options.passes, ShareConstants(self._weights)),
            trace=False,
            instruments=(manners,),
            on_progress=manners.on_progress,
        )
        alone = Specialize(tuple(sizes.items()))
        with in_force(self.budgets):
            return build_module(self._free, quiet, self._cache, self._pool, alone).program

    @cached_property
    def _size_reader(self) -> SizeReader:
        """Reads the sizes of the build for all sizes from inputs."""
        assert self._free is not None
        return SizeReader(self._free.main.params)

    def _about_inputs(self, arrays: Sequence[Any]) -> AbstractContextManager[None]:
        """Returns a context that adds the shapes of inputs to errors."""
        return locate(inputs=lambda: described(self._inputs, arrays))

    def _names_of(self, arrays: Sequence[Any]) -> dict[str, int]:
        """Returns the values of all names, of sizes and of values.

        Errors: I042 if sizes contradict each other.
        """
        sizes = _sizes_from(self._size_reader, arrays)
        for number in self._by_value:
            sizes.update(self._inputs[number].named_values(arrays[number]))
        return sizes

    def _program_at(self, key: SizesKey, arrays: Sequence[Any]) -> Program:
        """Returns the program for checked inputs that no variant serves, given their key."""
        stored = self._stored
        if stored is None or self._sized is not None or key in self._builds:
            return self._build_of(key, arrays).program
        if self._last_sizes is None or self._last_sizes[0] != key:
            with self._about_inputs(arrays):
                check_sizes(self._inputs, arrays, self.options.sizes)
                sizes = self._names_of(arrays)
            if not stored.serves(arrays):
                return self._build_of(key, arrays).program
            self._last_sizes = key, sizes
        self._last, self._in_variant = None, None
        return stored.program_at(key, arrays)

    @property
    def is_symbolic(self) -> bool:
        """Whether the sizes of its inputs, or values that decide sizes, are known only in a run."""
        return self._symbolic

    @property
    def sizes(self) -> SizeRanges:
        """The ranges of free dimensions, by name: those given, limited to those that the model
        itself has. Sizes that were fixed are not among them, because these dimensions are no longer
        free.
        """
        return self.options.sizes

    @property
    def is_built(self) -> bool:
        """Whether kernels exist at some sizes: a model with symbolic sizes has none before its
        first run.
        """
        ran = (self._last, self._last_sizes, self._in_variant)
        return not self._symbolic or any(found is not None for found in ran)

    @property
    def from_cache(self) -> bool:
        """Whether the whole program came from the disk cache. In that case the passes have not run
        yet; they run when `build`, `kernels` or `trace` is first read.
        """
        return self._stored is not None

    def ready_for(self, arrays: Sequence[Any]) -> Ready[Kernel]:
        build = self._build_for(arrays)
        uses = [(Kernel(use, build), use.segment, use.step) for use in build.uses]
        return Ready(build.program, build.segments, uses)

    def _last_key(self) -> SizesKey | None:
        if not self._symbolic:
            return None
        if self._last is None and self._in_variant is not None:
            return self._in_variant[0]
        if self._last is None and self._last_sizes is not None:
            return self._last_sizes[0]
        return next((key for key, build in self._builds.items() if build is self._last), None)

    def build_for(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Build:
        """Returns the build for the sizes (and deciding values) of these inputs, given in order or
        by name. Makes the build if it does not exist yet.

        Errors: those of a call.
        """
        return self._build_for(self.checked(list(self.named_inputs(inputs).values())))

    def _build_for(self, arrays: Sequence[Array]) -> Build:
        """Returns the build for checked inputs.

        Errors: I042 if sizes contradict each other, I317 for sizes out of range.
        """
        if not self._symbolic:
            return self.build
        return self._build_of(sizes_key(arrays, self._by_value), arrays)

    def _build_of(self, key: SizesKey, arrays: Sequence[Array]) -> Build:
        """Returns the build for checked inputs, given their key. Errors: as `_build_for`."""
        found = self._builds.get(key)
        if found is None:
            with self._lock, self._about_inputs(arrays):
                found = self._builds.get(key) or self._make_for(key, arrays)
        self._last = found
        return found

    def _specialization(self, module: Module, arrays: Sequence[Array]) -> Specialize:
        """Errors: I042 if sizes contradict each other."""
        sizes = _sizes_from(SizeReader(module.main.params), arrays)
        deciding = (n for n in self._by_value if decides_now(arrays[n]))
        values = tuple((self.input_names[n], arrays[n].copy()) for n in deciding)
        return Specialize(tuple(sizes.items()), values)

    def _about(self) -> str:
        options = self.options
        kernels = "not built for any sizes yet"
        if self._last is not None:
            kernels = counted(len(self._last.uses), "kernel")
        elif self._stored is not None:
            kernels = "from the cache"
        threads = counted(options.threads, "thread")
        return f"{super()._about()}, for {options.target.name} on {threads}, {kernels}"

    def _repr_html_(self) -> str:
        shown: str = room("model_html")(self)
        return shown

    def recompiled(self, **changes: Any) -> CompiledModel:
        """Returns the same module compiled with other `Options`, given by field name."""
        made = CompiledModel(
            self._model,
            replace(self.options, **changes),
            self._cache,
            defaults=self._replacing.defaults,
        )
        made._told.update(self._told)
        return made

    # --- looking inside ---

    @property
    def build(self) -> Build:
        """The build: the only one, or the build of the last run.

        Errors: I044 for a model with symbolic sizes that has not run yet.
        """
        if self._last is None:
            if self._in_variant is not None:
                return self._in_variant[1].build
            if self._symbolic:
                if self._last_sizes is None:
                    raise never_built()
                return self._build_at(*self._last_sizes)
            with self._lock:
                self._last = self._last or self._make(((), ()), self.module, None)
        return self._last

    def _build_at(self, key: SizesKey, sizes: Mapping[str, int]) -> Build:
        """Returns the build at the sizes of a run of the stored model."""
        with self._lock:
            found = self._builds.get(key) or self._at_stored(key, sizes)
        assert found is not None, "the stored build serves these sizes"
        self._last = found
        return found

    def _at_stored(self, key: SizesKey, sizes: Mapping[str, int]) -> Build | None:
        """Returns the build at sizes that the stored model has served, built by a variant if some
        are 0.
        """
        variant = Variant(empty=tuple(sorted(name for name, size in sizes.items() if size == 0)))
        if not variant.empty or self._serves_empty(variant):
            return self._at(key, sizes)
        model = self._variants.get(variant, self._compiled_variant)
        assert model is not None, "the stored build serves these sizes"
        if not model.is_symbolic:
            return model.build
        left = {name: size for name, size in sizes.items() if name not in variant.empty}
        return model._at(key, left)

    @property
    def template(self) -> BuildTemplate:
        """The build of the last run; before the first one, the build for all sizes.

        Errors: I044 if no build serves all sizes and the model has not run yet.
        """
        if self._last is None and self._in_variant is not None:
            return self._in_variant[1].template
        if self._last is None and self._last_sizes is None and self._serves_all:
            assert self._free is not None
            with self._lock, in_force(self.budgets):
                made = self._for_all_sizes(self._free)
            if not made.unsized:
                return made.build
        return self.build

    @property
    def trace(self) -> Trace:
        """The trace of every layer, from the model to instructions and back. That of a build for
        all sizes needs no run. Without a build, only its `verify` works, which makes the build for
        its inputs; its other methods raise I044 until a run has made one.

        Errors: I045 for a model compiled with `trace=False`.
        """
        if not self.options.trace:
            raise InputError(
                "I045", "the model was compiled without its trace", hint="compile with trace=True"
            )
        try:
            return self._trace_of(self.template)
        except InputError as error:
            if error.code != "I044":
                raise
        return trace_of(
            lambda: self.template.stages, lambda: kernel_traces(self.template), self._verify
        )

    def _trace_of(self, build: BuildTemplate) -> Trace:
        # Builds that differ only in sizes share their stages and kernels, and so their trace.
        found = self._traces.get(id(build.stages))
        if found is None:
            found = trace_of(build.stages, lambda: kernel_traces(build), self._verify)
            self._traces[id(build.stages)] = found
        return found

    def _verify(
        self,
        trace: Trace,
        given: Sequence[Any],
        named: Mapping[str, Any],
        rtol: float,
        atol: float,
    ) -> VerifyReport:
        """Verifies the links of the build for inputs that are given as in a call."""
        checked = self.checked(given, named, options=VERIFY_OPTIONS)
        build = self._build_for(checked)
        inputs = dict(zip(self._input_names, checked, strict=True))
        return verify(self._trace_of(build), inputs, build.sizes, rtol, atol)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels in the order they run. Those for all sizes need no run.

        Errors: I044 (see `build`).
        """
        build = self.template
        return [Kernel(use, build) for use in build.uses]

    @property
    def regions(self) -> list[RegionUse]:
        """The regions that other backends than the CPU run, in order: name, backend, layers."""
        return list(self.build.regions)

    @property
    def placement(self) -> Any:
        """The measured placement (`clew.Placement`) that the model was compiled with by
        `place="auto"` or a result of `clew.place`: where each part runs, and its cost elsewhere.
        None without one.
        """
        return self.options.placement

    def graph(self) -> ExecutorGraph:
        """Returns the executor as data (`clew.ExecutorGraph`): nodes, kernels, operators at each
        stage, layers. For a model with symbolic sizes, it describes the last build.

        Errors: I044 (see `build`).
        """
        found: ExecutorGraph = room("executor_graph")(self)
        return found

    def conversions(self) -> Conversions:
        """Returns the steps that only change how values are stored, as integers, floats or in
        another layout: those in the model and those that passes inserted, why, and what became of
        each, such as the kernel that it was fused into. For a model with symbolic sizes, it
        describes the last build.

        Errors: I044 (see `build`), I045 (compiled without its trace).
        """
        found: Conversions = room("conversions")(self)
        return found

    def tap(
        self,
        layers: str | Sequence[str],
        /,
        *inputs: Any,
        output: int | None = None,
        force: bool = False,
        iterations: bool = False,
        **named: Any,
    ) -> Any:
        """Returns values of layers in a run: `compiled.tap("conv1", x)`.

        Inputs are given as in a call. One name returns its value (`output` selects one of several
        results); a list of names, or a pattern (`block1/*`), returns `clew.Taps`, a mapping. The
        program is not changed: `tap` reads values that kernels write to memory, and converts them
        to the layer's own layout and dtype. For a value inside a kernel it raises an error with the
        reason and the nearest values in memory, unless `force` is set; then that kernel is cut
        there, for this call only. For layers in branches and loops it returns the last value; with
        `iterations`, values in loops get a leading axis, the iterations in order (a list if their
        shapes differ).

        Errors: I070 (no such layer), I150 (inside a kernel), I151 (no longer computed), I152 (a
        pattern that matches no layer), I153 (`output`), I154 (`force` cannot cut there), I155 (the
        layer did not run), I045 (`trace=False`), and those of a run.
        """
        checked = self.checked(inputs, named, options=("output", "force", "iterations"))
        if self._symbolic:
            self._build_for(checked)
        return room("tap")(self, layers, checked, output=output, force=force, iterations=iterations)

    def report(
        self,
        path: str | Path,
        *,
        profile: bool = True,
        inputs: Any = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Writes the explorer's page, with everything it shows about this model, as one HTML file
        that opens without clew or a network. With `profile`, the report includes measured runs.

        `inputs` are the inputs of these runs, by name or in order. Inputs missing from a mapping
        are random, at the sizes in `shapes` (by input), else at those of the last run. For a model
        with symbolic sizes, the page shows the build for these inputs.

        Errors: I045 (see `trace`), I040 to I043 (`inputs`), I303 (`shapes`), I061 (inputs that
        cannot be random), I250 (the page was not built), I251 (the file).
        """
        room("report")(self, path, profile=profile, inputs=inputs, shapes=shapes)

    def explore(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        browser: bool = False,
        block: bool = False,
    ) -> Any:
        """Serves the explorer's page for this model from this process. Returns an object with `url`
        and `stop()` (`clew.explorer.serving.Explored`), which is also a context manager.

        The page is that of `clew explore`: only this machine reaches it (`host`), and only with the
        secret in its URL. Port 0 selects a free port. `browser` opens the page. `block` prints the
        URL and returns when the server is stopped or interrupted. Builds made from the page run in
        their own processes, without the passes, fusions and schedules given here.

        Errors: I044 and I045 (see `trace`), I225 (host or port), I343 (port).
        """
        return room("explore")(self, port=port, host=host, browser=browser, block=block)

    def build_with(self, module: Module, options: Options) -> Build:
        """Returns a separate build of a module of this model's last build, at its sizes, with this
        model's cache and threads.
        """
        return build_at(module, options, self._cache, self._pool, self.build.sizes)

    # --- keeping ---

    def save(self, path: str | Path) -> None:
        """Writes the model and every build made so far to a file for `clew.load_compiled`.

        By convention, the file's name ends in `.clew`.

        Errors: I044 (no build yet), C050 (the file), C058, C059 and C071 (steps and regions that
        cannot be saved).
        """
        self._write(path)

    def _write(self, path: str | Path, *, mode: int = 0o666) -> None:
        save(self._saved(), path, mode=mode)

    def _saved(self) -> SavedModel:
        """Returns the parts of the model that a file holds."""
        sized = None
        if self._serves_all and self._free is not None:
            made = self._for_all_sizes(self._free)
            if not made.unsized:
                sized = made, _saved_uses(made.build)
        for variant in self._stored.variants if self._stored is not None else ():
            self._variants.get(variant, self._compiled_variant)
        variants = {variant: m._saved() for variant, m in self._variants.models.items()}
        if not self._builds and sized is None and not variants:
            self._builds[((), ())] = self.build
        builds = {
            key: (build, _saved_uses(build))
            for key, build in dict(self._builds).items()
            if key not in self._at_sizes
        }
        return SavedModel(
            self.options.target,
            self._inputs,
            self._outputs,
            self._by_value,
            builds,
            self.options.backends,
            self.options.sizes,
            sized,
            variants,
            self._form,
        )


def _saved_uses(build: BuildTemplate) -> list[SavedUse]:
    """Returns the part of a build's kernels that a saved model keeps."""
    return [
        SavedUse(
            use.name,
            build.kernel_layers(use),
            tuple(use.ops),
            use.source.key,
            use.segment,
            use.step,
        )
        for use in build.uses
    ]


def _sizes_from(reader: SizeReader, arrays: Sequence[Any]) -> dict[str, int]:
    """Returns the sizes of checked inputs. Errors: I042 if they contradict each other."""
    try:
        return reader.read(arrays)
    except GraphTypeError as error:
        raise InputError("I042", error.message) from error
