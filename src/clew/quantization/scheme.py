"""How layers are quantized: a scheme for all of them, and rules for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from clew.ir.types import bits, integer_limits
from clew.quantization.where import Where
from clew.support.errors import InputError

METHODS: Final = ("minmax", "percentile", "entropy", "mse")
"""The ways to choose the range of values that integers stand for."""
GRANULARITIES: Final = ("tensor", "channel")
"""One scale for a weight, or one per output channel."""
DTYPES: Final = ("u8", "i8")
"""The dtypes of quantized operands."""
WEIGHTS: Final = (*DTYPES, "u4", "i4")
"""The dtypes of quantized weights; those of 4 bits are multiplied as floats."""
DYNAMIC: Final = "dynamic"
"""Operands whose range is found in each call: `u8`, with its own scale and zero point."""
FLOAT: Final = "float"
"""Operands that are not quantized: only weights are."""
SCALES: Final = ("free", "power_of_two")
"""The scales of integers: any, or powers of two, for hardware that scales by shifting."""
SUMS: Final = ("float", "integer")
"""The operands of residual additions and averages: floats, or integers like the operands of
products.
"""
ROUNDINGS: Final = ("nearest", "gptq")
"""How weights are rounded."""
GROUP: Final = 32
"""The group of weight-only quantization unless given."""
_LEAST_BITS: Final = 4
_KINDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized.

    `activations` and `weights` are dtypes, `u8` or `i8`; weights are symmetric if `i8`. With
    `dynamic` activations, each call computes the range of its values, so no calibration data
    are needed. With `float` activations, only weights are quantized (`weight_only` makes such a
    scheme): they may then have 4 bits, `u4` or `i4`, and a scale for each `group` of that many
    input channels, or for all of them (0). `range` is the way to choose the range of
    activations, `weight_range` that of weights: `minmax` takes the extremes, `percentile` leaves
    out the share `100 - percentile` at each end, `entropy` minimizes the divergence of the
    distributions, and `mse` minimizes the mean squared error. `weight_bits` below 8 leave the
    upper bits of weights unused, as CPUs without VNNI need it for instructions that may
    saturate. `bias_correction` removes the mean error of each output channel. With `migration`,
    operands are divided by a number per input channel, and weights multiplied by it, where that
    is estimated to reduce the error (SmoothQuant; AWQ if only weights are quantized). The
    `rounding` `gptq` of weights alone compensates the error of each input channel by others; it
    needs calibration data.

    With `scales="power_of_two"`, scales are powers of two and zero points 0, for hardware that
    scales by shifting. Each bias then includes a quarter of the step of its sum: no sum lies midway
    between two integers, so hardware that rounds ties in another way computes the same integers.

    With `sums="integer"`, operands of residual additions are rounded, too, except for the result of
    the product in whose kernel the sum can be computed. Operands of averages are rounded as well,
    and so are those of the max pools between quantized layers, which are exact on integers.
    """

    activations: str = "u8"
    weights: str = "i8"
    granularity: str = "channel"
    range: str = "mse"
    weight_range: str = "mse"
    percentile: float = 99.99
    weight_bits: int = 8
    bias_correction: bool = True
    migration: bool = True
    group: int = 0
    rounding: str = "nearest"
    scales: str = "free"
    sums: str = "float"

    def __post_init__(self) -> None:
        """Checks the fields. Errors: I390."""
        for one in fields(self):
            value, kind = getattr(self, one.name), type(one.default)
            fits = isinstance(value, (int, float) if kind is float else kind)
            if not fits or isinstance(value, bool) != (kind is bool):
                shown = repr(value)[:_SHOWN_CHARS]
                raise InputError("I390", f"{one.name} is {shown}", hint=f"it is {_KINDS[kind]}")
        _one_of("activations", self.activations, (*DTYPES, DYNAMIC, FLOAT))
        _one_of("weights", self.weights, WEIGHTS)
        _one_of("granularity", self.granularity, GRANULARITIES)
        _one_of("range", self.range, METHODS)
        _one_of("weight_range", self.weight_range, ("minmax", "mse"))
        _one_of("rounding", self.rounding, ROUNDINGS)
        _one_of("scales", self.scales, SCALES)
        _one_of("sums", self.sums, SUMS)
        if self.shifts and (self.activations, self.weights) != ("i8", "i8"):
            raise InputError(
                "I390",
                f"scales={self.scales!r} with activations={self.activations!r} and "
                f"weights={self.weights!r}",
                hint="numbers without a zero point on both sides of 0 are i8: give both as i8",
            )
        if self.rounds_sums and self.activations not in DTYPES:
            raise InputError(
                "I390",
                f"sums={self.sums!r} with activations={self.activations!r}",
                hint=f"a sum of integers needs ranges that are known before a call: give "
                f"activations as one of {', '.join(DTYPES)}, or sums={SUMS[0]!r}",
            )
        if not _LEAST_BITS <= self.weight_bits <= 8:
            raise InputError("I390", f"weight_bits is {self.weight_bits}", hint="4 to 8")
        if not 50 < self.percentile <= 100:
            raise InputError("I390", f"percentile is {self.percentile}", hint="above 50, up to 100")
        if self.group < 0:
            raise InputError("I390", f"group is {self.group}", hint="32, 64, 128, or 0 for all")
        if self.is_weight_only:
            _one_of("granularity", self.granularity, ("channel",))
        elif self.group or self.rounding != "nearest" or self.weights not in DTYPES:
            raise InputError(
                "I390",
                f"weights of 4 bits, group= and rounding= need activations={FLOAT!r}, and these "
                f"are {self.activations!r}",
                hint="Scheme.weight_only() quantizes only weights; a rule that changes "
                'activations back also needs {"weights": "i8", "group": 0, "rounding": "nearest"}',
            )

    @staticmethod
    def weight_only(weights: str = "u4", *, group: int = GROUP, **fields: Any) -> Scheme:
        """Returns a scheme that quantizes weights and leaves activations in floats.

        Without calibration data, weights are rounded to nearest with the scales of least squared
        error. Errors: I390.
        """
        return Scheme(**{"activations": FLOAT, "weights": weights, "group": group, **fields})

    @staticmethod
    def shifting(**fields: Any) -> Scheme:
        """Returns a scheme for hardware that multiplies 8-bit integers, adds in 32 bits and scales
        by shifting: a power of two as scale of each value and of each weight, no zero points, and
        sums of integers. Errors: I390.
        """
        given = {
            "activations": "i8",
            "weights": "i8",
            "granularity": "tensor",
            "migration": False,
            "scales": "power_of_two",
            "sums": "integer",
        }
        return Scheme(**{**given, **fields})

    @property
    def shifts(self) -> bool:
        """Whether all scales are powers of two."""
        return self.scales == "power_of_two"

    @property
    def rounds_sums(self) -> bool:
        """Whether operands of residual additions are rounded."""
        return self.sums == "integer"

    @property
    def is_dynamic(self) -> bool:
        """Whether each call finds the ranges of operands."""
        return self.activations == DYNAMIC

    @property
    def is_weight_only(self) -> bool:
        """Whether operands stay in floats."""
        return self.activations == FLOAT

    @property
    def is_symmetric(self) -> bool:
        """Whether weights have no zero point."""
        return self.weights[0] == "i"

    @property
    def weight_limits(self) -> tuple[int, int]:
        """The smallest and the largest integer of a weight. Symmetric ranges have no `-128`; with
        4 bits, the 16th number is worth a range that is not.
        """
        low, high = integer_limits(self.weights)
        shift = max(bits(self.weights) - self.weight_bits, 0)
        low, high = low >> shift, high >> shift
        return (-high, high) if self.weights == "i8" else (low, high)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError("I390", f"{name} is {value!r}", hint=f"one of {', '.join(known)}")


@dataclass(frozen=True)
class Rule:
    """Layers, and what is different for them: changed fields of the scheme, or `keep` for layers
    that stay in floats. Of several rules that match a layer, the last one counts.
    """

    where: Where
    changes: Mapping[str, Any] = field(default_factory=dict)
    keep: bool = False

    def __post_init__(self) -> None:
        """Checks the names of the fields. Errors: I390."""
        known = [f.name for f in fields(Scheme)]
        for name in self.changes:
            if name not in known:
                raise InputError(
                    "I390", f"a scheme has no field {name!r}", hint=f"it has {', '.join(known)}"
                )

    def over(self, scheme: Scheme | None) -> Scheme | None:
        """Returns the scheme of a layer that the rule matches; None for floats."""
        if self.keep:
            return None
        return replace(scheme or Scheme(), **self.changes)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data."""
        found: dict[str, Any] = {"where": self.where.to_json()}
        return found | ({"keep": True} if self.keep else {"changes": dict(self.changes)})

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Rule:
        """Returns the rule of plain data."""
        where = Where.of_json(data["where"])
        return Rule(where, dict(data.get("changes", {})), bool(data.get("keep", False)))


def scheme_of_json(data: Mapping[str, Any]) -> Scheme:
    """Returns the scheme of plain data. Errors: I390."""
    known = {f.name for f in fields(Scheme)}
    for name in data:
        if name not in known:
            raise InputError("I390", f"a scheme has no field {name!r}")
    return Scheme(**data)


def scheme_to_json(scheme: Scheme) -> dict[str, Any]:
    """Returns plain data."""
    return asdict(scheme)
