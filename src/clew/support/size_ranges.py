"""Ranges of free dimensions: the sizes a model is compiled for, and those expected most.

`clew.compile(model, sizes={"seq": (1, 512), "batch": [1, 8]})` gives them by name. Passes and
schedules ask `SizeRanges.of(name)`, which also answers for names that are not given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from clew.support.dataclass import dataclass
from clew.support.errors import Hint, InputError

TYPICAL_SIZE: Final = 127
"""The typical size of a dimension without likely sizes, if its range includes it. It is a prime, so
that no tile seems to divide it.
"""
_LARGEST: Final = (1 << 63) - 1
_KEYS: Final = ("range", "likely")
_FORMS: Final = Hint(
    "(1, 512) is a range, [1, 8] lists likely sizes, 128 fixes the size, and "
    "{'range': (1, 512), 'likely': [128]} gives both",
    cli="1:512 is a range, 1,8 lists likely sizes, 128 fixes the size, and 1:512,128 gives both",
)


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The sizes of a free dimension: from `low` to `high`, or from `low` up if `high` is None.

    `likely` holds the sizes expected most, in ascending order; other sizes of the range work, too.
    `low` and the likely sizes are at least 1, because inputs of size 0 are always handled
    separately: `empty` says whether the range includes 0. `own` holds the bounds that the model
    itself has, if it has any; the range is within them.
    """

    low: int = 1
    high: int | None = None
    likely: tuple[int, ...] = ()
    empty: bool = True
    own: tuple[int, int | None] | None = None

    def __contains__(self, size: int) -> bool:
        if size == 0:
            return self.empty
        return self.low <= size and (self.high is None or size <= self.high)

    def __str__(self) -> str:
        return bounds_text(0 if self.empty else self.low, self.high)

    @property
    def typical(self) -> int:
        """A size to optimize for: the middle one of the likely sizes, else the size of the range
        nearest to `TYPICAL_SIZE`.
        """
        if self.likely:
            return self.likely[len(self.likely) // 2]
        largest = TYPICAL_SIZE if self.high is None else min(self.high, TYPICAL_SIZE)
        return max(self.low, largest)

    @property
    def fixed(self) -> int | None:
        """The size, if the range has only one."""
        if self.high == 0:
            return 0
        return self.low if self.low == self.high and not self.empty else None

    @property
    def given(self) -> Any:
        """The range in a form that users give: a size, a tuple, a list, or a dict of both."""
        low = 0 if self.empty else self.low
        if self.fixed is not None:
            return self.fixed
        if not self.likely:
            return low, self.high
        if (low, self.high) == (0, None):
            return list(self.likely)
        return {"range": (low, self.high), "likely": list(self.likely)}

    @property
    def text(self) -> str:
        """The range in the form of the command line, which `read_size_text` reads."""
        if self.fixed is not None:
            return str(self.fixed)
        ends = f"{0 if self.empty else self.low}:{'' if self.high is None else self.high}"
        return ",".join([ends, *map(str, self.likely)])

    def within(self, low: int, high: int | None) -> SizeRange | None:
        """Returns the range limited to the bounds that the model itself has; None if no size is
        left, or if a likely size is outside.
        """
        most = [one for one in (self.high, high) if one is not None]
        found = SizeRange(
            max(self.low, low), min(most) if most else None, self.likely, self.empty and low == 0,
            (low, high),
        )  # fmt: skip
        if any(size not in found for size in self.likely):
            return None
        some = found.high is None or found.low <= found.high
        return found if some or (found.empty and found.high == 0) else None

    def excludes_itself(self, size: int) -> bool:
        """Whether the model itself, not what it was compiled for, excludes a size."""
        return self.own is not None and not (
            self.own[0] <= size and (self.own[1] is None or size <= self.own[1])
        )

    def widened(self, size: int) -> tuple[int, int | None]:
        """Returns the bounds of the smallest range that includes this one and a size."""
        low = min(0 if self.empty else self.low, size)
        return low, None if self.high is None else max(self.high, size)

    def to_json(self) -> dict[str, Any]:
        """Returns the range as JSON."""
        own = {} if self.own is None else {"own": self.own}
        plain = {"low": self.low, "high": self.high, "likely": self.likely, "empty": self.empty}
        return {**plain, **own}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> SizeRange:
        """Returns the range that `to_json` wrote; a contradiction is an `AssertionError`."""
        low, high, likely = record["low"], record["high"], tuple(record["likely"])
        own = tuple(record["own"]) if "own" in record else None
        if own is not None and len(own) != 2:
            raise AssertionError("a range has two ends")
        found = SizeRange(low, high, likely, record["empty"], own)
        ends = [n for n in (high, *(own or ())) if n is not None]
        if any(type(n) is not int for n in (low, *likely, *ends)) or type(found.empty) is not bool:
            raise AssertionError("sizes are whole numbers")
        return found


class SizeRanges(Mapping[str, SizeRange]):
    """The ranges of a model's free dimensions, by name. Immutable and hashable.

    It holds the ranges that were given; `of` also returns the default for other names.
    """

    __slots__ = ("_ranges",)

    def __init__(self, ranges: Mapping[str, SizeRange] | None = None) -> None:
        self._ranges: Final = dict(sorted((ranges or {}).items()))

    def __getitem__(self, name: str) -> SizeRange:
        return self._ranges[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def __hash__(self) -> int:
        return hash(tuple(self._ranges.items()))

    def __repr__(self) -> str:
        return f"SizeRanges({self._ranges!r})"

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {one}{_listing(', likely ', one.likely)}" for name, one in self._ranges.items()
        )

    def of(self, name: str) -> SizeRange:
        """Returns the range of a free dimension: the given one, else all sizes."""
        return self._ranges.get(name, _ALL)

    def typical(self, name: str) -> int:
        """Returns the size of a free dimension to optimize for."""
        return self.of(name).typical

    @property
    def expected(self) -> tuple[tuple[str, int], ...]:
        """The sizes to optimize for, by name, of the dimensions whose ranges say more than that
        `TYPICAL_SIZE` is one of them.
        """
        return tuple(
            (name, one.typical)
            for name, one in self._ranges.items()
            if one.likely or one.high is not None or one.low > TYPICAL_SIZE
        )

    @property
    def fixed(self) -> dict[str, int]:
        """The dimensions whose range has only one size, with that size."""
        sizes = {name: one.fixed for name, one in self._ranges.items()}
        return {name: size for name, size in sizes.items() if size is not None}

    def within(self, own: Mapping[str, tuple[int, int | None]]) -> SizeRanges:
        """Returns these ranges, limited to those that the model itself has.

        Errors: I315 for sizes that the model excludes.
        """
        found = dict(self._ranges)
        for name, (low, high) in own.items():
            inside = self.of(name).within(low, high)
            if inside is None:
                text = f"the model itself has the range {bounds_text(low, high)}"
                raise _wrong(name, text, hint="give sizes inside this range")
            found[name] = inside
        return SizeRanges(found)

    def without(self, names: Iterable[str]) -> SizeRanges:
        """Returns the ranges of all other names."""
        left_out = set(names)
        return SizeRanges({n: one for n, one in self._ranges.items() if n not in left_out})


_ALL: Final = SizeRange()
Bounds: TypeAlias = "tuple[int | None, int | None]"
GivenSize: TypeAlias = "int | Bounds | range | Sequence[int] | Mapping[str, Any] | SizeRange"
"""A value that a user gives for a name: a size, a range, a list of likely sizes, or both in a dict.
"""


def bounds_text(low: int, high: int | None) -> str:
    """Returns a range as text."""
    return f"{low} or more" if high is None else f"{low} to {high}"


def read_sizes(given: Mapping[str, GivenSize]) -> SizeRanges:
    """Returns the ranges in the form that users give them.

    For each name: an int fixes the size; a tuple of two is a range, both ends included, in which
    None is no limit; a `range` object, whose end is not included, is a range; a list holds likely
    sizes; and a dict has a `range`, `likely` sizes, or both.

    Errors: I315.
    """
    if not isinstance(given, Mapping):
        raise InputError(
            "I315",
            f"sizes is a {type(given).__name__}, not a mapping",
            hint="sizes={'seq': (1, 512)} gives the sizes of a free dimension by its name",
        )
    return SizeRanges({_name(name): _range_of(name, one) for name, one in given.items()})


def read_size_text(name: str, text: str) -> SizeRange:
    """Returns the range in the form of the command line: `128` (fixed), `1:512` (a range, in which
    both ends may be missing), `1,8` (likely sizes), or `1:512,64,128` (both).

    Errors: I315.
    """
    words = [word.strip() for word in text.split(",")]
    ends = [word.split(":") for word in words if ":" in word]
    sizes = [word for word in words if ":" not in word]
    bounds = ends[0] if ends else ["", ""]
    numbers = [*sizes, *(end.strip() for end in bounds if end.strip())]
    if len(ends) > 1 or len(bounds) != 2 or not all(_is_number(n) for n in numbers):
        raise _wrong(name, f"{text!r} has none of the forms of sizes")
    if not ends and len(sizes) == 1:
        return _range_of(name, int(sizes[0]))
    low, high = (int(end) if end.strip() else None for end in bounds)
    return _both(name, (low, high), list(map(int, sizes)) or None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST))


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise _wrong(name, "a dimension has a name")
    return name


def _range_of(name: str, given: object) -> SizeRange:
    """Returns the range given for one name."""
    if isinstance(given, SizeRange):
        return given
    if isinstance(given, Mapping):
        unknown = [key for key in given if key not in _KEYS]
        if unknown or not given:
            raise _wrong(name, f"the dict has the keys {list(given)!r}, expected range and likely")
        return _both(name, given.get("range", (None, None)), given.get("likely"))
    if isinstance(given, list):
        return _both(name, (None, None), given)
    if isinstance(given, (tuple, range)):
        return _both(name, given, None)
    size = _size(name, given)
    return _both(name, (size, size), None)


def _both(name: str, bounds: object, likely: object) -> SizeRange:
    low, high = _bounds(name, bounds)
    if likely is not None and not isinstance(likely, (list, tuple)):
        raise _wrong(name, f"likely is {likely!r}, not a list of sizes")
    if likely is not None and not likely:
        raise _wrong(name, "the list of likely sizes is empty")
    sizes = sorted({_size(name, size) for size in likely or ()})
    found = SizeRange(max(low, 1), high, tuple(sizes), low == 0)
    outside = [size for size in sizes if size == 0 or size not in found]
    if outside:
        above = SizeRange(found.low, high, (), empty=False)
        raise _wrong(name, f"the likely size {outside[0]} is not in the range of {above}")
    return found


def _bounds(name: str, given: object) -> tuple[int, int | None]:
    if isinstance(given, range):
        if given.step != 1:
            raise _wrong(name, f"{given!r} has a step")
        given = (given.start, given.stop - 1)
    if not isinstance(given, tuple) or len(given) != 2:
        raise _wrong(name, f"the range is {given!r}, not a pair of sizes")
    low = 0 if given[0] is None else _size(name, given[0])
    high = None if given[1] is None else _size(name, given[1])
    if high is not None and high < low:
        raise _wrong(name, f"the range from {low} to {high} has no sizes")
    return low, high


def _size(name: str, given: object) -> int:
    """Returns a size given as an int, of Python or NumPy."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise _wrong(name, f"{given!r} is not a size")
    size: int = given.__index__()
    if not 0 <= size <= _LARGEST:
        raise _wrong(name, f"{size} is not a size")
    return size


def _wrong(name: object, why: str, hint: str = _FORMS) -> InputError:
    return InputError("I315", f"the sizes given for {name!r}: {why}", hint=hint)


def _listing(before: str, sizes: Sequence[int]) -> str:
    return before + ", ".join(map(str, sizes)) if sizes else ""
