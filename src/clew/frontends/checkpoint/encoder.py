"""Builds the graph of an encoder such as BERT: tokens in, a vector for each token out, and one for
each text if the folder says how to make it.

    input_ids: i64[batch, seq], attention_mask: i64[batch, seq], token_type_ids: i64[batch, seq]
    -> last_hidden_state: f32[batch, seq, hidden], sentence_embedding: f32[batch, hidden]

The names are those of exported ONNX models. Layers have the names of the modules that own their
weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.checkpoint.encoders import Encoder, Pooling
from clew.frontends.checkpoint.graph import COMPUTED, Origin, Weight, WeightedGraph
from clew.frontends.lowering.attention import Attention, part, places
from clew.frontends.lowering.norm import normalized
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ir.module import Module
from clew.ir.types import TensorType

IDS: Final = "input_ids"
MASK: Final = "attention_mask"
TYPES: Final = "token_type_ids"
_LEAST_NORM: Final = 1e-12
_LEAST_COUNT: Final = 1e-9


class EncoderGraph(WeightedGraph):
    """Builds the module of an encoder from its weights."""

    def __init__(
        self,
        encoder: Encoder,
        weights: Mapping[str, Weight],
        sizes: tuple[Dim, Dim],
        origin: Origin,
    ) -> None:
        """`sizes` are those of the batch and of the tokens of a text."""
        super().__init__(weights, origin)
        self._of = encoder
        self._batch, self._rows = sizes

    def module(self) -> Module:
        """Returns the module."""
        of = self._of
        given = TensorType((self._batch, self._rows), "i64")
        ids, mask = self._builder.input(IDS, given), self._builder.input(MASK, given)
        types = self._builder.input(TYPES, given) if of.types else None
        seen = call("not_equal", mask, scalar(0, "i64"))
        x = self._embedded(ids, types)
        for n in range(of.layers):
            x = self._block(of.names.layer.format(n), x, seen)
        results, names = [x], ["last_hidden_state"]
        if of.pooling is not None:
            results.append(self._pooled(x, seen, of.pooling))
            names.append("sentence_embedding")
        return self._builder.module(results, names, {})

    def _embedded(self, ids: Expr, types: Expr | None) -> Expr:
        of, names = self._of, self._of.names

        def rows(name: str, indices: Expr, count: int) -> Expr:
            return self._layer(
                name,
                "embedding",
                lambda: self._looked_up(f"{name}.weight", indices, count, of.hidden),
            )

        x = rows(names.words, ids, of.vocabulary)
        if types is not None:
            kind = rows(names.types, types, of.types)
            x = self._layer(f"{names.types}_add", "add", lambda: call("add", x, kind))
        found = places(self._rows, of.first_position)
        place = rows(names.positions, found, of.positions)
        whole = self._layer(f"{names.positions}_add", "add", lambda: call("add", x, place))
        return self._norm(names.norm, whole)

    def _norm(self, name: str, x: Expr) -> Expr:
        def make() -> Expr:
            scale, bias = (self._wide(f"{name}.{n}", self._of.hidden) for n in ("weight", "bias"))
            return normalized(x, scale, bias, x.tensor.rank - 1, self._of.epsilon)

        return self._layer(name, "layer_norm", make)

    def _block(self, layer: str, x: Expr, seen: Expr) -> Expr:
        of, names = self._of, self._of.names
        lead = (self._batch, self._rows, of.heads, of.hidden // of.heads)
        q, k, v = (
            reshaped(self._product(f"{layer}.{name}", x, of.hidden, of.hidden), lead)
            for name in (names.query, names.key, names.value)
        )
        todo = Attention(q, k, v)
        todo.masks.append(reshaped(seen, (self._batch, 1, 1, self._rows)))
        attended = self._layer(f"{layer}.{names.attention}", "attention", todo.built)
        attended = self._product(f"{layer}.{names.output}", attended, of.hidden, of.hidden)
        x = self._added(f"{layer}.{names.after_attention}", x, attended)
        inner = self._product(f"{layer}.{names.up}", x, of.hidden, of.inner)
        act = self._layer(
            f"{layer}.{names.up}.act_fn", of.activation.name, lambda: of.activation.of(inner)
        )
        down = self._product(f"{layer}.{names.down}", act, of.inner, of.hidden)
        return self._added(f"{layer}.{names.after_mlp}", x, down)

    def _added(self, norm: str, x: Expr, y: Expr) -> Expr:
        return self._norm(norm, self._layer(f"{norm}_add", "add", lambda: call("add", x, y)))

    def _pooled(self, x: Expr, seen: Expr, pooling: Pooling) -> Expr:
        """Returns one vector for each text."""
        of = self._of

        def make() -> Expr:
            if pooling.kind == "cls":
                found = reshaped(part(x, 1, 0, 1), (self._batch, of.hidden))
            else:
                counted = cast(reshaped(seen, (self._batch, self._rows, 1)), COMPUTED)
                total = call("sum", call("multiply", x, counted), axes=(1,), keepdims=False)
                count = call("sum", counted, axes=(1,), keepdims=False)
                count = call("maximum", count, _number(_LEAST_COUNT))
                found = call("divide", total, count)
            if pooling.is_normalized:
                square = call("multiply", found, found)
                norm = call("sqrt", call("sum", square, axes=(1,), keepdims=True))
                found = call("divide", found, call("maximum", norm, _number(_LEAST_NORM)))
            return found

        return self._layer("pooling", "pooling", make)


def _number(value: float) -> Expr:
    return scalar(value, COMPUTED)
