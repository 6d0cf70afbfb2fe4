"""Batches: calls that compute several samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from clew.advice.candidate import Arrays, Candidate, Change
from clew.advice.graphs import op_of, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject
from clew.ir.expr import Attrs, Call, Constant, Expr, Function, Var
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.visit import post_order
from clew.trace.lineage import building

_BATCH: Final = 4
_SAVED: Final = 0.15
_SHAPED: Final = ("reshape", "broadcast_to")


@register_advice
class Batches(AdviceRule):
    """A layer that is bound by reading its weights reads them once for all samples of a call."""

    name: ClassVar[str] = "batches"
    title: ClassVar[str] = "calls that can compute several samples"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a batch of 4, if all inputs and outputs have one leading axis."""
        main = subject.module.main
        shapes = [shape_of(p) for p in (*main.params, *main.body.children)]
        if not main.params or not all(s and s[0] == 1 for s in shapes):
            return
        names = subject.module.input_names

        def inputs(inputs: Arrays) -> Arrays:
            return {**inputs, **{n: np.repeat(inputs[n], _BATCH, axis=0) for n in names}}

        def outputs(outputs: Arrays) -> Arrays:
            return {name: value[:1] for name, value in outputs.items()}

        yield Candidate(
            self.name,
            f"run {_BATCH} samples in a call",
            "weights are read once for all of them, and products have more rows",
            f"collect samples, and export with a batch of {_BATCH} or a free batch size",
            (),
            "exporter",
            "interface",
            Change(module=_batched, inputs=inputs, outputs=outputs, calls=_BATCH),
            share=_SAVED,
        )


def _batched(module: Module) -> Module:
    """Returns a module with a larger leading axis.

    Errors: those of operators that do not take it.
    """
    main = module.main
    new: dict[int, Expr] = {}
    for node in post_order(main.body):
        if isinstance(node, Var):
            new[node.id] = _larger(node)
        elif isinstance(node, (Constant, Function)):
            new[node.id] = node
        else:
            children = [new[c.id] for c in node.children]
            with building(node.span):
                new[node.id] = _rebuilt(node, children)
    params = [new.get(p.id) or _larger(p) for p in main.params]
    function = Function(params, new[main.body.id], main.attrs)  # type: ignore[arg-type]
    return module.with_functions({"main": function})


def _larger(var: Var) -> Var:
    shape = (_BATCH, *var.tensor.shape[1:])
    return Var(var.name, var.tensor.with_(shape=shape), span=var.span)


def _rebuilt(node: Expr, children: list[Expr]) -> Expr:
    if op_of(node) not in _SHAPED or children[0] is node.children[0]:
        return rebuild(node, children)
    assert isinstance(node, Call)
    shape = node.attrs.shape
    if shape and shape[0] == 1:
        attrs = Attrs({**node.attrs.plain, "shape": (_BATCH, *shape[1:])})
        return Call(node.op, children, attrs)
    return rebuild(node, children)
