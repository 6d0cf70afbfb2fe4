"""Compiled FX graphs, as torch calls them, and the list of those compiled last."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, overload

import numpy as np
import torch

from clew.compiled import CompiledModel
from clew.frontends.torch.traced import TracedOutput
from clew.runtime.input_spec import InputSpec
from clew.support.locks import Lock
from clew.support.shown import Shown, counted
from clew.torch.report import Left
from clew.torch.tensors import Array, reader, writer


class Weights:
    """Tensors whose values a program holds, with what tells that they changed: the tensor itself,
    and the version that operators in place count up.
    """

    def __init__(self, positions: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
        self.positions = tuple(positions)
        self.tensors = tuple(tensors)
        self.versions = [t._version for t in tensors]

    def same(self, args: Sequence[Any]) -> bool:
        """Whether the arguments hold the same weights, unchanged."""
        for position, tensor in zip(self.positions, self.tensors, strict=True):
            if args[position] is not tensor:
                return False
        return [t._version for t in self.tensors] == self.versions


class TorchProgram:
    """One FX graph, or a part of one, as a compiled model with frozen weights.

    `compiled` has kernels, trace, profile and explorer. Called by torch with tensors.
    """

    def __init__(
        self,
        build: Callable[[Sequence[Any]], CompiledModel],
        inputs: Sequence[tuple[int, torch.dtype | None]],
        outputs: Sequence[TracedOutput],
        weights: Sequence[int],
        args: Sequence[Any],
    ) -> None:
        self._build = build
        self._readers = [
            (position, _integer if dtype is None else reader(dtype)) for position, dtype in inputs
        ]
        self._writers = [_writer(o) for o in outputs if not o.fixed]
        self._fixed = {n: o.value for n, o in enumerate(outputs) if o.fixed}
        self._frozen = tuple(weights)
        self.compiled = build(args)
        self._weights = Weights(weights, [args[n] for n in weights])
        self._lock = Lock()

    def __call__(self, *args: Any) -> list[Any]:
        """Returns the results for the graph's arguments, weights included."""
        if not self._weights.same(args):
            self._renew(args)
        given = [read(args[n]) for n, read in self._readers]
        found = self.compiled.run_checked(list(map(InputSpec.check, self.compiled.inputs, given)))
        results = [write(array) for write, array in zip(self._writers, found, strict=True)]
        for position, value in self._fixed.items():
            results.insert(position, value)
        return results

    def _renew(self, args: Sequence[Any]) -> None:
        """Compiles again with other weights: kernels come from the cache, packing is done again."""
        with self._lock:
            if not self._weights.same(args):
                self.compiled = self._build(args)
                self._weights = Weights(self._frozen, [args[n] for n in self._frozen])


def _integer(value: Any) -> Array:
    return np.asarray(value, np.int64)


def _writer(output: TracedOutput) -> Callable[[Array], Any]:
    if output.dtype is None:
        return lambda array: array.item()
    write = writer(output.dtype)
    if not output.order:
        return write
    return lambda array: write(array).permute(output.order)


@dataclass
class Programs(Shown, Sequence[TorchProgram]):
    """The programs of one compiled function or module, in the order in which torch compiled them,
    and the calls that stay in eager.
    """

    programs: list[TorchProgram] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    breaks: int = 0

    def _about(self) -> str:
        kernels = sum(len(p.compiled.kernels) for p in self.programs if p.compiled.is_built)
        eager = f"; {counted(len(self.left), 'call')} in eager" if self.left else ""
        return f"{counted(len(self.programs), 'program')}, {counted(kernels, 'kernel')}{eager}"

    @overload
    def __getitem__(self, index: int) -> TorchProgram: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TorchProgram]: ...
    def __getitem__(self, index: int | slice) -> TorchProgram | Sequence[TorchProgram]:
        return self.programs[index]

    def __len__(self) -> int:
        return len(self.programs)

    def __iter__(self) -> Iterator[TorchProgram]:
        return iter(self.programs)

    def report(self) -> str:
        """Returns the calls that stay in eager as text, one in a line."""
        return "\n".join(map(str, self.left)) or "nothing stays in eager"


_latest: Final[dict[str, Any]] = {"owner": None, "programs": Programs()}
_lock: Final = Lock()


def last() -> Programs:
    """Returns the programs of the function or module that `torch.compile` compiled last."""
    found: Programs = _latest["programs"]
    return found


def current() -> Programs:
    """Returns the list that a graph being compiled belongs to: that of the function or module whose
    call led here.
    """
    owner = _owner()
    with _lock:
        if owner is None or owner is not _latest["owner"]:
            _latest.update(owner=owner, programs=Programs())
        return last()


def _owner() -> Any:
    """Returns what the outermost call of a compiled function calls, None if that is unknown."""
    found: Any = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            found = frame.f_locals.get("fn", found)
        frame = frame.f_back
    return found
