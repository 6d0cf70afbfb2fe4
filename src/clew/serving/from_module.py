"""What the compiler makes of a model, for its chain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from clew.backends.options import Options
from clew.build.inputs import declared_inputs, form_of, inputs_of, outputs_of
from clew.build.result import Build, BuildTemplate
from clew.build.saving import SavedModel, contents, save, saved_uses
from clew.build.wishes import tell
from clew.ir.deciding import deciding_params
from clew.ir.defaults import Defaults
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.ir.types import dims_in
from clew.passes.hold_states import growing_sizes
from clew.passes.name_values import named_values
from clew.passes.share_constants import ShareConstants
from clew.passes.specialize import with_sizes_from_zero
from clew.runtime.cache import Cache
from clew.runtime.output_spec import OutputSpec
from clew.runtime.program import RunSegment
from clew.runtime.segment import NativeSegment
from clew.runtime.state import growing_names, held_variants, pairs_of
from clew.runtime.variant import Variant
from clew.serving.all_sizes import AllSizes
from clew.serving.build_key import build_key
from clew.serving.built_model import About, BuiltModel
from clew.serving.from_file import LoadedChain
from clew.serving.imported import Imported
from clew.serving.interface import Interface
from clew.serving.made_variants import MadeVariants, branch_of
from clew.serving.making import Maker
from clew.serving.model_chain import ModuleChain, accepts_empty
from clew.serving.often import SpecializedSizes
from clew.serving.own_build import OwnBuild, own
from clew.serving.served import Declined, Provider
from clew.serving.start import Prepared
from clew.serving.stored import StoredBuild
from clew.serving.variants import Variants
from clew.support.budgets import in_force
from clew.support.errors import ClewError
from clew.support.locks import Once

M = TypeVar("M", bound=BuiltModel)
Array: TypeAlias = "np.ndarray[Any, Any]"


class _Weights:
    """The constants of a model in memory, which its variants share. Does not refer to what has the
    variants, so that a dropped model is freed at once. `build` is that of a model without free
    sizes.
    """

    def __init__(self, sizes: AllSizes | None, stored: LoadedChain | None) -> None:
        self._sizes, self._stored = sizes, stored
        self.build: Build | None = None

    def __call__(self) -> Sequence[Array]:
        """Returns those that are known."""
        if self._sizes is not None:
            return self._sizes.weights
        served = self._stored.whole if self._stored is not None else None
        if self.build is not None:
            program = self.build.program
        elif served is not None:
            program = served.program
        else:
            return ()
        segments = [step.segment for step in program.instructions if isinstance(step, RunSegment)]
        found = [segment for segment in segments if isinstance(segment, NativeSegment)]
        return [constant for segment in found for constant in segment.constants]


class CompiledParts:
    """What the compiler made of a model: its module, builds and variants."""

    def __init__(
        self,
        maker: Maker,
        interface: Interface,
        outputs: Sequence[OutputSpec],
        free: Module | None,
        stored: LoadedChain | None,
    ) -> None:
        """`free` is the module with names for values that decide sizes; None if one build cannot
        serve them. `stored` is the build from the disk cache.
        """
        self.maker = maker
        self._stored = stored
        options, model = maker.options, maker.model
        # Growing states start empty, so the build for all sizes should serve a size of 0 as well.
        self._inputs = interface.inputs
        self._pairs = pairs_of(interface.inputs, outputs)
        self.growing: Collection[str] = ()
        self.all_sizes: AllSizes | None = None
        self._is_free = is_free = interface.is_free or not isinstance(model, Module)
        # Other backends take regions of known shapes.
        if is_free and free is not None and not options.backends:
            self.growing = growing_names(self._pairs)
            if accepts_empty(options.sizes, self.growing):
                with suppress(ClewError):  # a build for size 0 alone may be possible
                    free = with_sizes_from_zero(free, self.growing)
            values = [name for spec in interface.inputs for name in spec.value_names]
            sized = stored.sized if stored is not None else None
            self.all_sizes = AllSizes(maker, free, values, sized)
        self._weights = _Weights(self.all_sizes, stored)
        self.variants = MadeVariants(model, partial(_variant, maker, self._weights))
        self.providers = self._providers(interface)

    def _providers(self, interface: Interface) -> list[Provider[Build]]:
        sizes, model = self.all_sizes, self.maker.model
        own_build = OwnBuild(self.maker, interface, model)
        # Whether the graph depends on which sizes are 1, or on more.
        by_ones = not isinstance(model, Module) and not interface.takes_any_rank
        by_ones = by_ones and any(not spec.is_static for spec in interface.inputs)
        find = partial(_chain_of, sizes, self.variants)
        found: list[Provider[Build]] = [Variants(interface, find, by_ones=by_ones)]
        found += [sizes] if sizes is not None else []
        if isinstance(model, Module):
            return [*found, own_build] if self._is_free else found
        return [*found, Imported(own_build, model, self.maker.options.bounds)]

    def expect_empty(self, variant: Variant) -> None:
        """Makes the variant in which some sizes are 0 if no build serves it."""
        sizes = self.all_sizes
        if sizes is None:
            return
        if sizes.serves_empty(variant) or (sizes.known is not None and sizes.known.unsized):
            return
        # An error concerns only calls with these sizes, which report it.
        with suppress(ClewError), in_force(self.maker.options.budgets):
            self.variants.get(variant)

    def expect_held(self) -> None:
        """Makes the form that sessions run, if the model has states that can lie in buffers."""
        for variant in held_variants(self._inputs, self._pairs):
            self.held(variant)

    def held(self, variant: Variant) -> ModuleChain | None:
        """Returns the chain of a variant whose states lie in buffers; None if no state can lie in
        one, or if one build cannot serve all lengths.
        """
        sizes, model = self.all_sizes, self.maker.model
        if not isinstance(model, Module) or self.maker.options.backends:
            return None
        if sizes is None and self._is_free:
            return None
        if sizes is not None and sizes.sized.unsized:
            return None
        # The model itself serves the sessions for whose form there is an error.
        with suppress(ClewError), in_force(self.maker.options.budgets):
            branch = branch_of(model, variant)
            growing = [] if branch is None else growing_sizes(branch, variant.held)
            if growing and not accepts_empty(self.maker.options.sizes, growing):
                return None
            chain = self.variants.get(variant)
            if chain is not None and (chain.only is not None or _serves_from_zero(chain)):
                return chain
        return None

    def build(self) -> Build:
        """Returns the build of a model without free sizes. Errors: those of a build."""
        assert isinstance(self.maker.model, Module)
        self._weights.build = self.maker.build(self.maker.model, None)
        return self._weights.build

    def rebuilt(self, sizes: Mapping[str, int]) -> Build:
        """Returns the build at sizes that the stored build has served. Errors: those of a build."""
        assert self.all_sizes is not None
        return _rebuilt(self.all_sizes, self.variants, sizes)

    @property
    def common(self) -> BuildTemplate | None:
        """The build for all sizes, if the model has one. Errors: those of a build."""
        if self.all_sizes is None or self.all_sizes.sized.unsized:
            return None
        return self.all_sizes.sized.build

    @property
    def specialized(self) -> tuple[SpecializedSizes, ...]:
        """The sizes that variants met often."""
        return tuple(s for c in self.variants.chains.values() for s in c.specialized)

    @property
    def builds_made(self) -> int:
        """The number of builds so far."""
        return self.maker.made + sum(c.builds_made for c in self.variants.chains.values())

    def with_module(self, kind: Any, module: Module | DeferredModule) -> Any:
        """Returns a model of another module with the same options. Errors: those of a build."""
        return model_of(kind, module, self.maker.options, self.maker.cache)

    def recompiled(self, kind: Any, options: Options, defaults: Defaults | None) -> Any:
        """Returns the model compiled with other options. Errors: those of a build."""
        maker = self.maker
        return model_of(kind, maker.model, options, maker.cache, defaults=defaults, told=maker.told)

    def saved(self, chain: ModuleChain) -> SavedModel:
        """Returns what a file holds of the model. Errors: those of a build."""
        sizes, sized = self.all_sizes, None
        if sizes is not None and not sizes.sized.unsized:
            sized = sizes.sized, saved_uses(sizes.sized.build)
        for variant in self._stored.variants if self._stored is not None else ():
            self.variants.get(variant)
        variants = {variant: saved(c) for variant, c in self.variants.chains.items()}
        builds = {s.key: s.build for s in chain.kept if s.is_own}
        if chain.whole is not None:
            builds = {chain.whole.key: chain.whole.build}
        options = self.maker.options
        return SavedModel(
            options.target,
            chain.interface.inputs,
            chain.outputs,
            chain.interface.deciding,
            {key: (build, saved_uses(build)) for key, build in builds.items()},
            options.backends,
            options.sizes,
            sized,
            variants,
            chain.form,
            options.asked.saved(),
        )

    def write(self, chain: ModuleChain, path: str | Path) -> None:
        """Writes all builds to a file. Errors: as `saving.save`."""
        self.expect_held()
        save(self.saved(chain), path)


def saved(chain: ModuleChain) -> SavedModel:
    """Returns what a file holds of a chain. Errors: those of a build."""
    parts = chain.parts
    assert isinstance(parts, CompiledParts)
    return parts.saved(chain)


def model_of(
    kind: type[M],
    module: Module | DeferredModule,
    options: Options,
    cache: Cache,
    *,
    defaults: Defaults | None = None,
    told: set[str] | None = None,
    is_stored: bool = True,
) -> M:
    """Returns a model of a kind. With `is_stored`, the build comes from the cache, or is stored
    there. `defaults` are the inputs that are constants until a call replaces them, and `told` holds
    the warnings that were issued before.

    Errors: those of a build.
    """
    chain = chain_of(module, options, cache, told=told, is_stored=is_stored)
    names = () if defaults is None else defaults.names
    about = About(options.target.name, options.threads, options.asked, names, options.budgets)
    return kind(chain, about, lambda: defaults)


def chain_of(
    model: Module | DeferredModule,
    options: Options,
    cache: Cache,
    *,
    is_stored: bool = True,
    told: set[str] | None = None,
) -> ModuleChain:
    """Returns the chain of a model. With `is_stored`, the build comes from the cache, or is stored
    there once it is made.

    Errors: those of a build.
    """
    interface, free = _interface(model, options)
    outputs, maker = outputs_of(model), Maker(model, options, cache, told)
    is_free = interface.is_free or not isinstance(model, Module)
    place = None
    if isinstance(model, Module) and free is not None and is_stored:
        key = build_key(model, options, cache) if cache.root is not None else None
        place = StoredBuild(key, cache, options.threads, options.backends)
    stored = place.load() if place is not None else None
    if place is not None and stored is not None:
        tell(place.warned, maker.told)
    parts = CompiledParts(maker, interface, outputs, free, stored)
    whole = own(OwnBuild.name, ((), ()), parts.build()) if not is_free and stored is None else None
    chain = ModuleChain(
        interface, outputs, form_of(model), stored, Once.of(parts), whole,
        is_free=is_free, specialize=options.specialize,
    )  # fmt: skip
    if parts.all_sizes is not None:
        parts.all_sizes.specializing = chain.specializing
        if stored is None:
            parts.all_sizes.sized  # noqa: B018
    chain.expect_empty(parts.growing)
    if place is None:
        return chain
    common = chain.common if stored is None else None
    if stored is not None or common is not None:
        chain.stored_key = place.key
    if common is not None:
        if place.key is not None:
            parts.expect_held()  # a start from the cache would have to import and compile it
        about = {"target": options.target.name, "kernels": len(common.uses)}
        place.keep(lambda: contents(parts.saved(chain)), common.constant_bytes, about, maker.warned)
    return chain


def parts_of(chain: ModuleChain, prepared: Prepared) -> CompiledParts:
    """Returns the parts of a chain that began with a stored build. Errors: those of an import."""
    _, free = _interface(prepared.module, prepared.options)
    assert free is not None, "the build was stored"
    maker = Maker(prepared.module, prepared.options, prepared.cache)
    parts = CompiledParts(maker, chain.interface, chain.outputs, free, chain.stored)
    if parts.all_sizes is not None:
        parts.all_sizes.specializing = chain.specializing
    return parts


def _interface(model: Module | DeferredModule, options: Options) -> tuple[Interface, Module | None]:
    """Returns the inputs of a model, and the module with names for values that decide sizes."""
    found = inputs_of(model) if isinstance(model, Module) else declared_inputs(model)
    interface = Interface(found, options.sizes)
    return interface, _with_value_names(interface, model)


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


def _variant(
    maker: Maker, weights: Callable[[], Sequence[Array]], variant: Variant, module: Module
) -> ModuleChain:
    """Returns the chain of a variant. Errors: those of a build."""
    options = replace(maker.options, sizes=maker.options.sizes.without(variant.empty))
    if variant.ranks or variant.ones is not None:
        return chain_of(module, options, maker.cache)
    passes = (*options.passes, ShareConstants(weights()))
    # Calls without elements are short and rare, so builds for single sizes do not pay off.
    options = replace(options, passes=passes, specialize=False)
    return chain_of(module, options, maker.cache, is_stored=False, told=maker.told)


def _serves_from_zero(chain: ModuleChain) -> bool:
    """Whether one build serves all lengths of states in buffers, 0 included."""
    own = chain.all_sizes
    if own is None or own.sized.unsized:
        return False
    least = {name for p in own.module.main.params for d in dims_in(p.type) for name in d.from_zero}
    return own.sized.template.from_zero >= least


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
