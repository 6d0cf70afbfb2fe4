"""Compiles a model with the compiler, for `clew.compile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from clew.backends.backend import Backend
from clew.compiling.compile import compile_as
from clew.compiling.extensions import extensions_of
from clew.serving.built_model import BuiltModel
from clew.serving.from_module import model_of
from clew.serving.start import Prepared
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

M = TypeVar("M", bound=BuiltModel)


def compiled(kind: type[M], model: Any, target: Any, **options: Any) -> M:
    """Returns a model of a kind, given the arguments of `clew.compile`. Errors: as that."""
    return _made(partial(model_of, kind), model, target, **options)  # type: ignore[no-any-return]


def prepared(model: Any, target: Any, **options: Any) -> Prepared:
    """Returns the module and the options of a compilation. Errors: as `clew.compile`."""
    return _made(Prepared, model, target, **options)  # type: ignore[no-any-return]


def _made(make: Callable[..., Any], model: Any, target: Any, **options: Any) -> Any:
    extend, place = extensions_of(options["extend"]), options["place"]
    if place == "auto":
        with LOADING, held_interrupts():
            from clew.placement.placing import placed_for_compile  # noqa: PLC0415

        names = ("threads", "tuned", "links", "trust", "opt_level", "precision", "keep_f32")
        place = placed_for_compile(
            model,
            [*options["backends"], *(x for x in extend if isinstance(x, Backend))],
            target=target,
            shapes=options["inputs"],
            fuse=options["fuse"],
            on_progress=options["on_progress"],
            **{name: options[name] for name in names},
        )
    return compile_as(make, model, target, **{**options, "extend": extend, "place": place})
