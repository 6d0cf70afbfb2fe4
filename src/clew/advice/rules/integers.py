"""Products on 8-bit integers, and weights of 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from clew.advice.candidate import Candidate, Change
from clew.advice.graphs import op_of, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.cost.products import multiply_adds_per_cycle
from clew.ir.expr import Call
from clew.ir.module import Module
from clew.quantization import Scheme, quantize

_OPERANDS: Final = (("f32", "f32"), ("u8", "i8"))
_SAVED: Final = 0.5  # of what a higher rate saves
_LEAST: Final = 0.05
_SAVED_BYTES: Final = 0.6  # of the time of layers that are bound by reading weights
_FEW_ROWS: Final = 4
_LEAST_SHARE: Final = 0.3  # of the call, that such layers must take
_PRODUCTS: Final = ("nn.dense", "nn.conv1d", "nn.conv2d")


@register_advice
class Integers(AdviceRule):
    """Convolutions and dense layers can multiply 8-bit integers, if the machine does so faster than
    floats. Layers with few rows are bound by reading their weights, which may have 8 or 4 bits.
    """

    name: ClassVar[str] = "integers"
    title: ClassVar[str] = (
        "products that can be computed on 8-bit integers, and weights that can have 8 or 4 bits"
    )

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields the model with integers, and the model with weights of few bits."""
        products = [c for c in subject.calls if op_of(c) in _PRODUCTS and _is_layer(subject, c)]
        if not products or any(op_of(c) == "dequantize" for c in subject.calls):
            return
        few = [c for c in products if _rows(c) <= _FEW_ROWS]
        small = subject.ns(layers_of(few))
        if small > _LEAST_SHARE * subject.call_ns:
            for dtype in ("i8", "u4"):
                scheme = Scheme(activations="float", weights=dtype)
                yield self._candidate(
                    subject,
                    scheme,
                    f"store the weights of {len(few)} layers in {dtype[1:]} bits",
                    "these layers are bound by reading their weights",
                    f"clew quantize --weight-only --weights {dtype}",
                    few,
                    _SAVED_BYTES,
                )
        if subject.ns(layers_of(products)) - small > _LEAST_SHARE * subject.call_ns:
            target = subject.target
            rates = [multiply_adds_per_cycle(target, *pair) for pair in _OPERANDS]
            yield self._candidate(
                subject,
                Scheme(),
                f"multiply 8-bit integers in {len(products)} layers",
                "a vector holds four times as many 8-bit integers as floats",
                "clew quantize --calibration FOLDER, with real inputs",
                products,
                _SAVED * max(_LEAST, 1.0 - rates[0] / max(rates)),
            )

    def _candidate(
        self,
        subject: Subject,
        scheme: Scheme,
        what: str,
        why: str,
        how: str,
        calls: Sequence[Call],
        share: float,
    ) -> Candidate:
        samples = [subject.inputs_of(n) for n in range(len(subject.samples))]

        def module(module: Module) -> Module:
            data = None if scheme.is_weight_only else samples
            return quantize(module, data, scheme=scheme).module

        return Candidate(
            self.name, what, why, how, layers_of(calls), "graph", "approximation",
            Change(module=module), share=share,
        )  # fmt: skip


def _is_layer(subject: Subject, call: Call) -> bool:
    return subject.is_fixed(call.args[1]) and shape_of(call) is not None


def _rows(call: Call) -> int:
    shape = shape_of(call) or ()
    if op_of(call) != "nn.dense":
        return 1 << 30
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows
