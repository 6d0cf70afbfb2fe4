"""1x1 convolutions and resizes or means in the more expensive order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from clew.advice.axes import is_pointwise
from clew.advice.candidate import Candidate, Change
from clew.advice.graphs import op_of, replacing, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr
from clew.ir.rewrite import rebuild
from clew.ops.registry import get_op

_IMAGE = 4


@register_advice
class EarlyPointwise(AdviceRule):
    """A 1x1 convolution with its bias and a resize or a mean over pixels commute, since both are
    linear and weights of resizes sum to 1. Whichever order has fewer pixels in the convolution is
    cheaper: before an upsampling, after a mean.
    """

    name: ClassVar[str] = "early-pointwise"
    title: ClassVar[str] = "1x1 convolutions after an upsampling, or before a mean"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each place."""
        done: set[int] = set()
        for call in reversed(subject.calls):
            if call.id in done:
                continue
            for first, second in ((_is_resample, _is_layer), (_is_layer, _is_resample)):
                chain = _chain(subject, call, second)
                inner = chain[-1].args[0] if chain else None
                before = _chain(subject, inner, first) if isinstance(inner, Call) else []
                if not before or not isinstance(inner, Call):
                    continue
                if not all(len(subject.readers(n)) == 1 for n in (*chain[1:], *before)):
                    continue
                pixels = [_pixels(c) for c in (before[-1].args[0], inner, call)]
                later = second is _is_layer
                if pixels[1] <= pixels[0] if later else pixels[1] <= pixels[2]:
                    continue
                value = before[-1].args[0]
                done.update(n.id for n in (*chain, *before))
                what = "before the upsampling" if later else "after the mean over pixels"
                fewer = pixels[1] / (pixels[0] if later else pixels[2])
                yield Candidate(
                    self.name,
                    f"compute {_layers_text(chain if later else before)} {what}",
                    f"it then computes {fewer:.3g} times fewer pixels, and the result is the same",
                    "swap the two layers",
                    layers_of([*before, *chain]),
                    "attribute",
                    "rounding",
                    Change(replacing(self.name, call, [value], _swapped(chain, before))),
                )
                break


def _layers_text(layers: Sequence[Call]) -> str:
    has_product = any(op_of(c) == "nn.conv2d" for c in layers)
    return "the 1x1 convolution" if has_product else "the elementwise function"


def _swapped(chain: Sequence[Call], before: Sequence[Call]):  # type: ignore[no-untyped-def]
    def build(x: Expr) -> Expr:
        for one in (*reversed(chain), *reversed(before)):
            x = _on(one, x)
        return x

    return build


def _on(call: Call, x: Expr) -> Expr:
    """Returns a call on another value, of another size."""
    if op_of(call) == "resize":
        before, after = call.args[0].tensor.concrete, call.tensor.concrete
        shape = list(call.attrs.shape)
        axes = [a % len(before) for a in call.attrs.axes] or list(range(len(before)))
        for n, axis in enumerate(axes):
            if before[axis] == after[axis]:
                shape[n] = x.tensor.concrete[axis]
        return get_op("resize")(x, **{**call.attrs.plain, "shape": tuple(shape)})
    return rebuild(call, [x, *call.children[1:]])


def _chain(subject: Subject, call: Call, fits) -> list[Call]:  # type: ignore[no-untyped-def]
    """Returns calls that fit from one down, each of which reads the next."""
    found: list[Call] = []
    node: Expr = call
    while isinstance(node, Call) and shape_of(node) is not None and fits(subject, node):
        found.append(node)
        node = node.args[0]
    return found


def _is_layer(subject: Subject, call: Call) -> bool:
    """Whether a call is a 1x1 convolution, or adds a constant to each channel."""
    if op_of(call) == "nn.conv2d":
        plain = call.attrs.data_layout == "NCHW" and not call.attrs.out_layout
        return plain and subject.is_fixed(call.args[1]) and is_pointwise(call)
    if op_of(call) != "add" or len(call.tensor.shape) != _IMAGE:
        return False
    other = call.args[1]
    shape = shape_of(other)
    return subject.is_fixed(other) and shape is not None and set(shape[-2:]) <= {1}


def _is_resample(subject: Subject, call: Call) -> bool:
    """Whether each pixel of a call's result is a mean of pixels of its operand, with weights that
    sum to 1.
    """
    name, shape = op_of(call), shape_of(call.args[0]) if call.args else None
    if shape is None or len(shape) != _IMAGE:
        return False
    if name == "nn.global_avg_pool2d":
        return bool(call.attrs.layout == "NCHW")
    if name == "nn.avg_pool2d":
        return call.attrs.layout == "NCHW" and not any(call.attrs.padding)
    if name == "mean":
        return {a % _IMAGE for a in call.attrs.axes} == {2, 3} and bool(call.attrs.keepdims)
    after = shape_of(call)
    if name != "resize" or after is None or len(call.args) != 1:
        return False
    inside = call.attrs.coordinates != "tf_crop_and_resize"
    return bool(inside and shape[:2] == after[:2] and not call.attrs.exclude_outside)


def _pixels(node: Expr) -> int:
    shape = shape_of(node)
    assert shape is not None
    return shape[2] * shape[3] if len(shape) == _IMAGE else 1
