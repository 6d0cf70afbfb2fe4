"""The variants of a model that this process compiles, made on first use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from clew.ir.deferred import DeferredModule
from clew.ir.expr import Call, Expr, If, While
from clew.ir.module import Module
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import all_nodes
from clew.passes.cache_branches import with_branch
from clew.passes.hold_states import growing_sizes, with_held_states
from clew.passes.specialize import with_sizes, with_sizes_from_zero
from clew.runtime.variant import Variant
from clew.support.errors import ClewError
from clew.support.locks import Lock

C = TypeVar("C")
Make: TypeAlias = "Callable[[Variant, Module], C]"
# The most variants that a model keeps.
_KEPT: Final = 64


class MadeVariants(Generic[C]):
    """The chains of the variants that were needed so far; the most recently used ones are kept."""

    def __init__(self, model: Module | DeferredModule, make: Make[C]) -> None:
        """`make` compiles the module of a variant."""
        self._model = model
        self._make = make
        self._made: OrderedDict[Variant, C | None] = OrderedDict()
        self._lock = Lock()

    @property
    def chains(self) -> dict[Variant, C]:
        """The chains by variant, the most recently used one last."""
        with self._lock:
            return {variant: chain for variant, chain in self._made.items() if chain is not None}

    def get(self, variant: Variant) -> C | None:
        """Returns the chain of a variant; None if it has none (see `module_of`).

        Errors: those of a build.
        """
        with self._lock:
            if variant not in self._made:
                module = module_of(self._model, variant)
                self._made[variant] = None if module is None else self._make(variant, module)
                while len(self._made) > _KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(variant)
            return self._made[variant]


def module_of(model: Module | DeferredModule, variant: Variant) -> Module | None:
    """Returns the module of a variant; None if the graph depends on more than the variant settles,
    or is invalid at these sizes.
    """
    module: Module | None
    if variant.held:
        return _held(model, variant) if isinstance(model, Module) else None
    if isinstance(model, Module):
        module = model
        if variant.ranks:
            module = None if model.by_ranks is None else model.by_ranks(dict(variant.ranks))
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


def _held(model: Module, variant: Variant) -> Module | None:
    """Returns the module with states in buffers; None if no state can lie in one."""
    try:
        chosen = branch_of(model, variant)
        if chosen is None:
            return None
        whole = with_sizes_from_zero(chosen, growing_sizes(chosen, variant.held))
        found = with_held_states(whole, variant.held)
    except ClewError:  # a growing size of 0 is invalid
        return None
    return found.module if found.lengths or found.fixed else None


def branch_of(model: Module, variant: Variant) -> Module | None:
    """Returns the branch of a merged decoder that a variant names, or else the model; None if the
    branches have another form. Errors: those of operators.
    """
    if variant.branch is None:
        return model
    flag, value = variant.branch
    return with_branch(model, variant.held, flag, continues=value)


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
