"""Plants faults in random models, and has `clew.advise` find them.

    python benchmarks/advising.py
    python benchmarks/advising.py --models 4 --minutes 1 --results advising.json

Models are random convolutional networks and transformers, in the order of their seeds, without
those that take too long. The seed also draws three kinds of faults for each model and a place for
each. First, each fault is raced against the model without it: a fault that costs nothing, because
the compiler removes it, is *absorbed*, and no advice is due. Then the model with all three faults
is advised. A fault is *found* if a piece of advice names a layer of it, by a rule that removes this
kind of fault. All advice is measured again, one by one, in a new build: its gain must be within
20 % (or 1 % of a call) of the claimed one. Advice whose gain is not above 0 then is *false*.

One thread, by its processor time.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from clew import frontends
from clew.advice import all_rules
from clew.advice.advising import Session
from clew.advice.channels import Group, groups_of, recut
from clew.advice.estimate import Estimate
from clew.advice.graphs import constant, like, op, op_of, shape_of, with_input, with_main
from clew.advice.race import Race
from clew.advice.rules.linear_chain import Linear
from clew.advice.subject import Subject
from clew.advice.trial import Bench
from clew.backends.compile_options import CompileOptions
from clew.editing.surgery import Insertion, Piece, Plan, Surgeon
from clew.ir.expr import Call, Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import target_of
from clew.predict.convnets import small_convnet
from clew.predict.transformers import transformer
from clew.support.errors import ClewError
from clew.trace.span import Source
from harness.report import circumstances, progress

_FAULTS = 3
_LONGEST_NS = 4e6
_SHORTEST_NS = 0.1e6
_WITHIN = 0.2
_NOISE = 0.01
_LEAST_COST = 0.01
_OPTIONS = {"threads": 1}


_ESTIMATE = Estimate(target_of("cpu"))


@dataclass
class Planted:
    """A fault: its kind, the layers it is in, and the rules that remove it."""

    kind: str
    layers: list[str]
    rules: list[str]
    cost: float | None = None
    absorbed: bool = False
    found: bool = False
    rank: int = 0


@dataclass
class Checked:
    """A piece of advice: its claimed gain with its interval, and those when measured again."""

    rule: str
    what: str
    claimed: float
    claimed_between: tuple[float | None, float | None]
    again: float
    again_between: tuple[float | None, float | None]

    @property
    def is_near(self) -> bool:
        """Whether the gains agree within a fifth, or a hundredth of a call."""
        return abs(self.again - self.claimed) <= max(_WITHIN * self.claimed, _NOISE)

    @property
    def overlaps(self) -> bool:
        """Whether the intervals overlap."""
        ends = [*self.claimed_between, *self.again_between]
        if any(end is None for end in ends):
            return False
        low, high, other_low, other_high = (end or 0.0 for end in ends)
        return low <= other_high and other_low <= high


@dataclass
class Row:
    """A model with its faults and the advice on it."""

    model: str
    call_ms: float
    faults: list[Planted] = field(default_factory=list)
    advice: list[Checked] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""


# --- planting ---

Fault = Callable[[Subject, random.Random], "tuple[Module, list[str]] | None"]
FAULTS: dict[str, tuple[Fault, list[str]]] = {}


def fault(kind: str, *rules: str) -> Callable[[Fault], Fault]:
    """Registers a kind of fault and the rules that remove it."""

    def registered(plant: Fault) -> Fault:
        FAULTS[kind] = plant, list(rules)
        return plant

    return registered


def drawn(items: Sequence[Any], draw: random.Random) -> Any:
    """Returns one of some items, the more likely the more work it is; None if there are none."""
    if not items:
        return None
    return draw.choices(items, [1e-9 + _work(item) for item in items])[0]


def _work(item: Any) -> float:
    if isinstance(item, Group):
        return sum(_ESTIMATE.call(call) for call in item.products)
    call = item.call if isinstance(item, Linear) else item
    return _ESTIMATE.call(call) if isinstance(call, Call) else 1.0


def named(kind: str, node: Expr) -> Source:
    """Returns the source of a fault: a layer of its own."""
    return Source(f"planted {kind} at {', '.join(node.span.layers[:1])}", kind, "clew", "edit")


def replaced(
    subject: Subject, kind: str, node: Call, inputs: Sequence[Expr], build: Callable[..., Expr]
) -> tuple[Module, list[str]]:
    """Returns the module with a node built in another way."""
    plan = Plan()
    source = named(kind, node)
    plan.pieces[node.id] = Piece(Insertion(source, build, node.span), tuple(inputs))
    return Surgeon(plan).module(subject.module), [source.layer, *node.span.layers]


def linears(subject: Subject) -> list[Linear]:
    """Returns the linear layers that take a part of the time."""
    return [x for c in subject.calls if (x := Linear.of(subject, c)) is not None and c.args]


def groups(subject: Subject, least: int = 16) -> list[Group]:
    """Returns the groups of channels."""
    return [g for g in groups_of(subject) if g.extent >= least]


def widened(
    subject: Subject,
    kind: str,
    group: Group,
    producing: Callable[[Any, int], Any],
    consuming: Callable[[Any, int], Any],
) -> tuple[Module, list[str]]:
    """Returns the module with other channels in a group."""
    plan = Plan()
    recut(f"planted {kind}", subject, group, producing, consuming)(plan)
    layers = [layer for c in group.products for layer in c.span.layers]
    return Surgeon(plan).module(subject.module), layers


@fault("equal channels", "repeated-channels")
def equal_channels(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Doubles some channels, whose readers get half of the weight each."""
    group = drawn(groups(subject), draw)
    if group is None:
        return None
    twice = np.array(sorted(draw.sample(range(group.extent), group.extent // 2)))
    order = np.concatenate([np.arange(group.extent), twice])
    share = np.where(np.isin(order, twice), 0.5, 1.0)

    def consuming(values: Any, axis: int) -> Any:
        shape = [1] * values.ndim
        shape[axis] = -1
        return (np.take(values, order, axis) * share.reshape(shape)).astype(values.dtype)

    return widened(subject, "equal", group, lambda v, a: np.take(v, order, a), consuming)


@fault("zero channels", "repeated-channels")
def zero_channels(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Adds channels that nobody reads."""
    group = drawn(groups(subject), draw)
    if group is None:
        return None
    extra = group.extent // 2
    order = np.arange(group.extent + extra) % group.extent

    def consuming(values: Any, axis: int) -> Any:
        pads = [(0, 0)] * values.ndim
        pads[axis] = (0, extra)
        return np.pad(values, pads)

    return widened(subject, "zero", group, lambda v, a: np.take(v, order, a), consuming)


@fault("odd width", "widths")
def odd_width(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Makes a width of a multiple of 8 a little larger."""
    group = drawn([g for g in groups(subject) if g.extent % 8 == 0], draw)
    if group is None:
        return None
    order = np.arange(group.extent + draw.choice((1, 2, 3))) % group.extent

    def cut(values: Any, axis: int) -> Any:
        noise = np.random.default_rng(0).uniform(0.9, 1.1, values.shape).astype(values.dtype)
        return np.take(values * noise, order, axis)

    return widened(subject, "odd", group, cut, cut)


@fault("low rank", "low-rank")
def low_rank(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Gives a layer a weight of a low rank."""
    one = drawn([x for x in linears(subject) if min(x.outputs, x.inputs) >= 64], draw)
    if one is None:
        return None
    numbers = np.random.default_rng(0)
    flat = one.weight.reshape(one.outputs, -1)
    rank = max(8, min(flat.shape) // 8)
    left = numbers.standard_normal((one.outputs, rank)) * rank**-0.5
    right = numbers.standard_normal((rank, flat.shape[1]))
    weight = (left @ right).reshape(one.weight.shape) * one.weight.std()
    return replaced(subject, "low rank", one.call, [one.call.args[0]],
                    lambda x: _again(one, x, weight))  # fmt: skip


@fault("block sparse", "block-sparse")
def block_sparse(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Makes a convolution's weight zero outside of blocks."""
    found = [x for x in linears(subject) if not x.is_dense]
    one = drawn([x for x in found if min(x.outputs, x.inputs) >= 64
                 and x.outputs % 4 == x.inputs % 4 == 0], draw)  # fmt: skip
    if one is None:
        return None
    mask = np.kron(np.eye(4), np.ones((one.outputs // 4, one.inputs // 4)))
    weight = one.weight * mask[:, :, None, None]
    return replaced(subject, "blocks", one.call, [one.call.args[0]],
                    lambda x: _again(one, x, weight))  # fmt: skip


def _again(one: Linear, x: Expr, weight: Any) -> Expr:
    if one.is_dense:
        return op("nn.dense", x, constant(weight))
    return like(one.call, x, constant(weight))


@fault("linear chain", "linear-chain")
def linear_chain(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Puts a layer without an activation in front of another."""
    one = drawn([x for x in linears(subject) if x.inputs >= 16], draw)
    if one is None:
        return None
    first, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((one.inputs, one.inputs)))
    back = np.einsum("oi...,ij->oj...", one.weight.astype(float), first.T)

    def build(x: Expr) -> Expr:
        if one.is_dense:
            return op("nn.dense", op("nn.dense", x, constant(first)), constant(back))
        inner = op("nn.conv2d", x, constant(first[:, :, None, None]))
        return like(one.call, inner, constant(back))

    return replaced(subject, "chain", one.call, [one.call.args[0]], build)


@fault("parallel branches", "parallel-branches")
def parallel_branches(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Divides a convolution into one of all taps and one of the middle tap."""
    found = [x for x in linears(subject) if not x.is_dense and x.weight.shape[2:] == (3, 3)]
    one = drawn([x for x in found if x.call.attrs.padding == (1, 1, 1, 1)
                 and x.call.attrs.strides == (1, 1)], draw)  # fmt: skip
    if one is None:
        return None
    middle = one.weight[:, :, 1:2, 1:2] * 0.5
    rest = one.weight.copy()
    rest[:, :, 1:2, 1:2] -= middle

    def build(x: Expr) -> Expr:
        return op("add", like(one.call, x, constant(rest)), op("nn.conv2d", x, constant(middle)))

    return replaced(subject, "branches", one.call, [one.call.args[0]], build)


@fault("late layer", "early-pointwise")
def late_layer(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Computes a 1x1 convolution on a larger image, whose pixels are then averaged."""
    found = [x for x in linears(subject) if not x.is_dense and x.is_pointwise]
    one = drawn([x for x in found if shape_of(x.call)[2] > 1], draw)  # type: ignore[index]
    if one is None:
        return None

    def build(x: Expr) -> Expr:
        shape = x.tensor.concrete
        larger = (*shape[:2], 2 * shape[2], 2 * shape[3])
        y = op("resize", x, shape=larger, coordinates="asymmetric", rounding="floor")
        y = like(one.call, y, constant(one.weight))
        return op("nn.avg_pool2d", y, kernel=(2, 2), strides=(2, 2))

    return replaced(subject, "late layer", one.call, [one.call.args[0]], build)


@fault("late selection", "late-selection")
def late_selection(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Computes more rows of a product than are kept."""
    found = [x for x in linears(subject) if x.is_dense]
    one = drawn(found, draw)
    if one is None:
        return None

    def build(x: Expr) -> Expr:
        shape = x.tensor.concrete
        y = op("nn.dense", op("concatenate", x, op("multiply", x, constant(0.5)), axis=0),
               constant(one.weight))  # fmt: skip
        return op("slice", y, begin=(0,), end=(shape[0],), axes=(0,))

    return replaced(subject, "selection", one.call, [one.call.args[0]], build)


@fault("erf GELU", "activations")
def erf_gelu(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Replaces an activation by GELU in five operators."""
    node = drawn([c for c in subject.calls if op_of(c) in ("nn.relu", "clip", "nn.gelu")], draw)
    if node is None:
        return None

    def build(x: Expr) -> Expr:
        inner = op("add", op("erf", op("divide", x, constant(2**0.5))), constant(1.0))
        return op("multiply", op("multiply", x, inner), constant(0.5))

    return replaced(subject, "gelu", node, [node.args[0]], build)


@fault("casts", "roundtrips")
def casts(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Converts a value to f16 and back."""
    return _converted(
        subject, draw, "casts", lambda x: op("cast", op("cast", x, dtype="f16"), dtype="f32")
    )


@fault("quantizers", "roundtrips")
def quantizers(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Quantizes a value that no product reads."""
    scale, zero = constant(0.02), constant(128, np.uint8)
    return _converted(
        subject, draw, "codes",
        lambda x: op("dequantize", op("quantize", x, scale, zero), scale, zero),
    )  # fmt: skip


@fault("transposes", "layout")
def transposes(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Transposes a value before an elementwise operator, and back behind it."""
    fits = [c for c in subject.calls if op_of(c) in ("nn.relu", "clip", "nn.silu", "nn.gelu")
            and len(shape_of(c) or ()) >= 3]  # fmt: skip
    node = drawn(fits, draw)
    if node is None:
        return None
    axes = list(range(node.tensor.rank))
    while axes == sorted(axes):
        draw.shuffle(axes)
    back = tuple(int(a) for a in np.argsort(axes))

    def build(x: Expr) -> Expr:
        return op("transpose", like(node, op("transpose", x, axes=tuple(axes))), axes=back)

    return replaced(subject, "transposes", node, [node.args[0]], build)


@fault("input layout", "layout")
def input_layout(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Takes the input in another layout."""
    param = drawn([p for p in subject.module.main.params if p.tensor.rank >= 4], draw)
    if param is None:
        return None
    shape = param.tensor.concrete
    made = TensorType((shape[0], *shape[2:], shape[1]), param.tensor.dtype)
    axes = (0, len(shape) - 1, *range(1, len(shape) - 1))
    module = with_input(subject.module, param.name, made, lambda x: op("transpose", x, axes=axes))
    return module, [f"input({param.name})"]


@fault("dead output", "dead-outputs")
def dead_output(subject: Subject, draw: random.Random) -> tuple[Module, list[str]] | None:
    """Returns the result of a layer that was not there."""
    one = drawn([x for x in linears(subject) if not x.is_dense or x.call.tensor.rank == 3], draw)
    if one is None:
        return None
    main = subject.module.main
    source = named("output", one.call)
    made = Insertion(source, lambda x: _again(one, x, one.weight * 0.5)).made(one.call.args[0])
    fields = main.body.children if isinstance(main.body, Tuple) else (main.body,)
    names = (*subject.module.output_names, "planted")
    body = Tuple([*fields, made])
    function = Function(main.params, body, {**main.attrs.plain, "outputs": names})
    return with_main(subject.module.with_functions({"main": function}), {}), [source.layer]


def _converted(
    subject: Subject, draw: random.Random, kind: str, build: Callable[[Expr], Expr]
) -> tuple[Module, list[str]] | None:
    fits = [c for c in subject.calls if op_of(c) in ("nn.relu", "clip", "add", "nn.layer_norm")
            and c.tensor.dtype == "f32" and not subject.is_fixed(c)]  # fmt: skip
    node = drawn(fits, draw)
    if node is None:
        return None
    plan = Plan()
    source = named(kind, node)
    plan.values[node.id] = Insertion(source, build)
    return Surgeon(plan).module(subject.module), [source.layer, *node.span.layers]


# --- models ---


def models(count: int, first: int = 0) -> Iterator[tuple[str, Module, random.Random]]:
    """Yields random models that take neither too long nor too short: one kind after the other."""
    seeds = dict.fromkeys((small_convnet, transformer), first)
    made = 0
    while made < count:
        for make in seeds:
            while True:
                seed = seeds[make]
                seeds[make] += 1
                kind, proto = make(seed)
                module = frontends.load(proto)
                if _SHORTEST_NS < _ESTIMATE.of(module) < _LONGEST_NS:
                    break
            made += 1
            if made <= count:
                yield f"{make.__name__} {seed} ({kind})", module, random.Random(seed)


def _subject(module: Module, name: str) -> Subject:
    return Subject(module, CompileOptions.of(_OPTIONS), name=name)


def evaluated(name: str, module: Module, draw: random.Random, minutes: float) -> Row:
    """Plants faults in a model, and returns what became of them."""
    row = Row(name, 0.0)
    began = time.perf_counter()
    clean = _subject(module, name)
    kinds = list(FAULTS)
    draw.shuffle(kinds)
    for kind in kinds:
        if len(row.faults) == _FAULTS:
            break
        before = _subject(module, name) if row.faults else clean
        plant, rules = FAULTS[kind]
        try:
            found = plant(before, draw)
        except ClewError:
            continue
        if found is None:
            continue
        after = _subject(found[0], name)
        planted = Planted(kind, found[1], rules)
        race = Race().race(
            (after.compiled.build_for(after.samples[0]), after.samples),
            (before.compiled.build_for(before.samples[0]), before.samples),
            1, 6.0, to_win=False,
        )  # fmt: skip
        planted.cost = race.gain
        sure = race.high is not None and race.high < 1.0
        planted.absorbed = not (sure and race.gain > _LEAST_COST)
        row.faults.append(planted)
        module = found[0]
        progress.print(f"  {kind}: costs {100 * race.gain:.1f} %, absorbed: {planted.absorbed}")
    subject = _subject(module, name)
    rules_asked = [r for r in all_rules() if r.name not in ("threads", "integers", "batches")]
    session = Session(subject, rules_asked, lambda text: None)
    advice = session.advice(60 * minutes)
    row.call_ms = subject.call_ns / 1e6
    for planted in row.faults:
        for number, item in enumerate(advice.items, 1):
            named_here = set(item.candidate.layers) & set(planted.layers)
            if item.candidate.rule in planted.rules and named_here:
                planted.found, planted.rank = True, number
                break
        else:
            tried = [a for a in advice.others if a.candidate.rule in planted.rules
                     and set(a.candidate.layers) & set(planted.layers)]  # fmt: skip
            if not planted.absorbed:
                why = [(a.effect.state, a.effect.reason, a.effect.gain) for a in tried]
                progress.print(f"  missed {planted.kind} ({planted.cost:.3f}): {why}")
    again = Bench(_subject(module, name), Race(seed=1))
    for item in advice.items:
        effect = again.effect([item.candidate], 8.0)
        measured = 0.0 if effect.gain is None else effect.gain
        if item.candidate.capacity:
            continue
        assert item.effect.gain is not None
        row.advice.append(
            Checked(
                item.candidate.rule, item.candidate.what, item.effect.gain,
                (item.effect.low, item.effect.high), measured, (effect.low, effect.high),
            )
        )  # fmt: skip
    row.seconds = time.perf_counter() - began
    return row


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the figures of all rows."""
    faults = [f for row in rows for f in row.faults]
    due = [f for f in faults if not f.absorbed]
    every = [one for row in rows for one in row.advice]
    return {
        "models": len(rows),
        "faults": len(faults),
        "kinds": len({f.kind for f in faults}),
        "absorbed": len(faults) - len(due),
        "found": sum(f.found for f in due),
        "of": len(due),
        "advice": len(every),
        "within": sum(one.is_near for one in every),
        "overlapping": sum(one.overlaps for one in every),
        "false": sum(one.again <= 0 for one in every),
    }


def main(
    count: Annotated[int, typer.Option("--models")] = 20,
    minutes: float = 1.0,
    first: int = 0,
    results: Path | None = None,
) -> None:
    """Plants faults in models and prints what was found."""
    rows: list[Row] = []
    for name, module, draw in models(count, first):
        progress.print(name)
        try:
            rows.append(evaluated(name, module, draw, minutes))
        except ClewError as error:
            rows.append(Row(name, 0.0, failure=f"{error.code} {error.message}"))
        row = rows[-1]
        for one in row.advice:
            gains = f"{100 * one.claimed:.1f} %, again {100 * one.again:.1f} %"
            progress.print(f"    {one.rule}: {one.what}: {gains}")
        progress.print(f"  {summary(rows)} {row.failure}")
        if results is not None:
            found = {"summary": summary(rows), "rows": [asdict(one) for one in rows]}
            results.write_text(json.dumps({"about": circumstances(), **found}, indent=1))
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    typer.run(main)
