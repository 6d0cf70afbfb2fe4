"""A compiled model without the tools that read it: its calls, builds, kernels and trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from clew.backends.compile_options import CompileOptions
from clew.runtime.artifact import LoadedKernel
from clew.serving.model import Model
from clew.serving.model_chain import ModuleChain
from clew.serving.ready import Ready
from clew.serving.replacing import Replacing
from clew.support.budgets import Budgets, in_force
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import Lock
from clew.support.shown import counted
from clew.support.size_ranges import SizeRanges

if TYPE_CHECKING:  # the compiler's half
    from clew.backends.options import Options
    from clew.build.all_sizes import SizedBuild
    from clew.build.kernel import Kernel
    from clew.build.result import Build, BuildTemplate, RegionUse
    from clew.ir.defaults import Defaults
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module
    from clew.serving.often import SpecializedSizes
    from clew.trace.trace import Trace
    from clew.trace.verify import VerifyReport


@dataclass(frozen=True)
class About:
    """What a model says of itself without its `Options`: the names of the target and of the inputs
    that have default values, the number of threads, the options as given, and the budgets of runs.
    """

    target: str
    threads: int
    asked: CompileOptions
    defaults: tuple[str, ...] = ()
    budgets: Budgets | None = None


class BuiltModel(Model["Kernel", "Build"]):
    """A model that this process compiled, or that comes from the disk cache. What its properties
    show belongs to the latest call.
    """

    _chain: ModuleChain

    def __init__(
        self, chain: ModuleChain, about: About, defaults: Callable[[], Defaults | None]
    ) -> None:
        """`defaults` returns the inputs that are constants until a call replaces them."""
        super().__init__(chain, chain.outputs, chain.form)
        self.budgets = about.budgets
        self._shown = about
        self._replacing = Replacing[Self](about.defaults, defaults)
        self._replaceable = about.defaults
        self._lock = Lock()
        self._traces: dict[int, Trace] = {}

    def _about(self) -> str:
        latest = self._chain.latest
        build = latest.known_build if latest is not None else None
        kernels = "not built for any sizes yet"
        if build is not None:
            kernels = counted(len(build.uses), "kernel")
        elif self.from_cache:
            kernels = "from the cache"
        threads = counted(self._shown.threads, "thread")
        return f"{super()._about()}, for {self._shown.target} on {threads}, {kernels}"

    @property
    def options(self) -> Options:
        """The options that it was compiled with."""
        return self._chain.maker.options

    @property
    def module(self) -> Module:
        """The model's graph as imported. If values of inputs decide the graph, this is the graph of
        the latest call.

        Errors: I044 if values of inputs decide the graph and the model has not run yet.
        """
        model = self._chain.model
        if isinstance(model, _reading().Module):
            found: Module = model
            return found
        first: Module = self.build.stages[0].module
        return first

    @property
    def is_symbolic(self) -> bool:
        """Whether the sizes of its inputs, or values that decide sizes, are known only in a run."""
        return self._chain.is_free

    @property
    def sizes(self) -> SizeRanges:
        """The ranges of free dimensions, by name: those given, limited to those that the model
        itself has. Sizes that were fixed are not among them, because these dimensions are no longer
        free.
        """
        return self._chain.interface.ranges

    @property
    def compile_options(self) -> CompileOptions:
        """The options that the model was compiled with."""
        return self._shown.asked

    @property
    def is_built(self) -> bool:
        """Whether kernels exist at some sizes: a model with symbolic sizes has none of its own
        before its first run.
        """
        return self._chain.latest is not None

    @property
    def from_cache(self) -> bool:
        """Whether the whole program came from the disk cache. In that case the passes have not run
        yet; they run when `build`, `kernels` or `trace` is first read.
        """
        return self._chain.stored is not None

    @property
    def stored_kernels(self) -> Sequence[LoadedKernel] | None:
        """The kernels of the program from the disk cache: of the one that serves all calls. None
        if a build exists, whose `kernels` say more, if other backends run parts of the program, or
        if there is no such program.
        """
        chain = self._chain
        known = chain.latest.known_build if chain.latest is not None else None
        if chain.stored is None or chain.stored.runs_regions or known is not None:
            return None
        return chain.stored.kernels

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that the model met often, and what became of a build for them alone: it takes
        over once it is ready, if it is faster. `clew.Sizes(specialize=False)` turns this off.
        """
        return self._chain.specialized

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        return self._chain.builds_made + sum(m.builds_made for m in self._replacing.models)

    def _expect_empty(self, names: Collection[str]) -> None:
        self._chain.expect_empty(names)

    def ready_for(self, arrays: Sequence[Any]) -> Ready[Kernel]:
        build = self.served_for(arrays).build
        kernel = _reading().Kernel
        uses = [(kernel(use, build), use.segment, use.step) for use in build.uses]
        return Ready(build.program, build.segments, uses)

    def build_for(self, inputs: Mapping[str, Any] | Sequence[Any]) -> Build:
        """Returns the build for the sizes (and deciding values) of these inputs, given in order or
        by name. Makes the build if it does not exist yet.

        Errors: those of a call.
        """
        if isinstance(inputs, (list, tuple)) and len(inputs) == len(self._inputs):
            given: Sequence[Any] = inputs  # in order, states included
        else:
            given = list(self.named_inputs(inputs).values())
        return self.served_for(self.checked(given)).build

    # --- inputs with default values ---

    def _with_replaced(
        self, inputs: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Self, Mapping[str, Any]]:
        values, first, rest = self._replacing.split(inputs, named)
        if not values:
            return self, {}
        given = self._arranged(first, rest, ())
        with self._lock, in_force(self.budgets):
            model = self._replacing.model(values, self._compiled_with)
        return model, {**dict(zip(self._input_names, given, strict=True)), **values}

    def _compiled_with(self, module: Module | DeferredModule) -> Self:
        made: Self = self._chain.parts.with_module(type(self), module)
        return made

    def _refuse_replaced(self, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        values = self._replacing.split(given, named).values
        if values:
            raise self._replacing.refusal(values)

    # --- the latest build ---

    @property
    def build(self) -> Build:
        """The build: the only one, or the build of the latest call.

        Errors: I044 for a model with symbolic sizes that has not run yet.
        """
        latest = self._chain.latest
        if latest is None:
            raise _reading().never_built()
        return latest.build

    @property
    def template(self) -> BuildTemplate:
        """The build of the latest call; before the first one, the build for all sizes.

        Errors: I044 if no build serves all sizes and the model has not run yet.
        """
        found = self._chain.template
        if found is None:
            raise _reading().never_built()
        return found

    @property
    def sized(self) -> SizedBuild | None:
        """The build for all sizes, which is made if it does not exist yet; None for a model without
        free sizes.
        """
        found = self._chain.all_sizes
        return None if found is None else found.sized

    @property
    def trace(self) -> Trace:
        """The trace of every layer, from the model to instructions and back. That of a build for
        all sizes needs no run. Without a build, only its `verify` works, which makes the build for
        its inputs; its other methods raise I044 until a run has made one.

        Errors: I045 for a model compiled with `Diagnostics(trace=False)`.
        """
        if not self.options.trace:
            raise InputError(
                "I045",
                "the model was compiled without its trace",
                hint="compile without clew.Diagnostics(trace=False)",
            )
        try:
            return self._trace_of(self.template)
        except InputError as error:
            if error.code != "I044":
                raise
        reading = _reading()
        return reading.trace_of(  # type: ignore[no-any-return]
            lambda: self.template.stages,
            lambda: reading.kernel_traces(self.template),
            self._verify,
        )

    def _trace_of(self, build: BuildTemplate) -> Trace:
        # Builds that differ only in sizes share their stages and kernels, and so their trace.
        found = self._traces.get(id(build.stages))
        if found is None:
            reading = _reading()
            verifier = self._twin()._verify  # a reference cycle would keep a dropped model
            found = reading.trace_of(build.stages, lambda: reading.kernel_traces(build), verifier)
            self._traces[id(build.stages)] = found
        return found

    def _twin(self) -> Self:
        """Returns a model with the same programs and builds, but without this one's traces."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _traces={})
        return twin

    def _verify(
        self,
        trace: Trace,
        given: Sequence[Any],
        named: Mapping[str, Any],
        rtol: float,
        atol: float,
    ) -> VerifyReport:
        """Verifies the links of the build for inputs that are given as in a call."""
        reading = _reading()
        checked = self.checked(given, named, options=reading.VERIFY_OPTIONS)
        build = self.served_for(checked).build
        inputs = dict(zip(self._input_names, checked, strict=True))
        shown = trace if trace.stages[-1] is build.stages[-1] else self._trace_of(build)
        return reading.verify(  # type: ignore[no-any-return]
            shown, inputs, build.sizes, rtol, atol
        )

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels in the order they run. Those for all sizes need no run.

        Errors: I044 (see `build`).
        """
        build = self.template
        kernel = _reading().Kernel
        return [kernel(use, build) for use in build.uses]

    @property
    def regions(self) -> list[RegionUse]:
        """The regions that other backends than the CPU run, in order: name, backend, layers."""
        return list(self.build.regions)

    @property
    def placement(self) -> Any:
        """The measured placement (`clew.Placement`) that the model was compiled with by
        `place="auto"` or a result of `clew.place`: what runs where, and what it would have cost
        elsewhere. None without one.
        """
        return self.options.placement

    def recompiled(self, **changes: Any) -> Self:
        """Returns the same module compiled with other `Options`, given by field name."""
        options = replace(self.options, **changes)
        made: Self = self._chain.parts.recompiled(type(self), options, self._replacing.defaults)
        return made

    def build_with(self, module: Module, options: Options) -> Build:
        """Returns a separate build of a module of this model's latest build, at its sizes, with
        this model's cache and threads.
        """
        maker, sizes = self._chain.maker, self.build.sizes
        return _reading().build_at(  # type: ignore[no-any-return]
            module, options, maker.cache, maker.pool, sizes
        )

    def save(self, path: str | Path) -> None:
        """Writes the model and every build made so far to a file for `clew.load_compiled`.

        By convention, the file's name ends in `.clew`.

        Errors: I044 (no build yet), C050 (the file), C058, C059 and C071 (steps and regions that
        cannot be saved).
        """
        chain = self._chain
        # A variant may exist although no call has succeeded.
        if chain.latest is None and not chain.builds_made and chain.template is None:
            raise _reading().never_built()
        chain.write(path, self._shown.asked.saved())


def _reading() -> ModuleType:
    """Imports what shows a build, and with it the compiler."""
    with LOADING, held_interrupts():
        from clew.serving import reading  # noqa: PLC0415

    return reading
