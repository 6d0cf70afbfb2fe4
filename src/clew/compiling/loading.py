"""Modules of files, for tools that need one before a run."""

from __future__ import annotations

from clew import frontends
from clew.backends.compile_options import CompileOptions, Sizes
from clew.build.sizes import sized
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module


def loaded(
    model: Module | frontends.ModelSource, options: CompileOptions
) -> tuple[Module, CompileOptions]:
    """Returns the module of a model, and the options to compile it with. A model whose graph
    depends on free sizes is imported for the fixed sizes in `options.sizes`.

    Errors: U002, U006, U101 and U102 for a graph that depends on more than these; I315, I316 and
    I318 (`sizes`); and those of loading.
    """
    found, rest = loaded_or_deferred(model, options)
    if isinstance(found, Module):
        return found, rest
    return frontends.load(model, **options.loading), rest  # raises why the import waits


def loaded_or_deferred(
    model: Module | frontends.ModelSource, options: CompileOptions
) -> tuple[Module | DeferredModule, CompileOptions]:
    """Returns what `loaded` does, or an object that imports the model in a run if its graph depends
    on more than the fixed sizes.

    Errors: as `loaded`.
    """
    if isinstance(model, Module):
        return model, options.loaded
    found = frontends.load_or_defer(model, **options.loading)
    if isinstance(found, Module):
        return found, options.loaded
    fixed, ranges = sized(found, options.group(Sizes).sizes)
    return fixed, options.loaded.changed(sizes=ranges)
