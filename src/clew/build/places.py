"""Where the values of a program are: which memory spaces have them, and the copies between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from clew.backends.regions import value_type
from clew.ir.types import TensorType, Type
from clew.runtime.program import Copy, Instruction
from clew.runtime.spaces import HOST, MemorySpace


class Builder(Protocol):
    """What is asked of the builder of a program."""

    instructions: list[Instruction]

    def tensor(self, slot: int) -> TensorType:
        """Returns the type of a slot's value."""
        ...

    def root(self, slot: int) -> tuple[int, int]:
        """Returns the slot whose memory a slot's is part of, and the element it begins at."""
        ...

    def new_slot(self, type_: Type) -> int:
        """Returns a slot for a value of a type."""
        ...

    def views_of(self, slots: set[int]) -> None:
        """Has values be in the host's memory, adding the views among them."""
        ...


class Places:
    """Adds the copies of a program, one for each value and direction.

    A value's own slot is in the host's memory; `spaces` has the slots of its copies elsewhere.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.spaces: dict[int, MemorySpace] = {}
        # Slots of copies, by the value's slot and the space.
        self._copies: dict[tuple[int, str], int] = {}
        # Values that a region made and the host has not: their slot in the region's space.
        self._away: dict[int, int] = {}

    def there(self, slot: int, space: MemorySpace) -> int:
        """Returns a slot that has a value in a space, copied there if need be."""
        if space is HOST:
            self._builder.views_of({slot})
            return slot
        found = self._copies.get((slot, space.name))
        if found is None:
            self._builder.views_of({slot})
            found = self._elsewhere(slot, space)
            self._copy(slot, found, slot)
        return found

    def made_there(self, slot: int, space: MemorySpace) -> int:
        """Returns the slot in a space that a region writes a value to."""
        if space is HOST:
            return slot
        found = self._away[slot] = self._elsewhere(slot, space)
        return found

    def fetch(self, slots: Iterable[int]) -> None:
        """Has values, and those that they are views of, be in the host's memory."""
        for root in sorted({self._builder.root(slot)[0] for slot in slots}):
            source = self._away.pop(root, None)
            if source is not None:
                self._copy(source, root, root)

    def _elsewhere(self, slot: int, space: MemorySpace) -> int:
        made = self._builder.new_slot(self._builder.tensor(slot))
        self.spaces[made] = space
        self._copies[slot, space.name] = made
        return made

    def _copy(self, source: int, target: int, slot: int) -> None:
        spaces = (self.spaces.get(source, HOST), self.spaces.get(target, HOST))
        type_ = value_type(self._builder.tensor(slot))
        self._builder.instructions.append(Copy(source, target, *spaces, type_))
