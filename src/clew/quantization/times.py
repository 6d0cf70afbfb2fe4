"""What each layer costs in floats and in integers: the times of the kernels where it lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clew.profile.report import Profile
from clew.quantization.sites import Site


@dataclass(frozen=True)
class LayerTime:
    """The time of a layer's kernels in microseconds, in the float and in the quantized model, and
    the names of these kernels. A kernel of several layers with products counts for each in equal
    parts; conversions in kernels of their own count for the layers that read the result.
    """

    layer: str
    float_us: float
    quantized_us: float
    float_kernels: tuple[str, ...]
    quantized_kernels: tuple[str, ...]

    @property
    def saved_us(self) -> float:
        """What quantization saves."""
        return self.float_us - self.quantized_us


def layer_times(
    sites: Sequence[Site],
    conversions: Mapping[str, Sequence[str]],
    floats: Profile,
    quantized: Profile,
) -> tuple[LayerTime, ...]:
    """Returns the times of sites in two profiles. `conversions` has, by the layer of a conversion,
    the sites that read its result.
    """
    names = {s.name: set(s.call.span.layers) for s in sites}
    before = _of(floats, names, {})
    after = _of(quantized, names, conversions)
    return tuple(
        LayerTime(
            name, before[name][0], after[name][0], *(tuple(k[name][1]) for k in (before, after))
        )
        for name in names
    )


def _of(
    profile: Profile, names: Mapping[str, set[str]], conversions: Mapping[str, Sequence[str]]
) -> dict[str, tuple[float, list[str]]]:
    found: dict[str, tuple[float, list[str]]] = {name: (0.0, []) for name in names}
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
