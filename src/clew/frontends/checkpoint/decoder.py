"""Builds the graph of a `Decoder`: tokens in, logits out, with the states of each layer.

    input_ids: i64[batch, seq], past_key_values.N.key: f32[batch, groups, past, head_size], ...,
    padding: i64[batch], unscored: bool[unscored]
    -> logits: f32[batch, max(seq - unscored, 1), vocabulary],
       present.N.key: f32[batch, groups, past + seq, head_size], ...

The states of attention are a cache of keys and values, as above; those of a recurrence are
`past_key_values.N.convolution` and `past_key_values.N.recurrence`, of fixed size, and a graph with
recurrences has no `padding`. The names are those of exported ONNX models, so a session pairs states
by name. Layers are named after the modules that own their weights. By default, `padding` is 0 and
`unscored` is empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.checkpoint.architectures import Block, Decoder, Experts, StateSpace
from clew.frontends.checkpoint.graph import COMPUTED, Origin, Weight, WeightedGraph
from clew.frontends.checkpoint.rotary import Rotary
from clew.frontends.checkpoint.sizes import (
    PADDING,
    PAST,
    PRESENT,
    TOKENS,
    UNSCORED,
    Sizes,
    cache_forms,
    cache_names,
)
from clew.frontends.lowering.attention import Attention, part, places
from clew.frontends.lowering.experts import chosen_experts, dispatched, sparsely_chosen
from clew.frontends.lowering.norm import normalized, root_mean_square, statistics
from clew.frontends.lowering.rotary import Rotation
from clew.frontends.lowering.state_space import Steps, causal_convolution, scanned
from clew.ir.dims import Dim, SymDim, dim_max
from clew.ir.expr import Constant, Expr
from clew.ir.module import Module
from clew.ir.state import STATE, State, state_attribute
from clew.ir.types import TensorType, to_numpy


class DecoderGraph(WeightedGraph):
    """Builds the module of a decoder from its weights.

    Errors: M072 for a weight that is missing or has another shape; those of `GraphBuilder`.
    """

    def __init__(
        self, decoder: Decoder, weights: Mapping[str, Weight], sizes: Sizes, origin: Origin
    ) -> None:
        super().__init__(weights, origin)
        self._of = decoder
        self._batch, self._rows, self._past = sizes.batch, sizes.rows, sizes.past
        self._unscored = sizes.unscored
        self._padding: Expr | None = None

    def module(self) -> Module:
        """Returns the module. Its results are the logits of the tokens after the first `unscored`
        ones, and the states.
        """
        of = self._of
        ids = self._builder.input(TOKENS, TensorType((self._batch, self._rows), "i64"))
        pasts = [self._states(n, block) for n, block in enumerate(of.blocks)]
        defaults = self._defaults()
        x = self._embedded(ids)
        results: list[Expr] = []
        for n, (block, past) in enumerate(zip(of.blocks, pasts, strict=True)):
            x, *caches = self._block(n, block, x, past)
            results += caches
        scored = self._rows if self._unscored == 0 else dim_max(self._rows - self._unscored, 1)
        x = part(x, 1, self._rows - scored, self._rows)
        logits = self._logits(self._norm(of.names.last_norm, x))
        presents = [
            name for n, block in enumerate(of.blocks) for name in cache_names(n, block, PRESENT)
        ]
        attrs = {STATE: state_attribute(defaults)} if defaults else {}
        return self._builder.module([logits, *results], ["logits", *presents], attrs)

    def _states(self, number: int, block: Block) -> list[Expr]:
        """Adds the inputs of a layer's states."""
        sizes: dict[str, Dim] = {"batch": self._batch, "past": self._past}
        return [
            self._builder.input(
                name,
                TensorType(tuple(sizes[d] if isinstance(d, str) else d for d in form), COMPUTED),
            )
            for name, form in zip(
                cache_names(number, block, PAST), cache_forms(self._of, block), strict=True
            )
        ]

    def _defaults(self) -> list[State]:
        """Adds the inputs that have a default value. There is no `padding` if the batch is fixed or
        a layer is a recurrence, and no `unscored` if the number of tokens is fixed.
        """
        found = []
        recurs = any(block.space for block in self._of.blocks)  # would read the padding, too
        if isinstance(self._batch, SymDim) and not recurs:
            self._padding = self._builder.input(PADDING, TensorType((self._batch,), "i64"))
            found.append(State(PADDING, "", np.zeros(1, np.int64)))
        if self._unscored != 0:
            self._builder.input(UNSCORED, TensorType((self._unscored,), "bool"))
            found.append(State(UNSCORED, "", np.zeros(0, np.bool_)))
        return found

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
            return call("multiply", rows, scalar(float(rounded), COMPUTED))

        x = self._layer(of.names.embedding, "embedding", tokens)
        if not of.names.positions:
            return x

        def positions() -> Expr:
            name = f"{of.names.positions}.weight"
            stored = self._weights.get(name)
            longest = stored.type.concrete[0] if stored and stored.type.rank == 2 else 1
            return call("add", x, self._looked_up(name, self._positions(), longest, of.hidden))

        return self._layer(of.names.positions, "embedding", positions)

    def _norm(self, name: str, x: Expr, size: int | None = None) -> Expr:
        of, size = self._of, size or self._of.hidden

        def make() -> Expr:
            scale = self._wide(f"{name}.weight", size)
            if of.scale_offset:
                scale = call("add", scale, scalar(of.scale_offset, COMPUTED))
            axis = x.tensor.rank - 1
            if of.centered:
                bias = self._bias(f"{name}.bias", size)
                return normalized(x, scale, bias, axis, of.epsilon)
            return root_mean_square(x, scale, axis, of.epsilon)

        return self._layer(name, "layer_norm" if of.centered else "rms_norm", make)

    def _linear(self, name: str, x: Expr, inputs: int, outputs: int) -> Expr:
        return self._product(name, x, inputs, outputs, by_columns=self._of.by_columns)

    def _logits(self, x: Expr) -> Expr:
        of = self._of
        name = of.names.embedding if of.tied else of.names.head

        def make() -> Expr:
            table = self._wide(f"{name}.weight", of.vocabulary, of.hidden)
            logits: Expr = call("nn.dense", x, table, weight_layout="NK")
            bias = self._bias(f"{of.names.head}.bias", of.vocabulary)
            if bias is not None:
                logits = call("add", logits, bias)
            if of.logit_scale != 1:
                logits = call("multiply", logits, scalar(of.logit_scale, COMPUTED))
            if of.logit_cap:
                cap = scalar(of.logit_cap, COMPUTED)
                logits = call("multiply", call("tanh", call("divide", logits, cap)), cap)
            return logits

        return self._layer(of.names.head, "linear", make)

    def _block(self, n: int, block: Block, x: Expr, past: Sequence[Expr]) -> list[Expr]:
        """Returns the result of a layer of the decoder, and its two states."""
        names, layer = self._of.names, self._of.names.layer.format(n)
        if block.space is not None:
            found, *states = self._recurrence(
                f"{layer}.{block.space.module}",
                block.space,
                self._norm(f"{layer}.{names.before_attention}", x),
                past,
            )
            module = f"{layer}.{block.space.module}_add"
            return [self._layer(module, "add", lambda: call("add", x, found)), *states]
        given = self._normed(layer, names.before_attention, x)
        attended, *cache = self._attention(layer, block, given, past)
        attended = self._normed(layer, names.after_attention, attended)
        whole = self._layer(f"{layer}.attention_add", "add", lambda: self._added(x, attended))
        if not self._of.parallel:
            given = self._normed(layer, names.before_mlp, whole)
        elif names.before_mlp:
            given = self._normed(layer, names.before_mlp, x)
        if block.experts is None:
            found = self._mlp(layer, given)
        else:
            found = self._mixture(layer, block.experts, given)
        found = self._normed(layer, names.after_mlp, found)
        return [
            self._layer(f"{layer}.{names.mlp}_add", "add", lambda: self._added(whole, found)),
            *cache,
        ]

    def _normed(self, layer: str, name: str, x: Expr) -> Expr:
        """Returns `x` normalized, or `x` itself if the model has no such norm."""
        return self._norm(f"{layer}.{name}", x) if name else x

    def _added(self, x: Expr, found: Expr) -> Expr:
        """Returns `x` plus the result of attention or MLP."""
        if self._of.residual_scale != 1:
            found = call("multiply", found, scalar(self._of.residual_scale, COMPUTED))
        return call("add", x, found)

    def _mlp(self, layer: str, x: Expr) -> Expr:
        of, names = self._of, self._of.names
        size = of.inner
        if names.gate_up:
            both = self._linear(f"{layer}.{names.gate_up}", x, of.hidden, 2 * size)
            up, gate = (part(both, 2, n * size, (n + 1) * size) for n in (1, 0))
        else:
            up = self._linear(f"{layer}.{names.up}", x, of.hidden, size)
            gate = self._linear(f"{layer}.{names.gate}", x, of.hidden, size) if names.gate else up
        hidden = self._activated(f"{layer}.{names.mlp}", gate, up)
        return self._linear(f"{layer}.{names.down}", hidden, size, of.hidden)

    def _activated(self, module: str, gate: Expr, up: Expr) -> Expr:
        """Returns the activation of `gate`, times `up` if that is another value."""
        activation = self._of.activation

        def make() -> Expr:
            found = activation.of(gate)
            return found if gate is up else call("multiply", found, up)

        return self._layer(f"{module}.act_fn", activation.name, make)

    def _mixture(self, layer: str, of: Experts, x: Expr) -> Expr:
        """Returns the weighted sum of the experts that the router chooses for each token, plus the
        shared expert if there is one.
        """
        hidden, shape = self._of.hidden, x.tensor.shape
        module = f"{layer}.{of.gate.partition('.{}')[0]}"
        flat = reshaped(x, (shape[0] * shape[1], hidden))
        scores = self._linear(f"{layer}.{of.router}", flat, hidden, of.count)
        chosen, shares = self._results_of(
            f"{module}.router",
            "top_k",
            lambda: (
                sparsely_chosen(scores, of.chosen, of.tolerance)
                if of.tolerance
                else chosen_experts(scores, of.chosen, is_normalized=of.is_normalized)
            ),
        )
        todo = dispatched(chosen, of.count)
        blocks = self._layer(f"{module}.blocks", "gather", lambda: todo.blocks(flat))

        def times(name: str, rows: Expr, *sizes: int) -> Expr:
            names = [f"{layer}.{name.format(n)}.weight" for n in range(of.count)]
            inner = name.partition("{}.")[2]

            def make() -> Expr:
                return call("nn.gather_matmul", rows, self._stacked(names, *sizes), todo.experts)

            return self._layer(f"{module}.{inner}", "gather_matmul", make)

        gate, up = (times(name, blocks, of.inner, hidden) for name in (of.gate, of.up))
        results = times(of.down, self._activated(module, gate, up), hidden, of.inner)
        found = self._layer(f"{module}.total", "sum", lambda: todo.total(results, shares))
        if of.shared:
            found = self._shared(layer, of, flat, found)
        return reshaped(found, shape)

    def _shared(self, layer: str, of: Experts, x: Expr, others: Expr) -> Expr:
        """Returns the sum of the experts' result and that of the expert that all tokens use, whose
        weight is a sigmoid.
        """
        hidden, module = self._of.hidden, f"{layer}.{of.shared_mlp}"
        gate, up = (
            self._linear(f"{module}.{name}", x, hidden, of.shared)
            for name in ("gate_proj", "up_proj")
        )
        found = self._linear(
            f"{module}.down_proj", self._activated(module, gate, up), of.shared, hidden
        )
        weight = self._linear(f"{layer}.{of.shared_gate}", x, hidden, 1)
        return self._layer(
            f"{module}_add",
            "add",
            lambda: call("add", others, call("multiply", call("sigmoid", weight), found)),
        )

    def _attention(
        self, layer: str, block: Block, x: Expr, past: Sequence[Expr]
    ) -> tuple[Expr, Expr, Expr]:
        """Returns the result of attention, and the cached and new keys and values."""
        of, names = self._of, self._of.names
        width, narrow = of.heads * of.head_size, of.groups * of.head_size
        lead = (self._batch, self._rows)
        if names.joined:
            sizes = (width, narrow, narrow)
            joined = self._linear(f"{layer}.{names.joined}", x, of.hidden, sum(sizes))
            if of.by_group:
                shape = (*lead, of.groups, of.heads // of.groups + 2, of.head_size)
                parts, axis = (of.heads // of.groups, 1, 1), 3
                joined = reshaped(joined, shape)
            else:
                parts, axis = sizes, 2
            q, k, v = fields(call("split", joined, sizes=parts, axis=axis), 3)
        else:
            q = self._linear(f"{layer}.{names.query}", x, of.hidden, width)
            k, v = (
                self._linear(f"{layer}.{name}", x, of.hidden, narrow)
                for name in (names.key, names.value)
            )
        if of.wide_norms:
            q = self._norm(f"{layer}.{names.query_norm}", q, width)
            k = self._norm(f"{layer}.{names.key_norm}", k, narrow)
        q = reshaped(q, (*lead, of.heads, of.head_size))
        k, v = (reshaped(t, (*lead, of.groups, of.head_size)) for t in (k, v))
        if names.query_norm and not of.wide_norms:
            q = self._norm(f"{layer}.{names.query_norm}", q, of.head_size)
            k = self._norm(f"{layer}.{names.key_norm}", k, of.head_size)
        module = f"{layer}.{names.attention}"
        if block.rotary is not None:
            turn = self._rotation(block.rotary)
            q = self._layer(f"{module}.rotary_q", "rotary", partial(turn.of, q))
            k = self._layer(f"{module}.rotary_k", "rotary", partial(turn.of, k))
        keys = self._joined(f"{module}.key_cache", past[0], k)
        values = self._joined(f"{module}.value_cache", past[1], v)
        todo = Attention(q, keys, values, ("BSHD", "BHSD", "BHSD"), scale=of.scale, causal=True)
        todo.softcap = of.softcap
        if self._padding is not None:
            todo.masks.append(self._held_keys(self._padding))
        if block.window:
            todo.masks.append(self._near(block.window))
        attended = self._layer(module, "attention", todo.built)
        return self._linear(f"{layer}.{names.output}", attended, width, of.hidden), keys, values

    def _recurrence(
        self, module: str, of: StateSpace, x: Expr, past: Sequence[Expr]
    ) -> tuple[Expr, Expr, Expr]:
        """Returns the result of a recurrence over time, the last inputs of its convolution, and the
        states of its heads.
        """
        lead = (self._batch, self._rows)
        sizes = (of.inner, of.channels, of.heads)
        whole = self._product(f"{module}.in_proj", x, self._of.hidden, sum(sizes))
        gate, mixed, lengths = fields(call("split", whole, sizes=sizes, axis=2), 3)

        def convolved() -> Sequence[Expr]:
            kernel = self._wide(f"{module}.conv1d.weight", of.channels, 1, of.taps)
            kernel = call("transpose", reshaped(kernel, (of.channels, of.taps)), axes=(1, 0))
            bias = self._bias(f"{module}.conv1d.bias", of.channels)
            return causal_convolution(mixed, past[0], kernel, bias)

        found, inputs = self._results_of(f"{module}.conv1d", "conv1d", convolved)
        activation, mixed_in_time = self._of.activation, found
        found = self._layer(f"{module}.act", activation.name, lambda: activation.of(mixed_in_time))

        def scan() -> Sequence[Expr]:
            width = of.groups * of.size
            x, b, c = fields(call("split", found, sizes=(of.inner, width, width), axis=2), 3)
            x = reshaped(x, (*lead, of.heads, of.head_size))
            b, c = (reshaped(v, (*lead, of.groups, of.size)) for v in (b, c))
            bias, rates, skip = (
                self._wide(f"{module}.{name}", of.heads) for name in ("dt_bias", "A_log", "D")
            )
            dt = call("nn.softplus", call("add", lengths, bias))
            if (of.shortest, of.longest) != (0.0, math.inf):
                dt = call("clip", dt, min=of.shortest, max=of.longest)
            a = call("negative", call("exp", rates))
            y, state = scanned(Steps(x, dt, a, b, c), past[1])
            y = call("add", y, call("multiply", x, reshaped(skip, (of.heads, 1))))
            return reshaped(y, (*lead, of.inner)), state

        y, state = self._results_of(f"{module}.scan", "scan", scan)

        def normed() -> Expr:
            gated = call("multiply", y, call("nn.silu", gate))
            size = of.inner // of.groups
            grouped = reshaped(gated, (*lead, of.groups, size))
            (deviation,) = statistics(grouped, 3, self._of.epsilon, center=False)
            flat = reshaped(call("multiply", grouped, deviation), (*lead, of.inner))
            return call("multiply", flat, self._wide(f"{module}.norm.weight", of.inner))

        normal = self._layer(f"{module}.norm", "rms_norm", normed)
        result = self._product(f"{module}.out_proj", normal, of.inner, self._of.hidden)
        return result, inputs, state

    def _joined(self, name: str, past: Expr, new: Expr) -> Expr:
        """Appends the keys or values of this call to the cache."""

        def make() -> Expr:
            return call("concatenate", past, call("transpose", new, axes=(0, 2, 1, 3)), axis=2)

        return self._layer(name, "concatenate", make)

    def _positions(self) -> Expr:
        """Returns the positions of this call's tokens in their sequences: i32[seq], or
        i32[batch, seq] if these may have padding.
        """
        found = places(self._rows, self._past)
        if self._padding is None:
            return found
        first = reshaped(cast(self._padding, "i32"), (self._batch, 1))
        own = call("subtract", reshaped(found, (1, self._rows)), first)
        return call("maximum", own, scalar(0, "i32"))  # padding is before position 0

    def _rotation(self, rotary: Rotary) -> Rotation:
        """Returns cosines and sines for this call's tokens: f32[1 or batch, seq, 1, pairs]."""
        where = self._positions()
        lead: tuple[Dim, ...] = (1, *where.tensor.shape)[-2:]
        where = reshaped(where, (*lead, 1, 1))
        turned = call("multiply", cast(where, COMPUTED), self._angles(rotary, where))
        found: list[Expr] = [call("cos", turned), call("sin", turned)]
        if rotary.factor != 1:
            factor = scalar(rotary.factor, COMPUTED)
            found = [call("multiply", x, factor) for x in found]
        return Rotation(found[0], found[1], rotary.is_interleaved)

    def _angles(self, rotary: Rotary, where: Expr) -> Expr:
        """Returns the angles per position: f32[1 or batch, 1, 1, pairs]. If the embedding has other
        angles for long texts, the position of a sequence's last token selects them.
        """

        def row(angles: Sequence[float]) -> Expr:
            return Constant(np.array(angles, np.float32).reshape(1, 1, 1, len(angles)))

        if not rotary.long_angles:
            return row(rotary.angles)
        last = part(where, 1, self._rows - 1, self._rows)
        is_long = call("greater_equal", last, scalar(rotary.short, "i32"))
        return call("where", is_long, row(rotary.long_angles), row(rotary.angles))

    def _held_keys(self, padding: Expr) -> Expr:
        """Returns a mask of the keys that are not padding: bool[batch, 1, seq, past + seq]. A
        padding position attends to itself, so that its values are finite.
        """
        rows, keys = self._rows, self._past + self._rows
        row = reshaped(places(rows, self._past), (1, 1, rows, 1))
        first = reshaped(cast(padding, "i32"), (self._batch, 1, 1, 1))
        first = call("minimum", first, row)
        return call("greater_equal", reshaped(places(keys), (1, 1, 1, keys)), first)

    def _near(self, window: int) -> Expr:
        """Returns a mask of the keys within each query's window: bool[seq, past + seq]."""
        rows = reshaped(places(self._rows, self._past), (self._rows, 1))
        keys = self._past + self._rows
        first = call("subtract", rows, scalar(window, "i32"))
        return call("greater", reshaped(places(keys), (1, keys)), first)
