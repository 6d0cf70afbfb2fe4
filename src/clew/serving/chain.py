"""The chain of providers: which program answers a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic

import numpy as np

from clew.runtime.kinds import texts
from clew.runtime.native_program import NativeForm
from clew.runtime.sizes_key import SizesKey, kept_sizes
from clew.runtime.variant import Variant
from clew.serving.interface import Interface
from clew.serving.served import B, Declined, Provider, Request, Served
from clew.support.errors import ClewError
from clew.support.locks import Lock
from clew.support.text_arrays import TEXT

_ARRAY: Final = np.ndarray
Refuse = Callable[[Request, Sequence[Declined]], ClewError]


class Chain(Generic[B]):
    """What answers the calls of a model: `only`, or the first provider that serves a call.

    `whole` is the program of a model without free sizes, which is `only` unless ranks of list
    elements have variants.

    Programs are kept by the key of their calls, more of them if they are small. Calls may come from
    several threads: reading a kept program takes no lock, and `latest` is one immutable object, so
    that a program, its build and its sizes always belong together.
    """

    def __init__(
        self,
        interface: Interface,
        providers: Iterable[Provider[B]] = (),
        whole: Served[B] | None = None,
        refuse: Refuse | None = None,
    ) -> None:
        """`refuse` returns the error for calls that no provider serves."""
        self.interface = interface
        self.providers = providers
        self.whole = whole
        self.only = only = None if interface.takes_any_rank else whole
        # One tuple, so that both always belong together.
        self._current: tuple[Served[B] | None, NativeForm | None] = whole, None
        self._refuse = refuse
        self._kept: dict[SizesKey, Served[B]] = {}
        self._deciding = interface.deciding
        self._lock = Lock()
        # The dtypes of the inputs, if all of them are plain tensors, and the positions of texts.
        self._dtypes = interface.plain_dtypes
        self._texts = [n for n, dtype in enumerate(self._dtypes or ()) if dtype is TEXT]
        self._fixed = None
        if only is not None and self._dtypes is not None:
            self._fixed = tuple([spec.shape for spec in interface.inputs])

    @property
    def latest(self) -> Served[B] | None:
        """What served the latest call."""
        return self._current[0]

    @property
    def native(self) -> NativeForm | None:
        """The native form of a call like the latest one. None if there is none."""
        return self._current[1]

    @property
    def kept(self) -> list[Served[B]]:
        """The programs that are kept, the oldest first."""
        return list(self._kept.copy().values())

    def known(self, given: Sequence[Any]) -> Served[B] | None:
        """Returns what serves a call with given inputs, if they are arrays that need no check,
        because they have the dtypes of the model and the shapes of an earlier call.
        """
        dtypes = self._dtypes
        if dtypes is None or self.interface.deciding:
            return None
        shapes = []
        for array, dtype in zip(given, dtypes):  # noqa: B905 - faster
            if type(array) is not _ARRAY or array.dtype is not dtype:
                return None
            shapes.append(array.shape)
        if self._texts:
            are_texts = texts().are_texts
            for number in self._texts:
                if not are_texts(given[number]):
                    return None
        if self.only is None:
            served = self._kept.get((tuple(shapes), ()))
        else:
            served = self.only if tuple(shapes) == self._fixed else None
        if served is not None:
            current, native = self._current
            if current is not served or native is not None or served.may_turn_native:
                self._note(served, shapes)
        return served

    def _note(self, served: Served[B], shapes: Sequence[tuple[int, ...]]) -> None:
        """Notes what serves the latest call, with inputs of these shapes."""
        dtypes, native = self._dtypes, None
        if dtypes is not None and not self.interface.deciding:
            native = served.native(shapes, dtypes)
        self._current = served, native

    def serve(self, arrays: Sequence[Any]) -> Served[B]:
        """Returns what serves a call with checked inputs.

        Errors: I042, I317 and I318 (sizes), and those of an import and a build.
        """
        served = self.only or self.known(arrays)
        if served is None:
            served = self._kept.get(self.interface.key(arrays)) or self._found(arrays)
            self._current = served, None
        return served

    def _found(self, arrays: Sequence[Any]) -> Served[B]:
        interface = self.interface
        with self._lock, interface.about(arrays):
            key = interface.key(arrays)
            served = self._kept.get(key)  # another thread may have been faster
            if served is None:
                interface.check(arrays)
                request = Request(key, arrays, lambda: interface.sizes(arrays))
                answer = self.first(request)
                if not isinstance(answer, Served):
                    assert self._refuse is not None, "a provider serves every call"
                    raise self._refuse(request, answer)
                self._keep(answer)
                served = answer
            return served

    def first(self, request: Request) -> Served[B] | list[Declined]:
        """Returns the answer of the first provider that serves a call; else all their reasons.

        Errors: those of an import and a build.
        """
        declined: list[Declined] = []
        for provider in self.providers:
            answer = provider.serve(request)
            if isinstance(answer, Served):
                return replace(answer, declined=tuple(declined)) if declined else answer
            declined.append(answer)
        return declined

    def held(self, variant: Variant) -> Chain[B] | None:
        """Returns the chain of a variant with states in buffers; None if it has none."""
        return None

    def served_again(
        self, before: Served[B], arrays: Sequence[Any], sizes: Mapping[str, int]
    ) -> Served[B] | None:
        """Returns what serves a call with checked inputs, whose sizes need no check, by the build
        that served another call; None if that is not possible.
        """
        interface = self.interface
        if before.again is None or interface.ranges or interface.deciding:
            return None
        with self._lock, interface.about(arrays):
            key = interface.key(arrays)
            served = self._kept.get(key)
            if served is None:
                served = before.again(key, sizes)
                if served is not None:
                    self._keep(served)
            return served

    def forget(self, served: Served[B]) -> None:
        """Drops a program, whose calls are not expected to return."""
        if self._kept.get(served.key) is served:
            self._kept.pop(served.key, None)  # another thread may be faster

    def _keep(self, served: Served[B]) -> None:
        """Keeps a program for the next call with its key, in place of the oldest ones."""
        if self._deciding != self.interface.deciding:  # keys of earlier programs lack values
            self._deciding = self.interface.deciding
            self._kept.clear()
        while len(self._kept) >= kept_sizes(served.weight):
            del self._kept[next(iter(self._kept))]
        self._kept[served.key] = served
