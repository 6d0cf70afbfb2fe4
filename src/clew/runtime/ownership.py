"""Whose memory the results of a program are, and which of them the program copies.

A result owns its memory: it is neither an input, a constant, another result, nor anything that a
backend keeps. Passes may remove identities and merge equal values all the same, because each
instruction says whose memory its results are, and the program copies at its border. Results that
kernels write are never copied, and cost no check either.

The state of a session is the exception (`Held`): nobody writes to it, so it is passed on unchanged.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.dims import Dim, at_least
from clew.support.addresses import address_of
from clew.support.dataclass import dataclass
from clew.support.interrupts import held_interrupts
from clew.support.lazy import cached_property
from clew.support.loading import LOADING
from clew.support.locks import once

Array: TypeAlias = "np.ndarray[Any, Any]"


@once
def _copied_bytes() -> int:
    """Returns the size up to which results are copied without finding their owners. It is imported
    late, because few programs need it.
    """
    with LOADING, held_interrupts():
        from clew.cost.policy.sizes import COPIED_BYTES  # noqa: PLC0415

    return COPIED_BYTES


class Owner(enum.Enum):
    """The owner of a value's memory."""

    RUN = "the run"
    """Memory that the run allocated for a kernel, and that only views share."""
    INPUT = "an input"
    CONSTANT = "a constant"
    ANY = "any of these"
    """Only addresses show this: a host step may return its argument, a loop its initial state."""
    OTHER = "somebody else"
    """Code outside of clew, which may keep the memory."""


@dataclass(frozen=True)
class Memory:
    """The memory of a value: `size` elements from `offset` in the value of the slot `root`. Both
    slot and place only matter if the run or an input owns it.
    """

    owner: Owner
    root: int = -1
    offset: Dim = 0
    size: Dim | None = None

    def part(self, offset: Dim, size: Dim) -> Memory:
        """Returns the memory of a part."""
        return Memory(self.owner, self.root, self.offset + offset, size)

    def is_apart(self, other: Memory) -> bool:
        """Whether no element is in both, and they are not the same value."""
        if self.root != other.root:
            return True
        if self == other:
            return False
        return _ends_before(self, other) or _ends_before(other, self)


class _Apart:
    """Memory of which no element is in another one. Takes logarithmic time for each, since a split
    may have thousands of results.
    """

    def __init__(self) -> None:
        self._in_order: dict[int, list[Memory]] = {}

    def has_room(self, memory: Memory) -> bool:
        """Whether memory is apart from all that was added."""
        there, place = self._in_order.get(memory.root, []), self._place(memory)
        if place and there[place - 1] == memory:
            return False
        return place == len(there) or _ends_before(memory, there[place])

    def add(self, memory: Memory) -> None:
        """Adds memory that is apart from the others."""
        self._in_order.setdefault(memory.root, []).insert(self._place(memory), memory)

    def _place(self, memory: Memory) -> int:
        """Returns how many of those in the same root end before it."""
        there = self._in_order.get(memory.root, [])
        return bisect_left(there, True, key=lambda other: not _ends_before(other, memory))


def _ends_before(first: Memory, second: Memory) -> bool:
    return first.size is not None and at_least(second.offset - first.offset - first.size)


ANY: Final = Memory(Owner.ANY)
OTHER: Final = Memory(Owner.OTHER)


def within(given: Sequence[Memory]) -> list[Memory]:
    """Returns the memory of a program's values as another program inside it sees them."""
    return [OTHER if memory.owner is Owner.OTHER else ANY for memory in given]


def joined(slots: Sequence[int], ways: Sequence[Sequence[Memory]]) -> list[Memory]:
    """Returns the memory of the results in `slots` of one of several programs."""
    found = []
    for number, slot in enumerate(slots):
        owners = {memories[number].owner for memories in ways}
        if Owner.OTHER in owners:
            found.append(OTHER)
        elif owners == {Owner.RUN} and all(_is_alone(number, memories) for memories in ways):
            found.append(Memory(Owner.RUN, slot))
        else:
            found.append(ANY)
    return found


def _is_alone(number: int, memories: Sequence[Memory]) -> bool:
    """Whether a result that the run owns shares memory with no other result."""
    own = memories[number]
    others = (m for n, m in enumerate(memories) if n != number and m.owner is Owner.RUN)
    return all(own.is_apart(other) for other in others)


@dataclass(frozen=True)
class Held:
    """The inputs and outputs of a program that are the state of a session, by position. Nobody
    writes to them, and they may share memory with each other and with constants.
    """

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


NOTHING_HELD: Final = Held()


class Border:
    """Gives the results of a program their own memory, except that of `held`.

    `results` says whose memory they are, `inputs` has the slots of the program's inputs, and
    `constants` the arrays that the program and those inside it may return.
    """

    def __init__(
        self,
        results: Sequence[Memory],
        inputs: Sequence[int],
        constants: Iterable[Array],
        held: Held = NOTHING_HELD,
    ) -> None:
        self._constants = list(constants)
        self._constant_owners = frozenset(id(_owner(array)) for array in self._constants)
        self._foreign = [n for n in range(len(inputs)) if n not in held.inputs]
        self._shown = [n for n in range(len(results)) if n not in held.outputs]
        states = {inputs[n] for n in held.inputs}
        taken = {results[n].root for n in held.outputs if results[n].owner is Owner.INPUT}
        self.taken: tuple[int, ...] = tuple(n for n in sorted(held.inputs) if inputs[n] in taken)
        """The held inputs whose memory held results are, so that kernels may have written to it."""
        self._copied: list[int] = []
        # Kept without a look at addresses, and those that these decide on.
        self._kept: list[int] = []
        self._checked: list[int] = []
        self._states: list[int] = []
        shown = _Apart()
        for number in (*self._shown, *sorted(held.outputs)):
            memory, is_state = results[number], number in held.outputs
            match memory.owner:
                case Owner.ANY:
                    (self._states if is_state else self._checked).append(number)
                    continue
                case Owner.RUN:
                    is_own = shown.has_room(memory)
                    if is_own and not is_state:
                        shown.add(memory)
                case Owner.INPUT:
                    is_own = is_state and memory.root in states
                case Owner.CONSTANT:
                    is_own = is_state
                case Owner.OTHER:
                    is_own = False
            (self._kept if is_own else self._copied).append(number)

    def owned(self, inputs: Sequence[Any], results: list[Any]) -> list[Any]:
        """Returns the results of a run on these inputs, copied where necessary."""
        for number in self._copied:
            results[number] = copied_value(results[number])
        if (self._checked or self._states) and not self._is_one_new(inputs, results):
            self._check(inputs, results)
        return results

    def _is_one_new(self, inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        """Whether the only result is an array on new memory. Finds this in the usual case that it
        and the inputs are arrays that own their memory, where the rest takes several times as long.
        """
        if len(results) != 1:
            return False
        (value,) = results
        if type(value) is not np.ndarray or value.base is not None or not value.size:
            return False
        for item in inputs:
            if type(item) is not np.ndarray or item.base is not None or item is value:
                return False
        flags = value.flags
        return flags.owndata and flags.writeable and id(value) not in self._constant_owners

    def _check(self, inputs: Sequence[Any], results: list[Any]) -> None:
        known = [*inputs, *[results[n] for n in self._kept]]
        taken = _Taken(known, self._constants, self._constant_owners)
        for number in self._checked:
            results[number] = taken.owned(results[number])
        if self._states:
            shown = [results[n] for n in self._shown]
            taken = _Taken([*(inputs[n] for n in self._foreign), *shown], (), frozenset())
            for number in self._states:
                results[number] = taken.apart(results[number])


@dataclass
class Borders:
    """The borders of a program, by the held values."""

    results: Sequence[Memory]
    inputs: Sequence[int]
    constants: Sequence[Array]
    _made: dict[Held, Border] = field(default_factory=dict)
    # The last one, by the very object, because hashing takes longer than the rest.
    _last: tuple[Held | None, Border | None] = (None, None)

    def of(self, held: Held) -> Border:
        """Returns the border for calls that hold these."""
        known, border = self._last
        if known is held and border is not None:
            return border
        found = self._made.get(held)
        if found is None:
            found = Border(self.results, self.inputs, self.constants, held)
            self._made[held] = found
        self._last = held, found
        return found


class _Taken:
    """Memory in use: that of the arrays in `values` and of `constants`, whose `owners` are known.

    Two arrays share no memory if different arrays own theirs. Addresses are looked at only if the
    owner is the same, or is not an array.
    """

    def __init__(
        self, values: Sequence[Any], constants: Sequence[Array], owners: frozenset[int]
    ) -> None:
        self._given: list[Array] = []
        for value in values:
            # A generator would take longer than the rest.
            for item in value if type(value) is list else (value,):
                if type(item) is np.ndarray:
                    self._given.append(item)
                else:
                    self._given += _arrays((item,))
        self._constants = constants
        self._constant_owners = owners
        self._small = _copied_bytes()
        self._same = set(map(id, self._given))
        self._more: list[Array] = []
        # The ids of the owners of the values, and of the results of `owned`.
        self._owners: set[int] | None = None

    def owned(self, value: Any) -> Any:
        """Returns a value on memory that is not in use, which is in use from then on."""
        if type(value) is list:  # most elements are those of an input
            same, small = self._same, self._small
            return [
                item.copy()
                if id(item) in same
                or (type(item) is np.ndarray and item.base is not None and item.nbytes <= small)
                else self.owned(item)
                for item in value
            ]
        if not isinstance(value, np.ndarray):
            return _mapped(self.owned, value)
        if id(value) in self._same:
            return value.copy()
        if value.base is None:
            if self._is_new(value):
                return value
        elif value.nbytes <= self._small:  # a copy takes less time than finding the owner
            return value.copy()
        fits = value.flags.writeable and value.size and not _repeats(value)
        if not fits or self._is_used(value, self._small):
            return value.copy()
        self._known_owners().add(id(_owner(value)))
        self._more.append(value)
        return value

    def _is_new(self, value: Array) -> bool:
        """Whether an array owns memory that was not known before; then, remembers it."""
        flags, number, owners = value.flags, id(value), self._owners
        if not flags.owndata or not flags.writeable or not value.size:
            return False
        if owners is None:
            owners = self._known_owners()
        if number in owners or number in self._constant_owners:
            return False
        owners.add(number)
        self._more.append(value)
        return True

    def apart(self, value: Any) -> Any:
        """Returns a value on memory that is not in use."""
        if not isinstance(value, np.ndarray):
            return _mapped(self.apart, value)
        return value.copy() if self._is_used(value) else value

    def _is_used(self, value: Array, least_bytes: int = 0) -> bool:
        """Whether an array's memory may be in use. Of arrays up to `least_bytes`, only the owner is
        looked at.
        """
        owner = _owner(value)
        known = id(owner) in self._known_owners() or id(owner) in self._constant_owners
        if isinstance(owner, np.ndarray) and owner.flags.owndata and not known:
            return False
        if value.nbytes <= least_bytes:
            return True
        return self._addresses.meets(value) or _Addresses(self._more).meets(value)

    def _known_owners(self) -> set[int]:
        if self._owners is None:
            self._owners = {id(a) if a.base is None else id(_owner(a)) for a in self._given}
        return self._owners

    @cached_property
    def _addresses(self) -> _Addresses:
        return _Addresses([*self._given, *_arrays(self._constants)])


class _Addresses:
    """The ranges of addresses of arrays."""

    def __init__(self, arrays: Iterable[Array]) -> None:
        ordered = sorted(map(_range, arrays))
        self._starts = [start for start, _ in ordered]
        # The last end of all ranges up to each.
        self._ends = list(accumulate((end for _, end in ordered), max))

    def meets(self, array: Array) -> bool:
        """Whether an array's range overlaps one of them."""
        start, end = _range(array)
        place = bisect_left(self._starts, end)
        return place > 0 and self._ends[place - 1] > start


def copied_value(value: Any) -> Any:
    """Returns a copy of a value, C-contiguous and writable."""
    if type(value) is list:
        return [v.copy() if type(v) is np.ndarray else copied_value(v) for v in value]
    return value.copy() if isinstance(value, np.ndarray) else _mapped(copied_value, value)


def _mapped(change: Any, value: Any) -> Any:
    """Returns a sequence or map with changed values; other values, which cannot be written, as they
    are.
    """
    if isinstance(value, list):
        return [change(item) for item in value]
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    return value


def _arrays(values: Iterable[Any]) -> Iterator[Array]:
    """Yields the arrays in values."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _arrays(value)
        elif isinstance(value, dict):
            yield from _arrays(value.values())


def _owner(array: Array) -> object:
    """Returns the object that owns an array's memory: an array, or the object that it was made
    from.
    """
    owner: object = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def _repeats(array: Array) -> bool:
    """Whether elements of an array share memory."""
    if array.flags.c_contiguous:
        return False
    start, end = _range(array)
    return end - start < array.nbytes


def _range(array: Array) -> tuple[int, int]:
    """Returns the addresses of an array's first byte, and of the one after its last."""
    if array.flags.c_contiguous:
        start = address_of(array)
        return start, start + array.nbytes
    start = end = array.ctypes.data
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            start += (size - 1) * stride
        else:
            end += (size - 1) * stride
    return start, end + array.itemsize
