"""The cost of a token by layer: the bytes that must be read, and the time.

Only weights and key-value caches count as bytes to read. Other values are small and stay in the
processor's caches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.build.kernel import Kernel
from clew.cost.work import read_bytes_of
from clew.ir.expr import Constant
from clew.machine.probes.bandwidth import Bandwidth
from clew.profile.timing import Measured, measure_ready
from clew.runtime.wiring import Wiring
from clew.serving.built_model import BuiltModel
from clew.serving.ready import Ready
from clew.support.budgets import check_run_bytes
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.shown import Shown
from clew.te.tensor import stages

_DECODER_LAYER: Final = re.compile(r"(.*?\.(\d+))(?:\.|$)")
_OTHER: Final = "other"
_SECONDS: Final = 0.5


@dataclass(frozen=True)
class PartCost:
    """The cost of a decoder layer, or of another layer of the model, in one call.

    `weight_bytes` and `cache_bytes` must be read. `ns` is the time of the layer's kernels, and
    `share` is `ns` divided by the time of the call. `bandwidth_share` is the time to read the bytes
    at the machine's bandwidth, divided by `ns`.
    """

    layer: str
    weight_bytes: int
    cache_bytes: int
    ns: float
    share: float
    bandwidth_share: float


@dataclass(frozen=True)
class StepCost:
    """A call of the model that reads `tokens` tokens after `length` tokens in the caches.

    `ns` is the time of the call. `gbps` is the machine's bandwidth for reading as many bytes as a
    decode step reads, in GB/s. `arena_bytes` is the memory of intermediate values.
    """

    tokens: int
    length: int
    ns: float
    parts: tuple[PartCost, ...]
    arena_bytes: int
    gbps: float

    @property
    def weight_bytes(self) -> int:
        """The bytes of weights that must be read."""
        return sum(part.weight_bytes for part in self.parts)

    @property
    def cache_bytes(self) -> int:
        """The bytes of caches that must be read."""
        return sum(part.cache_bytes for part in self.parts)

    @property
    def bandwidth_share(self) -> float:
        """The time to read the bytes at the machine's bandwidth, divided by `ns`."""
        return (self.weight_bytes + self.cache_bytes) / (self.gbps * self.ns)

    @property
    def tokens_per_second(self) -> float:
        """Tokens read per second."""
        return self.tokens * 1e9 / self.ns

    def __str__(self) -> str:
        what = "decode" if self.tokens == 1 else "prefill"
        return (
            f"{what}: {self.tokens} after {self.length} tokens: {self.ns / 1e3:.4g} µs, "
            f"{self.tokens_per_second:.4g} tokens/s, reads {bytes_text(self.weight_bytes)} of "
            f"weights and {bytes_text(self.cache_bytes)} of caches, "
            f"{100 * self.bandwidth_share:.0f} % of the bandwidth of {self.gbps:.3g} GB/s, arena "
            f"{bytes_text(self.arena_bytes)}"
        )


@dataclass(frozen=True)
class MoreCost:
    """The cost of one more token at a text length: the bytes added to the caches, and the time."""

    cache_bytes: int
    microseconds: float


@dataclass(frozen=True, repr=False)
class TokenCosts(Shown):
    """The costs of tokens of a language model.

    `weight_bytes` is the memory of the weights, and `state_bytes` that of states of fixed size.
    Each token adds `token_bytes` to the caches.
    """

    threads: int
    weight_bytes: int
    token_bytes: int
    state_bytes: int
    decode: StepCost
    prefill: StepCost

    def more(self, length: int) -> MoreCost:
        """Returns the cost of one more token after `length` tokens: the measured time of the decode
        step, plus or minus the time to read the difference in cache bytes.
        """
        extra = (length - self.decode.length) * self.token_bytes / self.decode.gbps
        return MoreCost(self.token_bytes, max(self.decode.ns + extra, 0.0) / 1e3)

    @property
    def slope_us(self) -> float:
        """The microseconds that each token in the caches adds to a decode step."""
        return self.token_bytes / self.decode.gbps / 1e3

    def _about(self) -> str:
        return f"{self.decode.tokens_per_second:.4g} tokens/s after {self.decode.length} tokens"

    def __str__(self) -> str:
        return self.table()

    def line(self) -> str:
        """Returns the cost of one more token, and the share of the bandwidth."""
        at, step = self.decode.length, self.decode
        return (
            f"one more token: {bytes_text(self.token_bytes)} of cache and {step.ns / 1e3:.4g} + "
            f"{self.slope_us:.3g} * (length - {at}) µs, "
            f"{100 * step.bandwidth_share:.0f} % of the bandwidth"
        )

    def table(self) -> str:
        """Returns the costs as text."""
        memory = (
            f"memory: {bytes_text(self.weight_bytes)} of weights, {bytes_text(self.token_bytes)} "
            f"of caches per token, {bytes_text(self.state_bytes)} of other states"
        )
        lines = [memory, self.line()]
        for step in (self.decode, self.prefill):
            lines += ["", str(step), f"{'layer':<32}{'weights':>12}{'caches':>12}{'µs':>10}"
                      f"{'time':>8}{'bandwidth':>11}"]  # fmt: skip
            lines += [
                f"{p.layer:<32}{bytes_text(p.weight_bytes):>12}{bytes_text(p.cache_bytes):>12}"
                f"{p.ns / 1e3:>10.4g}{100 * p.share:>6.1f} %{100 * p.bandwidth_share:>9.0f} %"
                for p in step.parts
            ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the costs as JSON values. Times are nanoseconds, except those in `us`."""
        return {
            "threads": self.threads,
            "weight_bytes": self.weight_bytes,
            "token_bytes": self.token_bytes,
            "state_bytes": self.state_bytes,
            "decode": _step_json(self.decode),
            "prefill": _step_json(self.prefill),
            "more": {"us": self.more(self.decode.length).microseconds, "slope_us": self.slope_us},
        }


def _step_json(step: StepCost) -> dict[str, Any]:
    own = {name: getattr(step, name) for name in StepCost.__annotations__ if name != "parts"}
    own |= {
        "weight_bytes": step.weight_bytes,
        "cache_bytes": step.cache_bytes,
        "bandwidth_share": step.bandwidth_share,
        "tokens_per_second": step.tokens_per_second,
    }
    names = PartCost.__annotations__
    return {**own, "parts": [{name: getattr(part, name) for name in names} for part in step.parts]}


def costs_of(wiring: Wiring, length: int, prompt: int) -> TokenCosts:
    """Returns the costs of a decode step after `length` tokens, and of the first call of a prompt
    of `prompt` tokens.

    Errors: I495 for a saved model, which lacks the definitions of its kernels, for a model without
    caches, and for arguments other than integers of at least 1; I265 for too many tokens; those of
    a call.
    """
    fits = all(type(n) is int and n > 0 for n in (length, prompt))
    if not fits or not wiring.states or not isinstance(wiring.model, BuiltModel):
        raise InputError(
            "I495",
            f"token costs cannot be measured: length={length!r:.40}, prompt={prompt!r:.40}, "
            f"{wiring.model!r:.80}",
            hint="length and prompt must be integers of at least 1; the model must have caches, "
            "and be compiled from its folder or file, not loaded from a .clew file",
        )
    check_run_bytes("the ids of tokens", max(length, prompt) * np.dtype(np.int64).itemsize)
    session = wiring.model.session()
    ids = np.zeros((1, max(length, prompt)), np.int64)
    first = min(prompt, wiring.at_once)
    prefill = _measured(session.copy(), wiring.inputs(ids[:, :first], 0, [0], first - 1))
    for begin in range(0, length, wiring.at_once):
        part = ids[:, begin : min(begin + wiring.at_once, length)]
        session.run(wiring.inputs(part, begin, [0], part.shape[1] - 1))
    decode = _measured(session, wiring.inputs(ids[:, :1], length, [0], 0))
    token_bytes, state_bytes = state_bytes_of(wiring)
    threads = max((segment.pool.threads for segment in decode.ready.segments), default=1)
    per_layer = _cache_bytes(wiring)
    read = _read_bytes([kernel for kernel, _, _ in decode.kernels])
    gbps = Bandwidth().reading(read + token_bytes * length + state_bytes, threads)
    steps = [
        _step(found, tokens, before, per_layer, gbps)
        for found, tokens, before in ((decode, 1, length), (prefill, first, 0))
    ]
    kernels = [kernel for kernel, _, _ in decode.kernels]
    weights = {c.id: c.tensor.size_bytes for k in kernels for c in _constants(k)}
    return TokenCosts(threads, sum(weights.values()), token_bytes, state_bytes, *steps)


def bandwidth_share(wiring: Wiring, length: int, seconds: float) -> float | None:
    """Returns the time to read the weights and the caches of `length` tokens at the machine's
    bandwidth, divided by the `seconds` of a token. None for a model without caches, and if the
    definitions of the kernels are unknown: a model from the disk cache or from a file would have to
    be built again.
    """
    if not wiring.states or not isinstance(wiring.model, BuiltModel) or seconds <= 0:
        return None
    inputs = wiring.inputs(np.zeros((1, 1), np.int64), 0, [0], 0)
    served, _ = wiring.model.session().next_call(inputs)
    build = served.known_build
    if build is None:
        return None
    grown, fixed = state_bytes_of(wiring)
    read = _read_bytes([Kernel(use, build) for use in build.uses]) + grown * length + fixed
    threads = max((segment.pool.threads for segment in build.segments), default=1)
    return read / (Bandwidth().reading(read, threads) * seconds * 1e9)


def _measured(session: Any, inputs: dict[str, Any]) -> Measured:
    served, given = session.next_call(inputs)
    build = served.build
    uses = [(Kernel(use, build), use.segment, use.step) for use in build.uses]
    ready = Ready(build.program, build.segments, uses)
    return measure_ready(ready, lambda: given, _SECONDS)


def _step(
    found: Measured,
    tokens: int,
    length: int,
    per_layer: dict[str, tuple[int, int]],
    gbps: float,
) -> StepCost:
    wall = max(found.wall.ns, 1.0)
    parts: dict[str, list[float]] = {}
    numbers: dict[str, str] = {}
    for kernel, runs, time in found.kernels:
        name, number = _part_of(kernel.layers)
        numbers.setdefault(name, number)
        own = parts.setdefault(name, [0.0, 0.0])
        own[0] += runs * _weight_bytes(kernel)
        own[1] += time.ns
    rows = []
    for name, (weights, ns) in parts.items():
        grown, fixed = per_layer.get(numbers[name], (0, 0))
        cached = grown * length + fixed if numbers[name] else 0
        limit = (weights + cached) / gbps / max(ns, 1.0)
        rows.append(PartCost(name, int(weights), cached, ns, ns / wall, limit))
    arena = sum(segment.plan.arena_bytes for segment in found.ready.segments)
    return StepCost(tokens, length, wall, tuple(rows), arena, gbps)


def _part_of(layers: Sequence[str]) -> tuple[str, str]:
    """Returns the decoder layer to which a kernel belongs and its number; for other kernels, the
    name of the first layer and "".
    """
    for layer in layers:
        match = _DECODER_LAYER.match(layer)
        if match:
            return match[1], match[2]
    return (layers[0] if layers else _OTHER), ""


def _constants(kernel: Kernel) -> list[Constant]:
    return [a for a in kernel.call.args if isinstance(a, Constant)]


def _weight_bytes(kernel: Kernel) -> int:
    """Returns the bytes of weights that a kernel must read, not counting scalars."""
    reads = read_bytes_of(stages(kernel.tensors))
    pairs = zip(kernel.parameters, kernel.call.args, strict=False)
    own = [tensor for tensor, value in pairs if isinstance(value, Constant) and value.tensor.rank]
    return sum(kernel.build.number(reads.get(tensor, 0)) for tensor in own)


def _read_bytes(kernels: Sequence[Kernel]) -> int:
    return sum(map(_weight_bytes, kernels))


def state_bytes_of(wiring: Wiring) -> tuple[int, int]:
    """Returns the bytes of the states of a sequence: those per token, and those of fixed size."""
    found = _cache_bytes(wiring).values()
    return sum(grown for grown, _ in found), sum(fixed for _, fixed in found)


def _cache_bytes(wiring: Wiring) -> dict[str, tuple[int, int]]:
    """Returns the bytes of the states of a sequence by layer number: those per token, and those of
    fixed size.
    """
    specs = {spec.name: spec for spec in wiring.model.inputs}
    found: dict[str, tuple[int, int]] = {}
    for state in wiring.states:
        spec = specs[state.name]
        sizes = [n for n in spec.shape if isinstance(n, int)]
        count = int(np.prod(sizes, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        number = next(iter(re.findall(r"\d+", state.name)), "")
        grown, fixed = found.get(number, (0, 0))
        is_growing = state.axis >= 0
        found[number] = (grown + count * is_growing, fixed + count * (not is_growing))
    return found


def bytes_text(size: int) -> str:
    """Returns a number of bytes as text, with three significant digits, such as `12.3 MB`."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
