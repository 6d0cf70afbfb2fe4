"""The chain of a compiled model, which answers from the disk cache without the compiler.

What needs the compiler (the module, its passes, builds, variants) is in `Parts`, which are made
when a call or a reader first needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from clew.runtime.artifact import Json
from clew.runtime.output_spec import OutputSpec
from clew.runtime.program import Program
from clew.runtime.variant import Variant
from clew.serving.chain import Chain
from clew.serving.from_file import LoadedChain
from clew.serving.interface import Interface
from clew.serving.served import Declined, Provider, Request, Served
from clew.serving.stored import Stored
from clew.serving.variants import Whole
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import Once
from clew.support.size_ranges import SizeRanges

if TYPE_CHECKING:  # the compiler's half
    from clew.backends.options import Options
    from clew.build.result import Build, BuildTemplate
    from clew.ir.defaults import Defaults
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module
    from clew.serving.all_sizes import AllSizes
    from clew.serving.made_variants import MadeVariants
    from clew.serving.making import Maker

if TYPE_CHECKING:  # imported with models of free sizes, and of nested values
    from clew.serving.often import Manners, SpecializedSizes, Specializing
    from clew.support.call_form import CallForm


Pairs: TypeAlias = "tuple[tuple[str, str], ...]"
"""The names of state inputs and of the outputs that feed them."""


class Parts(Protocol):
    """What the compiler made of a model."""

    @property
    def maker(self) -> Maker:
        """What makes builds of its module."""
        ...

    @property
    def all_sizes(self) -> AllSizes | None:
        """The build for all sizes."""
        ...

    @property
    def variants(self) -> MadeVariants[ModuleChain]:
        """The variants made so far."""
        ...

    @property
    def providers(self) -> Sequence[Provider[Build]]:
        """What answers calls that the stored build does not serve, in order."""
        ...

    @property
    def common(self) -> BuildTemplate | None:
        """The build for all sizes, if the model has one. Errors: those of a build."""
        ...

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that variants met often."""
        ...

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        ...

    def expect_empty(self, variant: Variant) -> None:
        """Makes the variant in which some sizes are 0 if no build serves it."""

    def held(self, variant: Variant) -> ModuleChain | None:
        """Returns the chain of a variant with growing states in buffers; see `Chain.held`."""
        ...

    def build(self) -> Build:
        """Returns the build of a model without free sizes. Errors: those of a build."""
        ...

    def rebuilt(self, sizes: Mapping[str, int]) -> Build:
        """Returns the build at sizes that the stored build has served. Errors: those of a build."""
        ...

    def with_module(self, kind: Any, module: Module | DeferredModule) -> Any:
        """Returns a model of another module with the same options. Errors: those of a build."""
        ...

    def recompiled(self, kind: Any, options: Options, defaults: Defaults | None) -> Any:
        """Returns the model compiled with other options. Errors: those of a build."""
        ...

    def write(self, chain: ModuleChain, path: str | Path) -> None:
        """Writes all builds to a file. Errors: as `saving.save`."""


class ModuleChain(Chain["Build"]):
    """The chain of a compiled model, with its variants and its build for all sizes (None for models
    that have no such build).

    Providers, in order: the stored build, variants, the build for all sizes, and a build for the
    sizes of the call, or an import for graphs that a call decides.
    """

    def __init__(
        self,
        interface: Interface,
        outputs: Sequence[OutputSpec],
        form: CallForm | None,
        stored: LoadedChain | None,
        parts: Once[Parts],
        whole: Served[Build] | None = None,
        *,
        is_free: bool,
        specialize: bool,
    ) -> None:
        """`stored` is the build from the disk cache, and `whole` the program of a model without
        free sizes. With `specialize`, sizes that calls have often may get builds of their own.
        """
        self.outputs = tuple(outputs)
        self.form = form
        self.is_free = is_free
        self.stored = stored
        self.stored_key: str | None = None
        """The key of the build in the disk cache, if it is stored there."""
        self._parts = parts
        self._held: dict[Variant, Chain[Build]] = {}
        if whole is None and not is_free and stored is not None and stored.whole is not None:
            whole = _stored_alone(stored.whole.program, lambda: parts.get().build())
        self.specializing: Specializing | None = None
        if is_free and specialize:
            with LOADING, held_interrupts():
                from clew.serving.often import Specializing  # noqa: PLC0415

            self.specializing = Specializing(self._program_alone)
        providers: Iterable[Provider[Build]] = ()
        if whole is None or interface.takes_any_rank:
            providers = _Providers(stored, parts, self.specializing, whole)
        super().__init__(interface, providers, whole)

    @property
    def parts(self) -> Parts:
        """What the compiler made of the model. Errors: those of an import and a build, if it is
        read for the first time.
        """
        return self._parts.get()

    @property
    def model(self) -> Module | DeferredModule:
        """The model as imported."""
        return self.parts.maker.model

    @property
    def maker(self) -> Maker:
        """What makes builds."""
        return self.parts.maker

    @property
    def all_sizes(self) -> AllSizes | None:
        """The build for all sizes."""
        return self.parts.all_sizes

    @property
    def variants(self) -> MadeVariants[ModuleChain]:
        """The variants made so far."""
        return self.parts.variants

    def expect_empty(self, names: Collection[str]) -> None:
        """Makes the variant in which the named sizes are 0, if the model accepts size 0 for all of
        them and has no build that serves it.
        """
        variant = Variant(empty=tuple(sorted(names)))
        ranges = self.interface.ranges
        if not self.is_free or not accepts_empty(ranges, names):
            return
        if self.stored is not None and variant in self.stored.variants:
            return
        self.parts.expect_empty(variant)

    def held(self, variant: Variant) -> Chain[Any] | None:
        stored = self.stored.held(variant) if self.stored is not None else None
        if stored is None and self.stored is not None:
            with LOADING, held_interrupts():
                from clew.runtime.state import pair_names, pairs_of  # noqa: PLC0415

            if variant.held == pair_names(pairs_of(self.interface.inputs, self.outputs)):
                return None  # the form for these pairs would have been stored, if there were one
        if stored is None:
            return self.parts.held(variant)
        providers = _HeldProviders(stored, self._parts, variant)
        only = None
        if stored.only is not None:
            only = _stored_alone(stored.only.program, lambda: providers.made().parts.build())
        made = Chain(stored.interface, providers if only is None else (), only)
        return self._held.setdefault(variant, made)

    @property
    def common(self) -> BuildTemplate | None:
        """The build for all sizes, if the model has one, or that of a model without free sizes."""
        return self.whole.build if self.whole is not None else self.parts.common

    @property
    def template(self) -> BuildTemplate | None:
        """The build of the latest call; before the first one, the build for all sizes, if there is
        one.

        Errors: those of a build.
        """
        latest = self.latest
        return self.common if latest is None else latest.build

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that the model met often, and what became of their builds."""
        own = () if self.specializing is None else self.specializing.told()
        parts = self._parts.known
        return (*own, *(() if parts is None else parts.specialized))

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        parts = self._parts.known
        return 0 if parts is None else parts.builds_made

    def write(self, path: str | Path, options: Json) -> None:
        """Writes all builds to a file, with the record of the options. Errors: as `saving.save`."""
        stored = self.stored if self.builds_made == 0 else None  # else there is more
        if stored is None or not stored.copied(Path(path), options):
            self.parts.write(self, path)

    def _program_alone(self, sizes: Mapping[str, int], manners: Manners) -> Program:
        all_sizes = self.parts.all_sizes
        assert all_sizes is not None
        return all_sizes.program_alone(sizes, manners)


def _stored_alone(program: Program, build: Callable[[], Build]) -> Served[Build]:
    """Returns what serves all calls of a stored model without free sizes."""
    return Served(Stored.name, ((), ()), {}, program, rebuild=Once(build).get)


class _Providers:
    """The providers in order. Those that need the compiler are made when one before them has
    declined.
    """

    def __init__(
        self,
        stored: LoadedChain | None,
        parts: Once[Parts],
        specializing: Specializing | None,
        whole: Served[Build] | None,
    ) -> None:
        self._stored = stored
        self._parts = parts
        self._specializing = specializing
        self._whole = whole

    def __iter__(self) -> Iterator[Provider[Build]]:
        if self._stored is not None and self._whole is None:
            rebuild = lambda sizes: self._parts.get().rebuilt(sizes)  # noqa: E731
            yield Stored(self._stored, rebuild, self._specializing)
        yield from self._parts.get().providers
        if self._whole is not None:
            yield Whole(self._whole)


class _HeldProviders:
    """The providers of a model with growing states in buffers: its stored build, then the compiler,
    whose builds are kept for `write`.
    """

    def __init__(self, stored: LoadedChain, parts: Once[Parts], variant: Variant) -> None:
        self._stored = stored
        self._parts = parts
        self._variant = variant

    def __iter__(self) -> Iterator[Provider[Build]]:
        yield Stored(self._stored, lambda sizes: self.made().parts.rebuilt(sizes), None)
        yield _Compiled(self.made())

    def made(self) -> ModuleChain:
        """Returns the chain that the compiler makes. Errors: those of a build."""
        made = self._parts.get().held(self._variant)
        assert made is not None, "its build was stored"
        return made


class _Compiled:
    """Serves what the chain of a compiled model serves."""

    name: Final = "the compiler"

    def __init__(self, chain: ModuleChain) -> None:
        self._chain = chain

    def serve(self, request: Request) -> Served[Build] | Declined:
        """Errors: those of a build."""
        return replace(self._chain.serve(request.arrays), key=request.key, is_own=False)


def accepts_empty(ranges: SizeRanges, names: Collection[str]) -> bool:
    """Whether there are names, and the ranges of sizes accept 0 for all of them."""
    return bool(names) and all(0 in ranges.of(name) for name in names)
