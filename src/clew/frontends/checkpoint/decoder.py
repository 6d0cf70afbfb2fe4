"""Builds the graph of a `Decoder`: tokens in, logits out, with a cache of keys and values.

    input_ids: i64[batch, seq], past_key_values.N.key: f32[batch, groups, past, head_size], ...
    -> logits: f32[batch, seq, vocabulary], present.N.key: f32[batch, groups, past + seq, ...], ...

The names are those of exported ONNX models, so a session finds the state by itself. Layers have the
names of the modules that own their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np

from clew.frontends.builder import GraphBuilder
from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.checkpoint.architectures import Block, Decoder, Rotary
from clew.frontends.checkpoint.sizes import PAST, PRESENT, TOKENS, Sizes, cache_names
from clew.frontends.lowering.attention import Attention, part, places
from clew.frontends.lowering.norm import normalized, root_mean_square
from clew.frontends.lowering.rotary import Rotation
from clew.frontends.names import display
from clew.ir.dims import Dim
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.types import TensorType, is_float, to_numpy
from clew.support.dataclass import dataclass
from clew.support.errors import ModelError
from clew.trace.span import Source

_COMPUTED: Final = "f32"


class Weight(Protocol):
    """A weight in a file: numbers, or codes with their scales."""

    @property
    def type(self) -> TensorType:
        """The type of its numbers."""
        ...

    def constants(self, name: str) -> tuple[Constant, ...]:
        """Returns its parameters. Those with axes have the same number of rows."""
        ...

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Returns numbers from the parameters, or from the same rows of each of them."""
        ...


@dataclass(frozen=True)
class Origin:
    """Where the weights are: the reader's name, what messages call the place, and the hint if a
    weight is missing.
    """

    frontend: str
    place: str
    hint: str


class DecoderGraph:
    """Builds the module of a decoder from its weights.

    Errors: M072 for a weight that is missing or has another shape; those of `GraphBuilder`.
    """

    def __init__(
        self, decoder: Decoder, weights: Mapping[str, Weight], sizes: Sizes, origin: Origin
    ) -> None:
        self._of = decoder
        self._weights = weights
        self._origin = origin
        self._builder = GraphBuilder(origin.frontend)
        self._constants: dict[str, tuple[Constant, ...]] = {}
        self._batch, self._rows, self._past = sizes.batch, sizes.rows, sizes.past

    def module(self) -> Module:
        """Returns the module. Its results are the logits of all tokens, and the cache."""
        of = self._of
        ids = self._builder.input(TOKENS, TensorType((self._batch, self._rows), "i64"))
        cache = TensorType((self._batch, of.groups, self._past, of.head_size), _COMPUTED)
        pasts = [
            tuple(self._builder.input(name, cache) for name in names)
            for names in cache_names(of, PAST)
        ]
        x = self._embedded(ids)
        results: list[Expr] = []
        for n, (block, past) in enumerate(zip(of.blocks, pasts, strict=True)):
            x, *caches = self._block(n, block, x, past)
            results += caches
        logits = self._logits(self._norm(of.names.last_norm, x))
        presents = [name for names in cache_names(of, PRESENT) for name in names]
        return self._builder.module([logits, *results], ["logits", *presents], {})

    # --- layers and parameters ---

    def _layer(self, name: str, op: str, make: Callable[[], Expr]) -> Expr:
        """Returns the result of a layer."""
        self._builder.start_layer()
        source = Source(name, op, self._origin.frontend)
        with self._builder.layer(source) as results:
            value = results.bind(0, make(), name)
        self._builder.account(source, [value])
        return value

    def _weight(self, name: str, *shape: int) -> tuple[Weight, tuple[Constant, ...]]:
        """Returns a weight, whose shape is checked, and its parameters."""
        weight = self._weights.get(name)
        if weight is None:
            raise self._missing(f"lacks the tensor {display(name)!r}")
        if weight.type.shape != shape or not is_float(weight.type.dtype):
            raise self._missing(f"has {display(name)!r} as {weight.type}, expected {list(shape)}")
        if name not in self._constants:
            with self._builder.parameter(name):
                self._constants[name] = weight.constants(name)
        return weight, self._constants[name]

    def _missing(self, what: str) -> ModelError:
        return ModelError("M072", f"{self._origin.place} {what}", hint=self._origin.hint)

    def _wide(self, name: str, *shape: int) -> Expr:
        weight, constants = self._weight(name, *shape)
        return cast(weight.joined(constants), _COMPUTED)

    def _looked_up(self, name: str, indices: Expr, *shape: int) -> Expr:
        """Returns rows of a matrix. Those of codes are widened after they are chosen."""
        weight, constants = self._weight(name, *shape)
        parts = [
            call("gather", c, indices, axis=0, from_end=False) if c.tensor.rank else c
            for c in constants
        ]
        return cast(weight.joined(parts), _COMPUTED)

    # --- parts of the model ---

    def _embedded(self, ids: Expr) -> Expr:
        of = self._of

        def tokens() -> Expr:
            name = f"{of.names.embedding}.weight"
            rows = self._looked_up(name, ids, of.vocabulary, of.hidden)
            if of.embedding_scale == 1:
                return rows
            # transformers rounds the scale to the dtype of the weights.
            dtype = self._weights[name].type.dtype
            rounded = np.float64(of.embedding_scale).astype(to_numpy(dtype))
            return call("multiply", rows, scalar(float(rounded), _COMPUTED))

        x = self._layer(of.names.embedding, "embedding", tokens)
        if not of.names.positions:
            return x

        def positions() -> Expr:
            name = f"{of.names.positions}.weight"
            stored = self._weights.get(name)
            longest = stored.type.concrete[0] if stored and stored.type.rank == 2 else 1
            found = places(self._rows, self._past)
            return call("add", x, self._looked_up(name, found, longest, of.hidden))

        return self._layer(of.names.positions, "embedding", positions)

    def _norm(self, name: str, x: Expr, size: int | None = None) -> Expr:
        of, size = self._of, size or self._of.hidden

        def make() -> Expr:
            scale = self._wide(f"{name}.weight", size)
            if of.scale_offset:
                scale = call("add", scale, scalar(of.scale_offset, _COMPUTED))
            axis = x.tensor.rank - 1
            if of.centered:
                bias = self._wide(f"{name}.bias", size)
                return normalized(x, scale, bias, axis, of.epsilon)
            return root_mean_square(x, scale, axis, of.epsilon)

        return self._layer(name, "layer_norm" if of.centered else "rms_norm", make)

    def _linear(self, name: str, x: Expr, inputs: int, outputs: int) -> Expr:
        shape = (inputs, outputs) if self._of.by_columns else (outputs, inputs)
        layout = "KN" if self._of.by_columns else "NK"

        def make() -> Expr:
            product = call(
                "nn.dense", x, self._wide(f"{name}.weight", *shape), weight_layout=layout
            )
            if f"{name}.bias" not in self._weights:
                return product
            return call("add", product, self._wide(f"{name}.bias", outputs))

        return self._layer(name, "linear", make)

    def _logits(self, x: Expr) -> Expr:
        of = self._of
        name = of.names.embedding if of.tied else of.names.head

        def make() -> Expr:
            table = self._wide(f"{name}.weight", of.vocabulary, of.hidden)
            logits: Expr = call("nn.dense", x, table, weight_layout="NK")
            if of.logit_cap:
                cap = scalar(of.logit_cap, _COMPUTED)
                logits = call("multiply", call("tanh", call("divide", logits, cap)), cap)
            return logits

        return self._layer(of.names.head, "linear", make)

    def _block(self, n: int, block: Block, x: Expr, past: Sequence[Expr]) -> list[Expr]:
        """Returns the result of a layer of the decoder, and its keys and values."""
        names, layer = self._of.names, self._of.names.layer.format(n)
        attended, *cache = self._attention(
            layer, block, self._norm(f"{layer}.{names.before_attention}", x), past
        )
        if names.after_attention:
            attended = self._norm(f"{layer}.{names.after_attention}", attended)
        whole = self._layer(f"{layer}.attention_add", "add", lambda: call("add", x, attended))
        found = self._mlp(layer, self._norm(f"{layer}.{names.before_mlp}", whole))
        if names.after_mlp:
            found = self._norm(f"{layer}.{names.after_mlp}", found)
        return [
            self._layer(f"{layer}.{names.mlp}_add", "add", lambda: call("add", whole, found)),
            *cache,
        ]

    def _mlp(self, layer: str, x: Expr) -> Expr:
        of, names = self._of, self._of.names
        op, approximate = of.activation
        attrs = {"approximate": approximate} if approximate else {}
        size = of.inner
        if names.gate_up:
            both = self._linear(f"{layer}.{names.gate_up}", x, of.hidden, 2 * size)
            up, gate = (part(both, 2, n * size, (n + 1) * size) for n in (1, 0))
        else:
            up = self._linear(f"{layer}.{names.up}", x, of.hidden, size)
            gate = self._linear(f"{layer}.{names.gate}", x, of.hidden, size) if names.gate else up

        def activated() -> Expr:
            found: Expr = call(op, gate, **attrs)
            return found if gate is up else call("multiply", found, up)

        hidden = self._layer(f"{layer}.{names.mlp}.act_fn", op.removeprefix("nn."), activated)
        return self._linear(f"{layer}.{names.down}", hidden, size, of.hidden)

    def _attention(
        self, layer: str, block: Block, x: Expr, past: Sequence[Expr]
    ) -> tuple[Expr, Expr, Expr]:
        """Returns the result of attention, and the keys and values including the cache."""
        of, names = self._of, self._of.names
        width, narrow = of.heads * of.head_size, of.groups * of.head_size
        if names.joined:
            sizes = (width, narrow, narrow)
            joined = self._linear(f"{layer}.{names.joined}", x, of.hidden, sum(sizes))
            q, k, v = fields(call("split", joined, sizes=sizes, axis=2), 3)
        else:
            q = self._linear(f"{layer}.{names.query}", x, of.hidden, width)
            k, v = (
                self._linear(f"{layer}.{name}", x, of.hidden, narrow)
                for name in (names.key, names.value)
            )
        lead = (self._batch, self._rows)
        q = reshaped(q, (*lead, of.heads, of.head_size))
        k, v = (reshaped(t, (*lead, of.groups, of.head_size)) for t in (k, v))
        if names.query_norm:
            q = self._norm(f"{layer}.{names.query_norm}", q, of.head_size)
            k = self._norm(f"{layer}.{names.key_norm}", k, of.head_size)
        if block.rotary is not None:
            turn = self._rotation(block.rotary)
            q = self._layer(f"{layer}.{names.attention}.rotary_q", "rotary", partial(turn.of, q))
            k = self._layer(f"{layer}.{names.attention}.rotary_k", "rotary", partial(turn.of, k))
        keys = self._joined(f"{layer}.{names.attention}.key_cache", past[0], k)
        values = self._joined(f"{layer}.{names.attention}.value_cache", past[1], v)
        todo = Attention(q, keys, values, ("BSHD", "BHSD", "BHSD"), scale=of.scale, causal=True)
        todo.softcap = of.softcap
        if block.window:
            todo.masks.append(self._near(block.window))
        attended = self._layer(f"{layer}.{names.attention}", "attention", todo.built)
        return self._linear(f"{layer}.{names.output}", attended, width, of.hidden), keys, values

    def _joined(self, name: str, past: Expr, new: Expr) -> Expr:
        """Appends the keys or values of this call to the cache."""

        def make() -> Expr:
            return call("concatenate", past, call("transpose", new, axes=(0, 2, 1, 3)), axis=2)

        return self._layer(name, "concatenate", make)

    def _positions(self) -> Expr:
        """Returns the positions of this call's tokens: i32[seq]."""
        return places(self._rows, self._past)

    def _rotation(self, rotary: Rotary) -> Rotation:
        """Returns cosines and sines for this call's tokens, [1, seq, 1, pairs]."""
        half = len(rotary.angles)
        angles = Constant(np.array(rotary.angles, np.float32).reshape(1, half))
        rows = cast(reshaped(self._positions(), (self._rows, 1)), _COMPUTED)
        turned = call("multiply", rows, angles)
        shape: tuple[Dim, ...] = (1, self._rows, 1, half)
        cos, sin = (reshaped(call(name, turned), shape) for name in ("cos", "sin"))
        return Rotation(cos, sin, interleaved=False)

    def _near(self, window: int) -> Expr:
        """Returns a mask of the keys within each query's window: bool[seq, past + seq]."""
        rows = reshaped(self._positions(), (self._rows, 1))
        keys = self._past + self._rows
        first = call("subtract", rows, scalar(window, "i32"))
        return call("greater", reshaped(places(keys), (1, keys)), first)
