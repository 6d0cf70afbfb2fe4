"""Inputs that are the same in every call, such as masks of ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from clew.advice.candidate import Array, Arrays, Candidate, Change
from clew.advice.channels import PRODUCTS
from clew.advice.graphs import dtype_of, op_of, with_fixed_input
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, is_float

_SAVED = 0.1  # of the layers that read it
_CONVERTING = (
    "cast", "reshape", "transpose", "gather", "gather_nd", "gather_elements", "slice",
    "broadcast_to", "tile", "logical_and", "logical_not", "equal", "greater", "less", "not_equal",
    "greater_equal", "less_equal", "multiply", "subtract", "add", "where", "minimum", "maximum",
)  # fmt: skip


@register_advice
class FixedInputs(AdviceRule):
    """An input that has the same value in all samples can be a constant. A mask of ones, which
    hides nothing, then disappears with what applies it. Without samples, only masks are candidates:
    inputs that select what a softmax reads.
    """

    name: ClassVar[str] = "fixed-inputs"
    title: ClassVar[str] = "inputs with the same value in every call, and masks that hide nothing"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each such input."""
        if len(subject.module.main.params) < 2:
            return
        for number, param in enumerate(subject.module.main.params):
            values = [sample[number] for sample in subject.samples]
            readers = _nodes_behind(subject, param)
            if not readers or not isinstance(param.type, TensorType):
                continue
            if not subject.given and not param.type.is_static:
                continue
            if subject.given and len(values) > 1:
                if all(np.array_equal(values[0], other) for other in values[1:]):
                    yield self._candidate(
                        subject, param, values[0], readers, "equal in all samples"
                    )
            elif not subject.given and _is_mask(subject, param):
                ones = np.ones_like(values[0])
                yield self._candidate(subject, param, ones, readers, "a mask; of ones, it hides "
                                      "nothing")  # fmt: skip

    def _candidate(
        self, subject: Subject, param: Var, value: Array, readers: list[Expr], why: str
    ) -> Candidate:
        name = param.name
        is_one = bool(np.all(value == 1))

        def module(module: Module) -> Module:
            return with_fixed_input(module, name, value)

        def given(inputs: Arrays) -> Arrays:
            return {**inputs, name: value}

        def inputs(inputs: Arrays) -> Arrays:
            return {n: v for n, v in inputs.items() if n != name}

        text = "ones" if is_one else "its value"
        return Candidate(
            self.name,
            f"fix the input {name!r} to {text}",
            f"the input is {why}, and what depends on it alone is computed once",
            f"leave {name} out of the arguments of the export"
            + (", as in model(input_ids) without attention_mask" if is_one else ""),
            layers_of([n for n in readers if isinstance(n, Call)]),
            "exporter",
            "interface",
            Change(module=module, given=given, inputs=inputs),
            share=_SAVED,
        )


def _nodes_behind(subject: Subject, param: Var) -> list[Expr]:
    """Returns what reads an input, up to the operators that combine it with other values."""
    found: dict[int, Expr] = {}
    todo: list[Expr] = [param]
    while todo:
        for reader in subject.readers(todo.pop()):
            if reader.id not in found:
                found[reader.id] = reader
                if op_of(reader) in _CONVERTING:
                    todo.append(reader)
    return list(found.values())


def _is_mask(subject: Subject, param: Var) -> bool:
    """Whether an input decides what a softmax reads: it is smaller than what that reads, is not
    itself added to it, and no product reads it.
    """
    behind = [n for n in _nodes_behind(subject, param) if isinstance(n, Call)]
    if any(op_of(n) in PRODUCTS for n in behind):
        return False
    readers = subject.readers(param)
    if is_float(dtype_of(param)) and any(op_of(n) in ("add", "nn.softmax") for n in readers):
        return False
    own = param.tensor.size
    sizes = [n.args[0].tensor.size for n in behind if op_of(n) == "nn.softmax"]
    return isinstance(own, int) and any(isinstance(s, int) and own < s for s in sizes)
