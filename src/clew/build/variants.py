"""The models of a model's variants (`runtime.variant`), each with its own builds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from clew.ir.deferred import DeferredModule
from clew.ir.expr import Call, Expr, If, While
from clew.ir.module import Module
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import all_nodes
from clew.passes.specialize import with_sizes
from clew.runtime.variant import Variant
from clew.support.errors import ClewError
from clew.support.locks import Lock

M = TypeVar("M")
Make: TypeAlias = "Callable[[Variant, Module], M]"
# The most variants that a model keeps.
_KEPT: Final = 64


class Variants(Generic[M]):
    """The models of the variants that were needed so far; the most recently used ones are kept.

    The methods' argument `make` compiles the module of a variant. It is not stored, since a
    reference back to the model would delay its release.
    """

    def __init__(self, model: Module | DeferredModule) -> None:
        self._model = model
        self._made: OrderedDict[Variant, M | None] = OrderedDict()
        self._lock = Lock()

    @property
    def models(self) -> dict[Variant, M]:
        """The models by variant, the most recently used one last."""
        return {variant: model for variant, model in self._made.items() if model is not None}

    def get(self, variant: Variant, make: Make[M]) -> M | None:
        """Returns the model of a variant; None if it has none (see `module_of`).

        Errors: those of a build.
        """
        with self._lock:
            if variant not in self._made:
                module = module_of(self._model, variant)
                self._made[variant] = None if module is None else make(variant, module)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(variant)
            return self._made[variant]


def module_of(model: Module | DeferredModule, variant: Variant) -> Module | None:
    """Returns the module of a variant; None if the graph depends on more than the variant settles,
    or is invalid at these sizes.
    """
    module: Module | None
    if isinstance(model, Module):
        module = model
    else:
        module = model.with_ranks(dict(variant.ranks)) if variant.ranks else None
        if variant.ones is not None:
            module = model.with_ones(variant.ones)
    if module is None or not variant.empty:
        return module
    try:
        found = with_sizes(module, dict.fromkeys(variant.empty, 0))
    except ClewError:  # a build for the sizes of the call says why
        return None
    return None if _computes_nothing(found) else found


def _computes_nothing(module: Module) -> bool:
    """Whether values without elements but of unknown other sizes are computed, or read by an
    operator other than a concatenation. `FoldEmpty` needs all sizes to remove these, and no kernel
    is made for them.
    """
    return any(
        _is_open(leaf)
        for node in all_nodes(module.main)
        if isinstance(node, (Call, If, While))
        for part in (node, *(() if _joins(node) else node.children))
        for leaf in leaves(part.type)
    )


def _joins(node: Expr) -> bool:
    return isinstance(node, Call) and node.op_name == "concatenate"


def _is_open(type_: Type) -> bool:
    return isinstance(type_, TensorType) and 0 in type_.shape and not type_.is_static
