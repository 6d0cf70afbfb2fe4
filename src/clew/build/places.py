"""Tracks the memory spaces of a program's values, and adds the copies between them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from clew.backends.regions import value_type
from clew.ir.dims import Dim
from clew.ir.types import TensorType, Type
from clew.runtime.program import Copy, Instruction
from clew.runtime.spaces import HOST, MemorySpace


class Builder(Protocol):
    """The interface of a program's builder."""

    instructions: list[Instruction]

    def tensor(self, slot: int) -> TensorType:
        """Returns the type of a slot's value."""
        ...

    def root(self, slot: int) -> tuple[int, Dim]:
        """Returns the slot that owns the memory of a slot's value, and its first element there."""
        ...

    def new_slot(self, type_: Type) -> int:
        """Returns a slot for a value of a type."""
        ...

    def views_of(self, slots: set[int]) -> None:
        """Ensures that values are in host memory, and adds the views among them."""
        ...


class Places:
    """Adds the copies of a program, one for each value and direction.

    The slot of a value is in host memory. `spaces` maps the slots of its copies to other spaces.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder: Builder = weakref.proxy(builder)  # which holds this object
        self.spaces: dict[int, MemorySpace] = {}
        # The slots of copies, by the value's slot and the space.
        self._copies: dict[tuple[int, str], int] = {}
        # For values of regions that are not in host memory: their slot in the region's space.
        self._away: dict[int, int] = {}

    def there(self, slot: int, space: MemorySpace) -> int:
        """Returns the slot of a value in a space; adds a copy if necessary."""
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
        """Returns the slot in a space to which a region writes a value."""
        if space is HOST:
            return slot
        found = self._away[slot] = self._elsewhere(slot, space)
        return found

    def fetch(self, slots: Iterable[int]) -> None:
        """Ensures that values, and the values that they are views of, are in host memory."""
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
