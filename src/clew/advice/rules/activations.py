"""Activations that have a cheaper form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from clew.advice.candidate import Candidate, Change, Effort, Licence
from clew.advice.graphs import op, replacing, together
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr
from clew.passes.simplify.canonical_blocks import gelu, mish, silu
from clew.patterns import Rule, find_all, is_op, wildcard
from clew.patterns.pattern import Pattern

_SAVED: Final = 0.25  # of the time of the layers, before it is measured
_LEAST: Final = 0.01  # of a call, fused activations being part of their products' time
_x = wildcard()


class _Cheaper(NamedTuple):
    """An activation as one operator and as exporters decompose it, and a cheaper one."""

    title: str
    whole: Pattern
    parts: Rule
    instead: str
    operator: str
    attrs: dict[str, str]
    licence: Licence
    effort: Effort
    how: str


_TRAINED: Final = "train the model with it"
_ACTIVATIONS: Final = (
    _Cheaper(
        "GELU by erf", is_op("nn.gelu")(_x).has_attr(approximate="none"), gelu, "GELU by tanh",
        "nn.gelu", {"approximate": "tanh"}, "approximation", "attribute",
        "nn.GELU(approximate='tanh'), or hidden_act='gelu_pytorch_tanh'",
    ),
    _Cheaper(
        "SiLU", is_op("nn.silu")(_x), silu, "hard swish", "nn.hard_swish", {}, "retraining",
        "retraining", f"nn.Hardswish(); {_TRAINED}",
    ),
    _Cheaper(
        "Mish", is_op("nn.mish")(_x), mish, "hard swish", "nn.hard_swish", {}, "retraining",
        "retraining", f"nn.Hardswish(); {_TRAINED}",
    ),
)  # fmt: skip


@register_advice
class Activations(AdviceRule):
    """GELU by erf can be computed by tanh, which moves values by 5e-4 at most. SiLU and Mish can be
    replaced by hard swish, with which the model must be trained again.
    """

    name: ClassVar[str] = "activations"
    title: ClassVar[str] = "activations that have a cheaper form"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields one candidate for each kind of activation in the model, with all its sites."""
        for kind in _ACTIVATIONS:
            sites = dict(_sites(kind, subject))
            if not sites:
                continue

            def build(x: Expr, kind: _Cheaper = kind) -> Expr:
                return op(kind.operator, x, **kind.attrs)

            yield Candidate(
                self.name,
                f"compute {len(sites)} {kind.title} as {kind.instead}",
                f"{kind.title} takes more instructions per element",
                kind.how,
                layers_of([n for _, nodes in sites.values() for n in nodes]),
                kind.effort,
                kind.licence,
                Change(
                    together(
                        replacing(self.name, root, [value], build)
                        for root, (value, _) in sites.items()
                    )
                ),
                share=_SAVED,
                least=_LEAST,
            )


def _sites(kind: _Cheaper, subject: Subject) -> Iterator[tuple[Call, tuple[Expr, list[Expr]]]]:
    """Yields the roots of an activation, with the value it is applied to and its operators."""
    main = subject.module.main
    for match in find_all(kind.whole, main):
        assert isinstance(match.root, Call)
        yield match.root, (match.root.args[0], [match.root])
    for match in find_all(kind.parts.pattern, main):
        made = kind.parts.build(match)
        if isinstance(made, Call) and isinstance(match.root, Call):
            yield match.root, (made.args[0], [n for n in match.nodes if isinstance(n, Call)])
