"""A region as a list of steps on tensors of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clew.backends.torch.registry import Step, step_of
from clew.backends.torch.tensors import Array, array_of, tensor_of
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from clew.ir.types import TupleType, to_numpy
from clew.ir.visit import post_order


@dataclass(frozen=True)
class _Instruction:
    """A step with the slots of its operands and results, and those that it reads last."""

    step: Step
    operands: tuple[int, ...]
    results: tuple[int, ...]
    several: bool
    dead: tuple[int, ...]


class TorchRegion:
    """A function of operator calls that runs in eager mode, on `threads` threads. It may be called
    from several threads at once.

    Torch has one number of threads for all callers. If it differs, it is set for the call and set
    back afterwards, so other users of torch may see the program's number meanwhile.

    Inputs are read where they are. Results are arrays over memory of torch; they may share it with
    inputs, constants and each other.

    Errors: Refused for a call that torch does not run.
    """

    def __init__(self, function: Function, threads: int) -> None:
        self.function = function
        self._threads = threads
        self._slots: list[torch.Tensor | None] = []
        self._places: dict[int, tuple[int, ...]] = {}
        self._inputs = [(self._slot(p), to_numpy(p.tensor.dtype)) for p in function.params]
        made = [m for n in post_order(function.body) if (m := self._made(n)) is not None]
        self._results = self._places[function.body.id]
        self._instructions = self._with_ends(made)

    # --- construction ---

    def _slot(self, node: Expr, value: torch.Tensor | None = None) -> int:
        self._slots.append(value)
        self._places[node.id] = (len(self._slots) - 1,)
        return len(self._slots) - 1

    def _made(self, node: Expr) -> tuple[Step, tuple[int, ...], tuple[int, ...], bool] | None:
        """Returns the step of a call with the slots of its operands and results. Other nodes only
        take their slots.
        """
        match node:
            case Constant():
                self._slot(node, tensor_of(node.data))
            case Tuple():
                self._places[node.id] = tuple(s for f in node.fields for s in self._places[f.id])
            case TupleGetItem():
                self._places[node.id] = (self._places[node.value.id][node.index],)
            case Call():
                return self._called(node)
        return None

    def _called(self, node: Call) -> tuple[Step, tuple[int, ...], tuple[int, ...], bool]:
        step = step_of(node)
        operands = tuple(self._places[a.id][0] for a in node.args)
        several = isinstance(node.type, TupleType)
        count = len(node.type.fields) if isinstance(node.type, TupleType) else 1
        first = len(self._slots)
        self._slots += [None] * count
        self._places[node.id] = tuple(range(first, first + count))
        return step, operands, self._places[node.id], several

    def _with_ends(
        self, made: Sequence[tuple[Step, tuple[int, ...], tuple[int, ...], bool]]
    ) -> list[_Instruction]:
        """Returns instructions that free values after their last use."""
        seen = {n for n, value in enumerate(self._slots) if value is not None} | set(self._results)
        found = []
        for step, operands, results, several in reversed(made):
            dead = tuple(s for s in dict.fromkeys((*operands, *results)) if s not in seen)
            seen.update(dead)
            found.append(_Instruction(step, operands, results, several, dead))
        return found[::-1]

    # --- runs ---

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        before = torch.get_num_threads()
        if before == self._threads:
            return self._run(arrays)
        torch.set_num_threads(self._threads)
        try:
            return self._run(arrays)
        finally:
            torch.set_num_threads(before)

    def _run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        values = list(self._slots)
        with torch.inference_mode():
            for (slot, dtype), array in zip(self._inputs, arrays, strict=True):
                if array.dtype != dtype:
                    raise TypeError(f"an input is {array.dtype}, expected {dtype}")
                values[slot] = tensor_of(np.asarray(array))
            for one in self._instructions:
                found = one.step(*[values[n] for n in one.operands])
                if one.several:
                    for slot, tensor in zip(one.results, found, strict=True):
                        values[slot] = tensor
                else:
                    values[one.results[0]] = found
                for slot in one.dead:
                    values[slot] = None
            results = [values[n] for n in self._results]
            del values
            return tuple(array_of(t.contiguous()) for t in results if t is not None)
