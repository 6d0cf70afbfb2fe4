"""Notices that weights, whose values programs hold, have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final
from weakref import WeakSet, ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from clew.support.locks import Lock, once


class Weights:
    """Tensors whose values a program holds, with facts that reveal changes: their identity, their
    memory, and the version that operators in place count up. They are not kept alive.
    """

    def __init__(self, positions: Sequence[int], args: Sequence[Any]) -> None:
        # Two positions more, so that the getter always returns a tuple.
        self._pick = itemgetter(*positions, slice(0), slice(0))
        tensors = self._pick(args)[:-2]
        self._ids = list(map(id, tensors))
        self._versions = list(map(_version, tensors))
        self._places = list(map(_place, tensors))
        self._refs = [ref(t, self._expire) for t in tensors]
        self._valid = True  # until a tensor is gone: another may then have its identity
        self._expired: Callable[[], Any] = lambda: None
        _watch_optimizers()
        with _lock:
            _watched.add(self)

    def same(self, args: Sequence[Any]) -> bool:
        """Whether the arguments hold the same weights, unchanged."""
        tensors = self._pick(args)[:-2]
        return (
            self._valid
            and list(map(id, tensors)) == self._ids
            and list(map(_version, tensors)) == self._versions
            and list(map(_place, tensors)) == self._places
        )

    def when_expired(self, told: Callable[[], Any]) -> None:
        """Sets the callback for a deleted tensor, after which `same` is false."""
        self._expired = told

    def expire_any(self, ids: set[int]) -> None:
        """Makes `same` false if one of the tensors is among those with `ids`."""
        if not ids.isdisjoint(self._ids):
            self._expire()

    def _expire(self, _: Any = None) -> None:
        self._valid = False
        self._expired()


def can_hold(tensor: Any) -> bool:
    """Whether changes of a tensor are noticed. Tensors made in inference mode have no version."""
    return isinstance(tensor, torch.Tensor) and not tensor.is_inference()


@once
def _watch_optimizers() -> bool:
    """Makes optimizers' steps expire the tensors that they change: neither fused ones
    (`AdamW(fused=True)`) nor those that write to `p.data` count up a version.
    """
    register_optimizer_step_post_hook(_after_step)
    return True


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    changed = {id(p) for group in optimizer.param_groups for p in group["params"]}
    with _lock:
        watched = list(_watched)
    for weights in watched:
        weights.expire_any(changed)


_version: Final = attrgetter("_version")
_place: Final = torch.Tensor.data_ptr
_lock: Final = Lock()
_watched: Final[WeakSet[Weights]] = WeakSet()
