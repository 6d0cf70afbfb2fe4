"""Models that start from the disk cache; the compiler is imported when something asks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from clew.serving.built_model import About, BuiltModel
from clew.serving.model_chain import ModuleChain, Parts
from clew.serving.start import Found, Prepared
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING
from clew.support.locks import Once

M = TypeVar("M", bound=BuiltModel)


def started(
    kind: type[M], found: Found, about: About, specialize: bool, prepare: Callable[[], Prepared]
) -> M:
    """Returns a model of a stored build. `prepare` imports the model for what the build does not
    hold.
    """
    stored = found.stored
    prepared = Once(prepare)
    chains: list[weakref.ref[ModuleChain]] = []

    def parts() -> Parts:
        ready = prepared.get()
        with LOADING, held_interrupts():
            from clew.serving.from_module import parts_of  # noqa: PLC0415

        chain = chains[0]()  # a strong reference would be a cycle
        assert chain is not None
        return parts_of(chain, ready)

    chain = ModuleChain(
        stored.interface, stored.outputs, stored.form, stored, Once(parts),
        is_free=stored.interface.is_free, specialize=specialize,
    )  # fmt: skip
    chain.stored_key = found.build
    chains.append(weakref.ref(chain))
    return kind(chain, about, lambda: prepared.get().defaults)
