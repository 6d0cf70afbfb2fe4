"""Outputs that cost time, and that callers may not need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from clew.advice.candidate import Candidate, Change
from clew.advice.graphs import without_outputs
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr, Tuple
from clew.ir.module import Module
from clew.ir.visit import post_order


@register_advice
class DeadOutputs(AdviceRule):
    """An output that nobody reads keeps its layers alive, and keeps a value in memory that
    could be fused into its reader: auxiliary heads, hidden states of all layers, pooled outputs.
    """

    name: ClassVar[str] = "dead-outputs"
    title: ClassVar[str] = "outputs that cost time, and that callers may not need"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each output but the first, and one for all of these."""
        body, names = subject.module.main.body, subject.module.output_names
        if not isinstance(body, Tuple) or len(names) < 2:
            return
        fields = dict(zip(names, body.fields, strict=True))
        for name in names[1:]:
            yield self._candidate(fields, (name,))
        if len(names) > 2:
            yield self._candidate(fields, names[1:])

    def _candidate(self, fields: dict[str, Expr], gone: tuple[str, ...]) -> Candidate:
        kept = {n.id for n in post_order([f for name, f in fields.items() if name not in gone])}
        only = [n for n in post_order([fields[name] for name in gone]) if n.id not in kept]
        layers = layers_of([n for n in only if isinstance(n, Call)] or [fields[n] for n in gone])

        def module(module: Module) -> Module:
            return without_outputs(module, gone)

        what = (
            f"the output {gone[0]!r}"
            if len(gone) == 1
            else f"all outputs but {next(iter(fields))!r}"
        )
        return Candidate(
            self.name,
            f"drop {what}, if nothing reads it",
            "layers that only it needs are computed in every call"
            if only
            else "its value must be written to memory, and is not fused into its readers",
            "return fewer values from forward(), or name fewer outputs in the export",
            layers,
            "exporter",
            "interface",
            Change(module=module),
        )
