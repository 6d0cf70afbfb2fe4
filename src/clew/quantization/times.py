"""The cost of each layer in floats and in integers: the times of the kernels that compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clew.cost.products import multiply_adds_per_cycle
from clew.machine.target import Target
from clew.profile.report import Profile
from clew.quantization.sites import Site

_Found = dict[str, tuple[float, list[str]]]


@dataclass(frozen=True)
class LayerTime:
    """The time of a layer's kernels in microseconds, in the float and in the quantized model, and
    the names of these kernels. A kernel of several layers with products counts for each in equal
    parts; conversions in separate kernels count for the layers that read the result. `bf16_us`
    is the time with products of bf16, None if the target has no instructions for them.
    """

    layer: str
    float_us: float
    quantized_us: float
    float_kernels: tuple[str, ...]
    quantized_kernels: tuple[str, ...]
    bf16_us: float | None = None
    bf16_kernels: tuple[str, ...] = ()

    @property
    def saved_us(self) -> float:
        """The time that quantization saves."""
        return self.float_us - self.quantized_us


@dataclass(frozen=True)
class Timing:
    """The times of layers, and of runs of the whole model, in microseconds: in floats, with all
    layers quantized, and with products of bf16. `without_bf16` is the reason why these are missing,
    or "".
    """

    layers: tuple[LayerTime, ...]
    float_us: float
    quantized_us: float
    bf16_us: float | None = None
    without_bf16: str = ""

    def of(self, layer: str) -> LayerTime | None:
        """Returns the times of a layer; None if a rule keeps it in floats."""
        return next((t for t in self.layers if t.layer == layer), None)

    def lines(self) -> list[str]:
        """Returns the times of the model in words."""
        bf16 = "" if self.bf16_us is None else f", {self.bf16_us / 1e3:.3g} ms in bf16"
        found = [
            f"a run takes {self.float_us / 1e3:.3g} ms in f32{bf16}, "
            f"{self.quantized_us / 1e3:.3g} ms with all of these layers quantized"
        ]
        return [*found, *([self.without_bf16] if self.without_bf16 else [])]


def why_no_bf16(target: Target) -> str:
    """Returns why products of bf16 are not timed on a target; "" if they can be. Without
    instructions for them, a time says nothing about bf16.
    """
    if multiply_adds_per_cycle(target, "bf16", "bf16") > 0:
        return ""
    return f"bf16 is not timed: {target.cpu} has no instructions for products of bf16"


def layer_times(
    sites: Sequence[Site],
    conversions: Mapping[str, Sequence[str]],
    floats: Profile,
    quantized: Profile,
    bf16: Profile | None = None,
) -> tuple[LayerTime, ...]:
    """Returns the times of sites in two or three profiles. `conversions` has, by the layer of a
    conversion, the sites that read its result.
    """
    names = {s.name: set(s.call.span.layers) for s in sites}
    before = _of(floats, names, {})
    after = _of(quantized, names, conversions)
    times = [
        LayerTime(
            name, before[name][0], after[name][0], tuple(before[name][1]), tuple(after[name][1])
        )
        for name in names
    ]
    if bf16 is not None:
        found = _of(bf16, names, {})
        times = [
            replace(t, bf16_us=found[t.layer][0], bf16_kernels=tuple(found[t.layer][1]))
            for t in times
        ]
    return tuple(times)


def _of(
    profile: Profile, names: Mapping[str, set[str]], conversions: Mapping[str, Sequence[str]]
) -> _Found:
    found: _Found = {name: (0.0, []) for name in names}
    for kernel in profile.kernels:
        layers = set(kernel.layers)
        serving = [name for name, own in names.items() if own & layers]
        if not serving:
            serving = [s for layer in kernel.layers for s in conversions.get(layer, ())]
        for name in dict.fromkeys(serving):
            us, kernels = found[name]
            share = kernel.time.ns / 1e3 / len(set(serving))
            found[name] = us + share, [*kernels, kernel.name]
    return found
