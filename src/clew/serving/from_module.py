"""The chain of a model that this process compiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from clew.backends.options import Options
from clew.build.inputs import declared_inputs, form_of, inputs_of, outputs_of
from clew.build.result import Build, BuildTemplate
from clew.build.saving import SavedModel, save, saved_uses
from clew.ir.deciding import deciding_params
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.passes.name_values import named_values
from clew.passes.share_constants import ShareConstants
from clew.passes.specialize import with_sizes_from_zero
from clew.runtime.cache import Cache
from clew.runtime.state import growing_by_convention
from clew.runtime.variant import Variant
from clew.serving.all_sizes import AllSizes
from clew.serving.chain import Chain
from clew.serving.from_file import LoadedChain
from clew.serving.imported import Imported
from clew.serving.interface import Interface
from clew.serving.made_variants import MadeVariants
from clew.serving.making import Maker
from clew.serving.often import SpecializedSizes
from clew.serving.own_build import OwnBuild, own
from clew.serving.served import Declined, Provider, Served
from clew.serving.stored import Stored, StoredBuild
from clew.serving.variants import Variants
from clew.support.budgets import in_force
from clew.support.errors import ClewError
from clew.support.locks import Once


class ModuleChain(Chain[Build]):
    """The chain of a model that this process compiles, with its variants and its build for all
    sizes (None for models that have no such build).

    Providers, in order: the stored build, variants, the build for all sizes, and a build for the
    sizes of the call, or an import for graphs that a call decides.
    """

    def __init__(
        self,
        model: Module | DeferredModule,
        options: Options,
        cache: Cache,
        *,
        is_stored: bool = True,
        told: set[str] | None = None,
    ) -> None:
        """With `is_stored`, the build comes from the cache, or is stored there once it is made.

        Errors: those of a build.
        """
        found = inputs_of(model) if isinstance(model, Module) else declared_inputs(model)
        interface = Interface(found, options.sizes)
        self.outputs = tuple(outputs_of(model))
        self.model = model
        self.maker = Maker(model, options, cache, told)
        free = _with_value_names(interface, model)
        self.is_free = interface.is_free or not isinstance(model, Module)
        place = None
        if isinstance(model, Module) and free is not None and is_stored:
            place = StoredBuild(model, options, cache)
        self.stored = place.load() if place is not None else None
        # Growing states start empty, so the build for all sizes should serve a size of 0 as well.
        growing: Collection[str] = ()
        self.all_sizes: AllSizes | None = None
        # Other backends take regions of known shapes.
        if self.is_free and free is not None and not options.backends:
            growing = growing_by_convention(interface.inputs, self.outputs)
            if accepts_empty(options, growing):
                with suppress(ClewError):  # a build for size 0 alone may be possible
                    free = with_sizes_from_zero(free, growing)
            values = [name for spec in interface.inputs for name in spec.value_names]
            sized = self.stored.sized if self.stored is not None else None
            self.all_sizes = AllSizes(self.maker, free, values, sized)
        self.variants = MadeVariants(model, partial(_variant, self.maker, self.all_sizes))
        only = None if self.is_free else _only(self.maker, self.stored)
        providers = () if only is not None else self._providers(interface)
        super().__init__(interface, providers, only)
        if self.all_sizes is not None and self.stored is None:
            self.all_sizes.sized  # noqa: B018
        self.expect_empty(growing)
        if place is not None and self.stored is None:
            made = self._common
            if made is not None:
                place.keep(self.write, made.constant_bytes)

    def _providers(self, interface: Interface) -> list[Provider[Build]]:
        found: list[Provider[Build]] = []
        own_build = OwnBuild(self.maker, interface, self.model)
        sizes, model = self.all_sizes, self.model
        if self.stored is not None and sizes is not None:
            rebuild = partial(_rebuilt, sizes, self.variants)
            found.append(Stored(self.stored, rebuild, sizes.often))
        # Whether the graph depends on which sizes are 1, or on more.
        by_ones = not isinstance(model, Module) and not interface.takes_any_rank
        by_ones = by_ones and any(not spec.is_static for spec in interface.inputs)
        find = partial(_chain_of, sizes, self.variants)
        found.append(Variants(interface, find, by_ones=by_ones))
        found += [sizes] if sizes is not None else []
        if isinstance(model, Module):
            return [*found, own_build]
        return [*found, Imported(own_build, model, self.maker.options.bounds)]

    def expect_empty(self, names: Collection[str]) -> None:
        """Makes the variant in which the named sizes are 0, if the model accepts size 0 for all of
        them and has no build that serves it.
        """
        variant = Variant(empty=tuple(sorted(names)))
        sizes = self.all_sizes
        if sizes is None or not accepts_empty(self.maker.options, names):
            return
        if self.stored is not None and variant in self.stored.variants:
            return
        if sizes.serves_empty(variant) or (sizes.known is not None and sizes.known.unsized):
            return
        # An error concerns only calls with these sizes, which report it.
        with suppress(ClewError), in_force(self.maker.options.budgets):
            self.variants.get(variant)

    @property
    def _common(self) -> BuildTemplate | None:
        """The build that serves all calls, if one does."""
        if self.only is not None:
            return self.only.build
        if self.all_sizes is None or self.all_sizes.sized.unsized:
            return None
        return self.all_sizes.sized.build

    @property
    def template(self) -> BuildTemplate | None:
        """The build of the latest call; before the first one, the build for all sizes, if there is
        one.

        Errors: those of a build.
        """
        latest = self.latest
        return self._common if latest is None else latest.build

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that the model met often, and what became of their builds."""
        own_sizes = () if self.all_sizes is None else self.all_sizes.told
        chains = self.variants.chains.values()
        return (*own_sizes, *(sizes for chain in chains for sizes in chain.specialized))

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        return self.maker.made + sum(c.builds_made for c in self.variants.chains.values())

    def write(self, path: str | Path, *, mode: int = 0o666) -> None:
        """Writes all builds to a file. Errors: as `saving.save`."""
        save(self.saved(), path, mode=mode)

    def saved(self) -> SavedModel:
        """Returns what a file holds of the model. Errors: those of a build."""
        sizes, sized = self.all_sizes, None
        if sizes is not None and not sizes.sized.unsized:
            sized = sizes.sized, saved_uses(sizes.sized.build)
        for variant in self.stored.variants if self.stored is not None else ():
            self.variants.get(variant)
        variants = {variant: chain.saved() for variant, chain in self.variants.chains.items()}
        builds = {s.key: s.build for s in self.kept if s.is_own}
        if self.only is not None:
            builds = {self.only.key: self.only.build}
        options = self.maker.options
        return SavedModel(
            options.target,
            self.interface.inputs,
            self.outputs,
            self.interface.deciding,
            {key: (build, saved_uses(build)) for key, build in builds.items()},
            options.backends,
            options.sizes,
            sized,
            variants,
            form_of(self.model),
            options.asked.saved(),
        )


def accepts_empty(options: Options, names: Collection[str]) -> bool:
    """Whether there are names, and the ranges of sizes accept 0 for all of them."""
    return bool(names) and all(0 in options.sizes.of(name) for name in names)


def _with_value_names(interface: Interface, model: Module | DeferredModule) -> Module | None:
    """Finds the inputs whose values decide sizes. Returns the module with names for these values;
    None if one build cannot serve them.
    """
    if not isinstance(model, Module):
        names = [spec.name for spec in interface.inputs]
        interface.decide_by([names.index(name) for name in model.deciding])
        return None
    deciding = deciding_params(model.main)
    named = named_values(model, deciding)
    if named is None:
        interface.decide_by(deciding)
        return None if deciding else model
    interface.decide_by(tuple(named.names))
    for number, value_names in named.names.items():
        interface.inputs[number].value_names = value_names
    return named.module


def _only(maker: Maker, stored: LoadedChain | None) -> Served[Build]:
    """Returns what serves all calls of a model without free sizes.

    Errors: those of a build.
    """
    module = maker.model
    assert isinstance(module, Module)
    if stored is None or stored.only is None:
        return own(OwnBuild.name, ((), ()), maker.build(module, None))
    made = Once(lambda: maker.build(module, None))
    return Served(Stored.name, ((), ()), {}, stored.only.program, rebuild=made.get)


def _variant(maker: Maker, sizes: AllSizes | None, variant: Variant, module: Module) -> ModuleChain:
    """Returns the chain of a variant. Errors: those of a build."""
    options = replace(maker.options, sizes=maker.options.sizes.without(variant.empty))
    if variant.ranks or variant.ones is not None:
        return ModuleChain(module, options, maker.cache)
    weights = () if sizes is None else sizes.weights
    passes = (*options.passes, ShareConstants(weights))
    # Calls without elements are short and rare, so builds for single sizes do not pay off.
    options = replace(options, passes=passes, specialize=False)
    return ModuleChain(module, options, maker.cache, is_stored=False, told=maker.told)


def _chain_of(
    sizes: AllSizes | None, variants: MadeVariants[ModuleChain], variant: Variant
) -> ModuleChain | Declined:
    """Returns the chain of a variant, or why there is none. Errors: those of a build."""
    if sizes is not None and sizes.serves_empty(variant):
        return Declined(Variants.name, "the build for all sizes serves these sizes of 0")
    found = variants.get(variant)
    return found or Declined(Variants.name, "the graph depends on more than ranks and these sizes")


def _rebuilt(
    all_sizes: AllSizes, variants: MadeVariants[ModuleChain], sizes: Mapping[str, int]
) -> Build:
    """Returns the build at sizes that the stored build has served, by a variant if some are 0.

    Errors: those of a build.
    """
    variant = Variant(empty=tuple(sorted(name for name, size in sizes.items() if size == 0)))
    chain = None
    if variant.empty and not all_sizes.serves_empty(variant):
        chain = variants.get(variant)
        assert chain is not None, "the stored build serves these sizes"
        if chain.only is not None:
            return chain.only.build
        assert chain.all_sizes is not None
        all_sizes = chain.all_sizes
        sizes = {name: size for name, size in sizes.items() if name not in variant.empty}
    found = all_sizes.sized.at(sizes)
    assert found is not None, "the stored build serves these sizes"
    return found
