"""The ONNX frontend: `load` reads a model file into graph IR.

Every layer's nodes carry its `Source`; a node that is a layer's result is marked with the output. A
layer whose value is needed only for shapes, or is not used, has no node; `main.attrs.eliminated`
lists those layers: (layer, operator, reason).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from clew.frontends.deferred import (
    RUN_TELLS,
    DeferredModel,
    Shapes,
    advice,
    asked_for,
    can_wait,
    needs_numbers,
)
from clew.frontends.given import at_fault
from clew.frontends.onnx import late_run  # noqa: F401  registers the operator of late layers
from clew.frontends.onnx.contrib import (  # noqa: F401  registers converters
    activations,
    attention,
    blocks,
    cached,
    experts,
    integers,
    layout,
    more,
    norms,
    products,
    qlinear,
)
from clew.frontends.onnx.converters import (  # noqa: F401  registers converters
    control,
    einsum,
    elementwise,
    image,
    integer_conv,
    nn,
    old,
    optimizers,
    quantized,
    random,
    recurrent,
    reduce,
    regions,
    same,
    signal,
    text,
    training,
    transform,
    values,
)
from clew.frontends.onnx.file.loader import read
from clew.frontends.onnx.file.sources import Annotator, NodeView
from clew.frontends.onnx.importer import Importer
from clew.frontends.onnx.ml import (  # noqa: F401  registers converters
    features,
    maps,
    ngrams,
    svm,
    trees,
)
from clew.frontends.onnx.registry import converter, supported
from clew.ir.defaults import Defaults
from clew.ir.deferred import DeferredModule
from clew.ir.expr import Call
from clew.ir.module import ByRanks, Module
from clew.ir.types import is_unranked
from clew.ir.visit import all_nodes
from clew.support.budgets import Budgets, current
from clew.support.errors import ClewError, InputError


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    annotate: Annotator | None = None,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    budgets: Budgets | None = None,
) -> Module:
    """Returns the graph IR of an ONNX model: a path, bytes, or a message.

    `annotate(source, node)` may edit each layer's source. `inputs` gives shapes of inputs by name,
    as ints or names of sizes, which replace those in the model. An input that has an initializer or
    a value in `constants` is a constant; this fixes axes, shapes and counts that the model takes as
    inputs. From IR version 4 on, the initializer of an input is a default: an array in `inputs` or
    `constants` replaces it, and a shape in `inputs` makes it an input. `budgets` limit the
    resources of the model.

    Errors: M... for files that are damaged, unsafe or inconsistent; U... for valid models that are
    not supported; T... for layers whose shapes do not fit; I003 to I005 for wrong arguments.
    """
    make = _importers(source, annotate, budgets)
    inputs, constants = _told_apart(make, inputs, constants)
    importer = make(inputs, constants)
    plain = make(None, None)
    replaceable = _defaults(partial(_imported, make, defaults=constants), importer, inputs)
    try:
        with at_fault(plain.inputs.declared, inputs, constants, plain.run):
            return _run(importer, replaceable, partial(_imported, make, defaults=constants), inputs)
    except ClewError as error:
        waits = can_wait(importer, error) or needs_numbers(make, importer, inputs or {})
        again = partial(_imported, make, defaults=constants)
        module = None
        if not waits:
            module = _with_late_layers(make, inputs, constants, error, replaceable, again)
        if module is not None:
            return module
        if waits and not isinstance(error, InputError):
            error.hint = advice(importer, error)
        raise


def load_or_defer(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    budgets: Budgets | None = None,
) -> Module | DeferredModel:
    """Returns the graph IR of an ONNX model as `load` does. If it depends on values or shapes of
    inputs that are unknown before a run, returns an object that imports the model then.

    Errors: as `load`.
    """
    make = _importers(source, None, budgets)
    return _imported(make, *_told_apart(make, inputs, None))


def _imported(
    make: Callable[..., Importer],
    inputs: Mapping[str, Sequence[int | str]] | None,
    defaults: Mapping[str, NDArray[Any]] | None = None,
) -> Module | DeferredModel:
    """Returns the graph IR for shapes of inputs and values in place of defaults, or an object that
    imports the model later.
    """
    again = partial(_imported, make, defaults=defaults)
    make = partial(_with_constants, make, defaults)
    importer = make(inputs, None)
    plain = make(None, None)
    replaceable = _defaults(again, importer, inputs)
    try:
        with at_fault(plain.inputs.declared, inputs, None, plain.run):
            module = _run(importer, replaceable, again, inputs)
    except ClewError as error:
        if not can_wait(importer, error) and not needs_numbers(make, importer, inputs or {}):
            found = _with_late_layers(make, inputs, None, error, replaceable, again)
            if found is None:
                raise
            return found
        return DeferredModel(
            partial(make, keep_constants=True), importer, error, again, replaceable
        )
    if asked_for(importer, None):
        return DeferredModel(partial(make, keep_constants=True), importer, None, again, replaceable)
    return module


def _told_apart(
    make: Callable[..., Importer],
    inputs: Mapping[str, Any] | None,
    constants: Mapping[str, NDArray[Any]] | None,
) -> tuple[Mapping[str, Any] | None, Mapping[str, NDArray[Any]] | None]:
    """Returns shapes and constants: an array given for an input with a default is its value.

    Errors: I006 for values that are not shapes.
    """
    given = dict(inputs or {})
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    defaults = make(None, None).inputs.defaults if arrays else ()
    arrays = {name: value for name, value in arrays.items() if name in defaults}
    shapes = {name: _shape(name, value) for name, value in given.items() if name not in arrays}
    return shapes, {**(constants or {}), **arrays}


def _shape(name: str, given: Any) -> tuple[int | str, ...]:
    """Returns the sizes of a shape. Errors: I006 if it is none."""
    try:
        sizes = list(given)
    except TypeError:
        sizes = [None]
    if isinstance(given, str) or not all(
        isinstance(s, (int, np.integer, str)) and not isinstance(s, bool) for s in sizes
    ):
        raise InputError(
            "I006",
            f"the shape of input {name!r} is {given!r:.80}",
            hint="a shape has a number or a name for each axis, such as (1, 3, 224, 224)",
        )
    return tuple(s if isinstance(s, str) else int(s) for s in sizes)


def _with_constants(
    make: Callable[..., Importer],
    always: Mapping[str, NDArray[Any]] | None,
    inputs: Mapping[str, Any] | None,
    constants: Mapping[str, NDArray[Any]] | None,
    **options: Any,
) -> Importer:
    """Returns an importer with further constants, except for those that are inputs."""
    kept = {name: value for name, value in (always or {}).items() if name not in (inputs or {})}
    return make(inputs, {**kept, **(constants or {})}, **options)


def _defaults(
    again: Callable[..., Module | DeferredModel],
    importer: Importer,
    shapes: Mapping[str, Any] | None,
) -> Defaults | None:
    """Returns the inputs with default values that are constants of an import, if there are any."""
    names = tuple(n for n in importer.inputs.defaults if n not in importer.inputs.opened)

    def with_inputs(opened: Collection[str]) -> Module | DeferredModel:
        return again({**(shapes or {}), **importer.inputs.declared_shapes(opened)})

    return Defaults(names, with_inputs) if names else None


def _run(
    importer: Importer,
    defaults: Defaults | None,
    again: Callable[[Shapes], Module | DeferredModule],
    shapes: Shapes | None,
) -> Module:
    module = importer.run()
    by_ranks = _by_ranks(module, again, shapes or {})
    if defaults is None and by_ranks is None:
        return module
    return Module(module.functions, defaults, by_ranks)


def _by_ranks(
    module: Module, again: Callable[[Shapes], Module | DeferredModule], shapes: Shapes
) -> ByRanks | None:
    """Returns a function that imports a module again for ranks of its lists' elements; None if all
    ranks are known, or no layer waits for one.
    """
    if not any(is_unranked(param.type) for param in module.main.params):
        return None
    if not any(isinstance(n, Call) and n.op_name == "onnx.layer" for n in all_nodes(module.main)):
        return None

    def with_ranks(ranks: Mapping[str, int]) -> Module | None:
        named = {n: [f"{n}_{axis}" for axis in range(rank)] for n, rank in ranks.items()}
        try:
            found = again({**shapes, **named})
        except ClewError:  # the module with late layers reports why
            return None
        return found if isinstance(found, Module) else None

    return with_ranks


def _with_late_layers(
    make: Callable[..., Importer],
    inputs: Mapping[str, Sequence[int | str]] | None,
    constants: Mapping[str, NDArray[Any]] | None,
    error: ClewError,
    defaults: Defaults | None,
    again: Callable[[Shapes], Module | DeferredModule],
) -> Module | None:
    """Returns the graph with some layers deferred to the run, because they need values that no call
    provides; None if that is not the cause of the import's failure, or does not help.
    """
    if error.code not in RUN_TELLS:
        return None
    try:
        return _run(make(inputs, constants, late=True), defaults, again, inputs)
    except ClewError:
        return None


def _importers(
    source: str | os.PathLike[str] | bytes | ModelProto,
    annotate: Annotator | None,
    budgets: Budgets | None,
) -> Callable[..., Importer]:
    """Returns a function that makes importers, for shapes and constants, of a model that is read
    once.
    """
    limits = budgets or current()
    loaded = read(source, limits)

    def make(
        inputs: Mapping[str, Sequence[int | str]] | None,
        constants: Mapping[str, NDArray[Any]] | None,
        *,
        keep_constants: bool = False,
        late: bool = False,
        without_ones: bool = False,
    ) -> Importer:
        return Importer(
            loaded,
            limits,
            annotate=annotate,
            inputs=inputs,
            constants=constants,
            keep_constants=keep_constants,
            late=late,
            without_ones=without_ones,
        )

    return make


__all__ = [
    "Annotator",
    "Budgets",
    "ModelProto",
    "NodeView",
    "converter",
    "load",
    "load_or_defer",
    "supported",
]
