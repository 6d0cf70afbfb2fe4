"""Decides whether two results are the same computation.

Types, shapes, integers and booleans must be equal. The tolerance of a float is the possible effect
of rounding, which differs from element to element: the graph is evaluated again several times, with
the operands of every rounding operator perturbed randomly by about an ulp. The movement of a result
is its condition. If it moves far, little can be compared; if it does not move, an error has no
excuse. An element that changes its kind (finite, infinite, NaN) or its integral value meanwhile
lies at a jump and is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np

from clew.ir.expr import Call
from clew.ir.types import TensorType, TupleType, Type, is_float
from fuzz.dtypes import Array

_FEW: Final = 8
_BATCHES: Final = (2, 2, 4, 8, 32)
"""Sizes of the batches of perturbed runs: more runs only excuse more differences; a jump is rarely
hit.
"""
_SLACK: Final = 12.0
_EXACT: Final = frozenset({
    "abs", "all", "any", "argmax", "argmin", "broadcast_to", "cast", "ceil", "clip", "compress",
    "concatenate", "depth_to_space", "equal", "flip", "floor", "full", "gather", "gather_elements",
    "gather_nd", "greater", "greater_equal", "identity", "isinf", "isnan", "less", "less_equal",
    "max", "maximum", "min", "minimum", "negative", "nn.max_pool2d", "nn.relu",
    "nn.global_max_pool2d",
    "nonzero", "not_equal", "one_hot", "pad", "reshape", "round", "sign", "slice", "space_to_depth",
    "split", "tile", "top_k", "transpose", "trilu", "trunc", "unique", "where",
    "non_max_suppression",
})  # fmt: skip
"""Operators that round nothing: their operands decide."""
_LOOSE: Final = frozenset({
    "nn.elu", "nn.selu", "nn.celu", "nn.gelu", "nn.softplus", "nn.mish", "nn.softsign", "nn.silu",
    "tanh", "sinh", "erf", "sigmoid", "asinh", "atanh", "log", "sin", "cos", "tan", "resize",
    "grid_sample", "nn.lrn", "mean",
})  # fmt: skip
"""Operators that other engines work out through values as large as one, or as their operands."""
_NORMS: Final = frozenset(
    {"nn.layer_norm", "nn.instance_norm", "nn.group_norm", "nn.batch_norm", "nn.rms_norm"}
)
"""Those that others work out as `x * a + b`: `a` is as large as one by the root of epsilon."""
_LARGEST_SCALE: Final = 320.0
_NEAR_ONE: Final = frozenset({"nn.log_softmax", "logsumexp", "log_sum", "nn.gelu"})
"""Operators whose definition rounds at one: logarithms of sums, one plus an error function."""
_FLAT: Final = frozenset({"dft", "stft", "window"})
"""Operators each of whose results is off by as much as the largest; where an operand is not finite,
which of the results are is a matter of the way.
"""
_SUMS: Final = frozenset({"sum", "mean", "l1", "l2", "sum_square", "log_sum", "logsumexp"})
_PRODUCTS: Final = frozenset({"prod", "cumprod"})
_SCALED: Final = frozenset({"multiply", "divide"})
_NARROW: Final = {"bf16": 2.0**-8, "f16": 2.0**-11}


@dataclass(frozen=True)
class Difference:
    """The difference of two results."""

    output: str
    what: str

    def __str__(self) -> str:
        return f"{self.output}: {self.what}"


class Condition:
    """How far results move with rounding; worked out when it is first asked.

    `evaluate` evaluates the graph with operators computed as a function says. `loose` allows for
    what other engines lose where they could do better. Clew's own code may put the parts of sums
    and products together in another way than its references, so that an infinity becomes a NaN.
    """

    def __init__(
        self,
        evaluate: Callable[[Any], Mapping[str, Any]],
        precision: str,
        seed: int,
        loose: bool = False,
    ) -> None:
        self._loose = loose
        self._evaluate = evaluate
        self._precision = precision
        self._seed = seed
        self._runs: list[Mapping[str, Any]] = []
        self._tried = 0
        self.asked = False

    @property
    def rearranged(self) -> bool:
        """Whether a NaN may stand for an infinity."""
        return not self._loose

    @property
    def floor(self) -> float:
        """How far off a value may be for every largest one beside it, in squares of an ulp for
        clew's own code: sums of what is exactly zero here are next to zero there.
        """
        return 1.0 if self._loose else 0.0

    @property
    def least(self) -> float:
        """How far any value may be off: inputs that products read are rounded, too."""
        return _NARROW.get(self._precision, 0.0)

    def more(self, most: int) -> bool:
        """Runs some more times; False after `most` runs."""
        if self._tried >= most:
            return False
        past = 0
        count = next(n for n in _BATCHES if (past := past + n) > self._tried)
        for _ in range(count):
            self._tried += 1
            noise = _Noise(self._seed + self._tried, self._precision, self._loose)
            with suppress(Exception):  # a size that moved with the noise
                self._runs.append(self._evaluate(noise))
        return True

    def of(self, output: str) -> list[Any]:
        """Returns one output in all runs so far."""
        self.asked = True
        if not self._tried:
            self.more(1)
        return [run[output] for run in self._runs]


class _Noise:
    def __init__(self, seed: int, precision: str, loose: bool) -> None:
        self._loose = loose
        self._rng = np.random.default_rng(seed)
        self._narrow = _NARROW.get(precision, 0.0)
        self._most = 65504.0 if precision == "f16" else 0.0

    def __call__(
        self, call: Call, args: Sequence[Any], compute: Callable[[Sequence[Any]], Any]
    ) -> Any:
        name = call.op_name
        if name == "bitcast":  # what the sign of a NaN is, nobody says
            return compute([self._with_signs_of_nan(a) for a in args])
        if not self._narrow and (name in _EXACT or not _has_floats(call.type)):
            return compute(args)
        # Where products are narrow, values that they read are stored rounded for all who read them.
        moved = [self._moved(a, self._narrow) for a in args]
        result = compute(moved)
        if isinstance(result, tuple):
            return tuple(self._moved(r, self._narrow) for r in result)
        result = self._moved(result, self._narrow)
        if name in _SUMS and _is_floats(result):
            result = self._summed(result, moved)
        if name in _PRODUCTS and _is_floats(result):
            result = self._in_two_parts(result, moved, compute)
        if name in _SCALED and self._loose and _is_floats(result):
            result = self._not_underflowed(result, moved)
        if name in _NORMS and not self._loose and _is_floats(result):
            summed = math.sqrt(max(np.size(a) for a in moved)) / 8
            result = self._blurred(self._rearranged(result), moved, max(summed, 1.0))
        if name == "nn.softmax" and _is_floats(result):
            result = self._not_underflowed(result, ())
        if name == "add" and not self._loose and _is_floats(result):
            result = self._hidden(result, moved)
        if name in _NEAR_ONE or (self._loose and name in _LOOSE):
            return self._blurred(result, moved, 1.0)
        if name in _FLAT:
            spoiled = not all(np.isfinite(a).all() for a in moved if _is_floats(a))
            if spoiled:
                result = np.where(self._signs(result.shape) > 0, np.nan, 0.0).astype(result.dtype)
            return self._blurred(result, moved, 4.0)
        if self._loose and name in _NORMS:
            return self._blurred(result, moved, _LARGEST_SCALE)
        return result

    def _blurred(self, result: Any, args: Sequence[Any], factor: float) -> Any:
        if not _is_floats(result):
            return result
        sizes = [
            float(np.max(np.abs(a[np.isfinite(a)].astype(np.float64)), initial=0))
            for a in args
            if _is_floats(a)
        ]
        step = factor * eps_of(result.dtype) * max([1.0, *sizes])
        with np.errstate(all="ignore"):
            steps = step * self._signs(result.shape)
            if factor > 1:  # zero may be any small number, whose reciprocal is any large one
                tiny = 10.0 ** -self._rng.integers(0, 12, result.shape)
                steps = np.where(result == 0, steps * tiny, steps)
            blurred = result.astype(np.float64) + steps
            return np.where((result == 0) & (factor == 1), result, blurred).astype(result.dtype)

    def _with_signs_of_nan(self, value: Any) -> Any:
        if not _is_floats(value):
            return value
        turned = (np.isnan(value)) & (self._signs(value.shape) > 0)
        return np.where(turned, -value, value).astype(value.dtype)

    def _summed(self, result: Array, args: Sequence[Any]) -> Array:
        """Returns sums moved by what adding many one by one loses more than adding two."""
        count = max(np.size(a) for a in args) / max(result.size, 1)
        step = eps_of(result.dtype) * math.sqrt(count) / 4
        with np.errstate(all="ignore"):
            wide = result.astype(np.float64) * (1 + step * self._signs(result.shape))
            return wide.astype(result.dtype)

    def _in_two_parts(
        self, result: Array, args: Sequence[Any], compute: Callable[[Sequence[Any]], Any]
    ) -> Array:
        """Returns products, some of them as that of the large ones times that of the small ones:
        NaN where one is past the largest number, and the other below the smallest. One of f16 that
        is below its numbers may be the smallest: it is rounded once, or at each step.
        """
        with np.errstate(all="ignore"):
            large, small = (
                compute([np.where(_large(a) == part, a, 1).astype(a.dtype) if _is_floats(a) else a
                         for a in args])
                for part in (True, False)
            )  # fmt: skip
            both = (large * small).astype(result.dtype)
        if result.dtype == np.float16:
            both = np.where(both == 0, np.float16(2.0**-24), both)
        return np.where(self._signs(result.shape) > 0, both, result)

    def _rearranged(self, result: Array) -> Array:
        """Returns results, some of the infinities among them as NaN."""
        lost = np.isinf(result) & (self._signs(result.shape) > 0)
        return np.where(lost, np.nan, result).astype(result.dtype)

    def _not_underflowed(self, result: Array, args: Sequence[Any]) -> Array:
        """Returns results of f16, some that are below its numbers as the smallest: who has them in
        f32 may ask those whether they are 0, or multiply them by an infinity.
        """
        if result.dtype != np.float16:
            return result
        lost = (result == 0) & (self._signs(result.shape) > 0)
        for a in args:
            lost &= np.broadcast_to(a != 0, result.shape)
        return np.where(lost, np.float16(2.0**-24), result)

    def _hidden(self, result: Array, args: Sequence[Any]) -> Array:
        """Returns sums, some of them of opposite infinities as the negative one: clew does not read
        what a causal mask hides.
        """
        a, b = (np.broadcast_to(x, result.shape) for x in args)
        opposite = np.isinf(a) & np.isinf(b) & (a != b) & (self._signs(result.shape) > 0)
        return np.where(opposite, -np.inf, result).astype(result.dtype)

    def _signs(self, shape: tuple[int, ...]) -> Array:
        return self._rng.integers(0, 2, shape, np.int8) * 2.0 - 1.0

    def _moved(self, value: Any, least: float) -> Any:
        if not _is_floats(value):
            return value
        step = max(eps_of(value.dtype), least)
        signs = self._signs(value.shape)
        wide = value.astype(np.float64) * (1 + step * signs)
        if value.dtype == np.float16 or self._most:  # below normal numbers an ulp is always this
            wide += np.where(value == 0, 0.0, signs * 2.0**-24)
        with np.errstate(all="ignore"):
            moved = wide.astype(value.dtype)
            if self._most:
                wide = np.where(np.abs(wide) > self._most, np.copysign(np.inf, wide), wide)
                moved = wide.astype(value.dtype)
                return moved
            kept: Array = np.where(np.isfinite(wide), moved, value).astype(value.dtype)
        return kept


def _large(array: Array) -> Array:
    return np.abs(array) > 1


@cache
def eps_of(dtype: np.dtype[Any]) -> float:
    """Returns the distance from one to the next number."""
    if dtype.isbuiltin == 1:
        return float(np.finfo(dtype).eps)
    return {"bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}.get(
        dtype.name, 0.25
    )


def difference(
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    condition: Condition,
    few: bool = False,
) -> Difference | None:
    """Returns the first difference of two engines' results, None if they agree. After only a `few`
    perturbed runs it may report a difference that more runs would excuse.
    """
    most = _FEW if few else sum(_BATCHES)
    for name, want in wanted.items():
        least, floor = condition.least, condition.floor
        condition.asked = False
        got = _with_infinities(found[name], want) if condition.rearranged else found[name]
        while what := _differs(got, want, partial(condition.of, name), least, floor):
            if not (condition.asked and condition.more(most)):
                return Difference(name, what)
    return None


def _with_infinities(found: Any, want: Any) -> Any:
    """Returns what was found with the infinities that were wanted in place of NaNs."""
    if not _is_floats(found) or not _is_floats(want) or found.shape != want.shape:
        return found
    lost = np.isnan(found.astype(np.float64)) & np.isinf(want.astype(np.float64))
    return np.where(lost, want, found).astype(found.dtype)


def identical(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Difference | None:
    """Returns the first place where two results are not the same bits."""
    for name, want in wanted.items():
        if _bits(found[name]) != _bits(want):
            what = _differs(found[name], want, list) or "signs of zero or NaNs"
            return Difference(name, f"not the same bits: {what}")
    return None


def _bits(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_bits(v) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    return (array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes())


def _differs(
    found: Any, want: Any, moved: Callable[[], list[Any]], least: float = 0.0, floor: float = 0.0
) -> str:
    """Returns a description of the difference, empty if two values agree."""
    if want is None or found is None:
        return "" if want is found else f"{found!r} for {want!r}"
    if isinstance(want, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(want):
            return f"{found!r} for a sequence of {len(want)}"
        for n, (f, w) in enumerate(zip(found, want, strict=True)):
            what = _differs(f, w, partial(_items, moved, n), least, floor)
            if what:
                return f"[{n}] {what}"
        return ""
    found, want = np.asarray(found), np.asarray(want)
    if found.dtype.kind in "OUST" and want.dtype.kind in "OUST":
        same = found.shape == want.shape and [str(v) for v in found.flat] == [
            str(v) for v in want.flat
        ]
        return "" if same else "strings"
    if found.dtype != want.dtype:
        return f"dtype {found.dtype} for {want.dtype}"
    if found.shape != want.shape:
        if any(np.shape(m) != want.shape for m in moved()):
            return ""
        return f"shape {list(found.shape)} for {list(want.shape)}"
    return _elements(found, want, moved, least, floor)


def _items(moved: Callable[[], list[Any]], n: int) -> list[Any]:
    return [m[n] for m in moved() if len(m) > n]


def _elements(
    found: Array, want: Array, moved: Callable[[], list[Any]], least: float, floor: float
) -> str:
    if not want.size or np.array_equal(found, want):
        return ""
    if not is_float_array(want):
        bad = found != want
        return _excused(bad, found, want, moved, None)
    f, w = found.astype(np.float64), want.astype(np.float64)
    eps = max(eps_of(want.dtype), least)
    tiny = (
        float(np.finfo(np.float32).tiny)
        if want.dtype.itemsize >= 4 or want.dtype.name == "bfloat16"
        else 2.0**-24
    )
    finite = np.isfinite(f) & np.isfinite(w)
    same = (np.isnan(f) & np.isnan(w)) | (f == w)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(w), initial=0.0, where=np.isfinite(w))
        step = eps_of(want.dtype)
        tiny += largest * (step if floor else step * step)
        near = finite & (np.abs(f - w) <= 4 * eps * np.abs(w) + tiny)
    bad = ~(same | near)
    return _excused(bad, f, w, moved, 4 * eps) if bad.any() else ""


def _excused(
    bad: Array, found: Array, want: Array, moved: Callable[[], list[Any]], eps: float | None
) -> str:
    runs = [np.asarray(m) for m in moved()]
    if any(m.shape != want.shape for m in runs):
        return ""
    if eps is None:
        jumps = np.zeros(want.shape, bool)
        for m in runs:
            jumps |= m != want
        bad = bad & ~jumps
    elif runs:
        with np.errstate(all="ignore"):
            wide = [m.astype(np.float64) for m in runs]
            kinds = np.zeros(want.shape, bool)
            spread = np.zeros(want.shape)
            for m in wide:
                kinds |= np.isnan(m) != np.isnan(want)
                kinds |= np.isinf(m) != np.isinf(want)
                spread = np.fmax(spread, np.abs(m - want))
            allowed = _SLACK * spread + eps * np.abs(want)
            bad = bad & ~kinds & ~(np.abs(found - want) <= allowed)
    if not bad.any():
        return ""
    n = int(np.argmax(bad.reshape(-1)))
    place = tuple(int(i) for i in np.unravel_index(n, want.shape))
    f, w = found.reshape(-1)[n], want.reshape(-1)[n]
    return f"{int(bad.sum())} of {bad.size} elements, first at {list(place)}: {f} for {w}"


def is_float_array(array: Array) -> bool:
    """Whether an array holds floats, of narrow types too."""
    return array.dtype.kind == "f" or "float" in array.dtype.name


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_float_array(value)


def _has_floats(type_: Type) -> bool:
    if isinstance(type_, TupleType):
        return any(_has_floats(t) for t in type_.fields)
    return isinstance(type_, TensorType) and is_float(type_.dtype)
