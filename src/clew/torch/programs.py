"""Compiled FX graphs as callables for torch, and the list of those compiled last."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple, overload

import numpy as np

from clew.api.compiled_model import CompiledModel
from clew.frontends.torch.result_views import ResultViews
from clew.frontends.torch.tensors import Array, reader, writer
from clew.frontends.torch.traced import TracedInput, TracedOutput
from clew.runtime.input_spec import InputSpec, elements
from clew.support.locks import Lock
from clew.support.shown import Shown, counted
from clew.torch.direct import Direct, direct_call
from clew.torch.report import Left
from clew.torch.weights import Weights

_KEPT: Final = 256  # sets of weights of one graph, as of equal blocks of a model


class _Current(NamedTuple):
    """The model that a program calls, the check of whether it fits, and how to call it on torch's
    memory, if that is possible.
    """

    compiled: CompiledModel
    weights: Weights
    direct: Direct | None


class TorchProgram:
    """One FX graph, or a part of one, as a compiled model with frozen weights.

    `compiled` has kernels, trace, profile and explorer. Called by torch with tensors.
    """

    def __init__(
        self,
        build: Callable[[Sequence[Any]], CompiledModel],
        inputs: Sequence[TracedInput],
        outputs: Sequence[TracedOutput],
        weights: Sequence[int],
        args: Sequence[Any],
        views: ResultViews | None = None,
    ) -> None:
        self._build = build
        self._made: dict[tuple[int, ...], tuple[CompiledModel, Weights]] = {}
        self._readers = [(given.position, _reader(given)) for given in inputs]
        self._fixed = {n: o.value for n, o in enumerate(outputs) if o.fixed}
        self._frozen = tuple(weights)
        self._recorded: list[tuple[CompiledModel, list[Array]]] | None = None
        self._inputs = inputs
        self._outputs = [o for o in outputs if not o.fixed]
        self._writers = list(map(_writer, self._outputs))
        self._add_views = views.function() if views is not None and views.calls else None
        self._lock = Lock()
        self._current = self._take(args)

    def __call__(self, *args: Any) -> list[Any]:
        """Returns the results for the graph's arguments, weights included."""
        compiled, weights, direct = self._current  # read once: another thread may set it
        if not weights.same(args):
            compiled, _, direct = self._take(args)
        results = None
        if direct is not None and self._recorded is None:
            results = direct(args)
        if results is None:
            results = self._converted(compiled, args)
        for position, value in self._fixed.items():
            results.insert(position, value)
        if self._add_views is not None:
            self._add_views(args, results)
        return results

    @property
    def compiled(self) -> CompiledModel:
        """The model with the weights of the latest call."""
        return self._current.compiled

    def _converted(self, compiled: CompiledModel, args: Sequence[Any]) -> list[Any]:
        """Runs a model on NumPy arrays, and returns the results that are not fixed."""
        given = [read(args[n]) for n, read in self._readers]
        checked = list(map(InputSpec.check, compiled.inputs, given))
        if self._recorded is not None:
            self._recorded.append((compiled, [np.array(array) for array in checked]))
        found = compiled.run_checked(checked)
        return [write(array) for write, array in zip(self._writers, found, strict=True)]

    @contextmanager
    def recorded(self) -> Iterator[list[tuple[CompiledModel, list[Array]]]]:
        """Yields a list to which each call adds the compiled model and its inputs. Meanwhile, calls
        convert tensors to arrays.
        """
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    def _take(self, args: Sequence[Any]) -> _Current:
        """Makes the model with the weights among the arguments the current one, and returns it. It
        is compiled if there is none: kernels come from the cache, and packing is done again.
        """
        with self._lock:
            key = tuple(id(args[n]) for n in self._frozen)
            compiled, weights = self._made.get(key, (None, None))
            if compiled is None or weights is None or not weights.same(args):
                compiled, weights = self._build(args), Weights(self._frozen, args)
                weights.when_expired(partial(self._made.pop, key, None))
                self._made.pop(key, None)
                while len(self._made) >= _KEPT:
                    self._made.pop(next(iter(self._made)))
                self._made[key] = compiled, weights
            direct = direct_call(compiled, self._inputs, self._outputs)
            self._current = _Current(compiled, weights, direct)
            return self._current


def _reader(given: TracedInput) -> Callable[[Any], Array]:
    if given.dtype is not None:
        return reader(given.dtype)
    if given.is_size:
        return elements
    return lambda value: np.asarray(value, np.int64)


def _writer(output: TracedOutput) -> Callable[[Array], Any]:
    if output.dtype is None:
        return lambda array: array.item()
    write = writer(output.dtype)
    if not output.order:
        return write
    return lambda array: write(array).permute(output.order)


@dataclass(repr=False)
class Programs(Shown, Sequence[TorchProgram]):
    """The programs of one compiled function or module, in the order in which torch compiled them,
    and the calls that stay in eager.
    """

    programs: list[TorchProgram] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

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
    """Returns the function that the outermost call of a compiled function calls, None if that is
    unknown.
    """
    found: Any = None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            found = frame.f_locals.get("fn", found)
        frame = frame.f_back
    return found
