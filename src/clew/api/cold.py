"""Compiles a model with the compiler, for `clew.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, TypeVar

from clew.backends.backend import Backend
from clew.backends.compile_options import AUTO, CompileOptions
from clew.compiling.compile import compile_as
from clew.compiling.extensions import extensions_of
from clew.frontends import check_source
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.serving.built_model import BuiltModel
from clew.serving.from_module import model_of
from clew.serving.start import Prepared
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

M = TypeVar("M", bound=BuiltModel)


def compiled(kind: type[M], model: Any, options: CompileOptions) -> M:
    """Returns a model of a kind. Errors: as `clew.compile`."""
    return _made(partial(model_of, kind), model, options)  # type: ignore[no-any-return]


def check_object(model: Any) -> None:
    """Errors: I002 for an object that is no model; a file is not opened."""
    if not isinstance(model, (str, PathLike, Module, DeferredModule)):
        check_source(model)


def prepared(model: Any, options: CompileOptions) -> Prepared:
    """Returns the module and the options of a compilation. Errors: as `clew.compile`."""
    return _made(Prepared, model, options)  # type: ignore[no-any-return]


def _made(make: Callable[..., Any], model: Any, options: CompileOptions) -> Any:
    if isinstance(options.place, str) and options.place == AUTO:
        with LOADING, held_interrupts():
            from clew.placement.placing import placed_for_compile  # noqa: PLC0415

        options = options.changed(extend=extensions_of(options.extend))
        others = [*options.backends, *(x for x in options.extend if isinstance(x, Backend))]
        options = options.changed(place=placed_for_compile(model, others, options))
    return compile_as(make, model, options)
