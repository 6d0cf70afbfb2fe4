"""The rotary embedding that a configuration describes.

Source: `modeling_rope_utils.py` of transformers; Llama 3.1 for `llama3`; Peng et al., YaRN, 2023;
Ding et al., LongRoPE, 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from clew.frontends.checkpoint.config import Config, is_real, unsupported
from clew.support.dataclass import dataclass

_MOST_ROTATED: Final = 1 << 16  # elements of a head
_LEAST_BASE: Final = 1e-6  # of rotary angles, whose powers stay finite


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of queries and keys: the angle per position of each pair of elements, and
    the factor of cosines and sines. Calls that end beyond position `short` use `long_angles`, if
    there are any. A pair is an element of the first half with one of the second, or two neighbors
    if the embedding is interleaved.
    """

    angles: tuple[float, ...]
    factor: float = 1.0
    short: int = 0
    long_angles: tuple[float, ...] = ()
    is_interleaved: bool = False


@dataclass(frozen=True)
class _Scaled:
    """The input of a scaling rule: the whole configuration, the fields of the rule, and the
    unscaled angles, whose base is `theta`.
    """

    config: Config
    scaling: Config
    angles: tuple[float, ...]
    theta: float

    @property
    def length(self) -> int:
        """The original context length: the number of positions before the model was extended."""
        name = "original_max_position_embeddings"
        if name in self.config:
            return self.config.count(name)
        return self.scaling.count(name) if name in self.scaling else self._most

    @property
    def _most(self) -> int:
        return self.config.count("max_position_embeddings")

    @property
    def extension(self) -> float:
        """The factor by which the number of positions was extended."""
        if "factor" not in self.scaling:
            return self._most / self.length
        return self.positive("factor")

    def positive(self, name: str, default: float | None = None) -> float:
        """Returns a positive field of the rule."""
        found = self.scaling.real(name) if default is None else self.scaling.real(name, default)
        if found <= 0:
            self.scaling.invalid(name)
        return found


_Rule: TypeAlias = Callable[[_Scaled], Rotary]


def rotary_of(
    config: Config, head_size: int, kind: str = "", base: str = "rope_theta", share: float = 1.0
) -> Rotary:
    """Returns the rotary embedding of layers of a kind. `share` is the rotated part of a head if
    the configuration does not set `partial_rotary_factor`; `base` is the field with the base of the
    angles.

    Errors: M071; U009 for an unsupported scaling rule.
    """
    given = config.part("rope_parameters")
    if kind and kind in given:
        given = given.part(kind)
    theta = given.real("rope_theta", config.real(base, 10000.0))
    scaling = given if "rope_type" in given else config.part("rope_scaling")
    share = given.real("partial_rotary_factor", config.real("partial_rotary_factor", share))
    rotated = int(head_size * share)
    if rotated < 2 or rotated > min(head_size, _MOST_ROTATED) or rotated % 2:
        given.invalid("partial_rotary_factor")
    if theta < _LEAST_BASE:
        given.invalid("rope_theta")
    angles = tuple(theta ** (-2 * i / rotated) for i in range(rotated // 2))
    rule = scaling.text("rope_type", scaling.text("type", "default"))
    if rule not in _RULES:
        raise unsupported(f"models with rotary scaling {rule!r:.40}")
    return _RULES[rule](_Scaled(config, scaling, angles, theta))


def _default(of: _Scaled) -> Rotary:
    return Rotary(of.angles)


def _linear(of: _Scaled) -> Rotary:
    factor = of.positive("factor")
    return Rotary(tuple(a / factor for a in of.angles))


def _llama3(of: _Scaled) -> Rotary:
    factor, length = of.positive("factor"), of.length
    low, high = of.scaling.real("low_freq_factor"), of.scaling.real("high_freq_factor")
    if high <= low:
        of.scaling.invalid("high_freq_factor")

    def smoothed(angle: float) -> float:
        turns = length * angle / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - share) * angle / factor + share * angle

    return Rotary(tuple(map(smoothed, of.angles)))


def _yarn(of: _Scaled) -> Rotary:
    """Keeps angles that make many turns over the original context length, divides those that make
    few turns by the extension, and interpolates between the two.
    """
    pairs, extension = len(of.angles), of.extension
    if of.theta <= 1:
        of.scaling.invalid("rope_theta")

    def place(turns: float) -> float:
        """Returns the index of the pair that makes `turns` turns over the original context length,
        which may be a fraction.
        """
        return pairs * math.log(of.length / (turns * 2 * math.pi)) / math.log(of.theta)

    low, high = place(of.positive("beta_fast", 32.0)), place(of.positive("beta_slow", 1.0))
    if of.scaling.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low if high != low else 0.001
    shares = [min(max((i - low) / width, 0.0), 1.0) for i in range(pairs)]
    angles = (a * (1 - s) + a / extension * s for a, s in zip(of.angles, shares, strict=True))
    return Rotary(tuple(angles), _yarn_factor(of, extension))


def _yarn_factor(of: _Scaled, extension: float) -> float:
    """Returns the factor of cosines and sines."""

    def grown(scale: float) -> float:
        return 0.1 * scale * math.log(extension) + 1 if extension > 1 else 1.0

    if "attention_factor" in of.scaling:
        return of.positive("attention_factor")
    own, all_dims = (of.scaling.real(name, 0.0) for name in ("mscale", "mscale_all_dim"))
    if not own or not all_dims:
        return grown(1.0)
    if grown(all_dims) <= 0:
        of.scaling.invalid("mscale_all_dim")
    return grown(own) / grown(all_dims)


def _longrope(of: _Scaled) -> Rotary:
    """Divides each angle by its own factor. A second list of factors applies to calls that end
    beyond the original context length.
    """
    length, extension = of.length, of.extension
    if "attention_factor" in of.scaling:
        factor = of.positive("attention_factor")
    elif extension <= 1:
        factor = 1.0
    else:
        factor = math.sqrt(1 + math.log(extension) / math.log(max(length, 2)))
    given = [of.scaling.real(f"{name}_mscale", 0.0) for name in ("short", "long")]
    if given[0] != given[1]:  # the factor would differ between keys in the cache
        raise unsupported("models with another short_mscale than long_mscale")
    factor = given[0] or factor
    short, long = (_divided(of, name) for name in ("short_factor", "long_factor"))
    return Rotary(short, factor, length, long)


def _divided(of: _Scaled, name: str) -> tuple[float, ...]:
    factors: Sequence[object] = of.scaling.items(name, len(of.angles))
    if not all(is_real(f) and f > 0 for f in factors):  # type: ignore[operator]
        of.scaling.invalid(name)
    return tuple(a / f for a, f in zip(of.angles, factors, strict=True))  # type: ignore[operator]


_RULES: Final[dict[str, _Rule]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
