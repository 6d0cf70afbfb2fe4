"""Runs a module in eager, and records the results of each call of a module inside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass
class ModuleCall:
    """A call of a module. `name` is the module's path, with the number of the call if it is not the
    first one (`block@1`), and is empty for the whole model. `kind` is the module's class, `calls`
    has the names of this call and of all calls inside it, and `results` the leaves of its result.
    `passes_on`: whether it returned nothing but arguments.
    """

    name: str
    kind: str
    calls: set[str] = field(default_factory=set)
    results: list[Any] = field(default_factory=list)
    passes_on: bool = False


class EagerRun:
    """A run of a module in eager: `result`, and `calls` in the order in which they ended. `times`
    counts the calls of each path, and `buffers` has the values of buffers after the run. `shared`
    has all paths of each module that has several, by the first path, which names the module's
    calls. `unseen` has the classes of modules without a recorded call, by path: torch traces the
    bodies of branches and loops, and hooks record nothing there. The run changes neither the
    arguments nor the module.
    """

    def __init__(
        self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.calls: list[ModuleCall] = []
        self.times: Counter[str] = Counter()
        self.shared = _shared(model)
        self._open: list[ModuleCall] = []
        with torch.no_grad(), same_buffers(model), self._recording(model):
            own_args, own_kwargs = kept((tuple(args), dict(kwargs)))
            self.result = kept(model(*own_args, **own_kwargs))
            self.unseen = {
                path: type(module).__name__
                for path, module in model.named_modules()
                if not self.times[path] and _has_forward(module)
            }
            self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    @contextmanager
    def _recording(self, model: torch.nn.Module) -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            kind = type(module).__name__
            handles.append(module.register_forward_pre_hook(self._starts(path, kind)))
            handles.append(module.register_forward_hook(self._ended))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _starts(self, path: str, kind: str) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling():  # the body of a `cond` or loop, which torch traces
                return
            number = self.times[path]
            self.times[path] += 1
            name = f"{path}@{number}" if number and path else path
            self._open.append(ModuleCall(name, kind, {name}))

        return hook

    def _ended(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        call = self._open.pop()
        given = set(map(id, pytree.tree_leaves(args)))
        call.passes_on = all(id(leaf) in given for leaf in pytree.tree_leaves(result))
        call.results = pytree.tree_leaves(kept(result))
        self.calls.append(call)
        if self._open:
            self._open[-1].calls |= call.calls


def _shared(model: torch.nn.Module) -> dict[str, list[str]]:
    """Returns the paths of each module that has several, by the first one."""
    paths: dict[torch.nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return {several[0]: several for several in paths.values() if len(several) > 1}


def _has_forward(module: torch.nn.Module) -> bool:
    """Whether a module can be called; lists of modules cannot."""
    return type(module).forward is not torch.nn.Module.forward


def kept(result: Any) -> Any:
    """Returns a result with copies of its tensors, which later in-place operators do not change."""
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, result)


@contextmanager
def same_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Restores the values of buffers at the end."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
