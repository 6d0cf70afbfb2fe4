"""Register tiles: the elements in each SSA value, by literal offsets."""

from __future__ import annotations

from clew.codegen.address import Addresses
from clew.codegen.builder import Builder, Value
from clew.codegen.vectors import mask_lanes
from clew.ir.dims import Dim
from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Buffer
from clew.support.errors import ScheduleError

# A register tile's element: its buffer and the literal offset of its first lane.
Register = tuple[int, int]


class Registers(Addresses):
    """Tracks the contents of register tiles, and the existing and active lanes."""

    def __init__(self, builder: Builder, simplifier: Simplifier) -> None:
        super().__init__(builder, simplifier)
        self.lanes = 1
        self.mask: Value | None = None
        self.registers: dict[Register, Value] = {}
        self._widths: dict[Register, int] = {}

    def register_of(self, buffer: Buffer, form: Linear) -> tuple[Register, int]:
        """Returns the register that an access refers to, and its number of lanes.

        Errors: S040 if its offset is not a literal, S041 if its lanes are not contiguous.
        """
        const: Dim = form.const
        step: Dim = 0
        for atom, coefficient in form.terms:
            bound = self.bound.get(id(atom))
            if bound is not None and bound.lanes:
                step = step + coefficient
                continue
            known = self.constant_of(atom)
            if known is None:
                raise ScheduleError(
                    "S040",
                    f"an index of register tile {buffer.name} is not a literal",
                    hint="unroll the loops over it, or move the stage to scratch",
                )
            const = const + coefficient * known
        if not isinstance(const, int):
            raise unfit_register(buffer, "at offsets that only a run knows")
        if step not in (0, 1):
            raise unfit_register(buffer, f"lanes {step} elements apart")
        return (id(buffer), const), (self.lanes if step else 1)

    @staticmethod
    def check_lanes(buffer: Buffer, value: Value, lanes: int) -> None:
        """Checks that a value fits into the lanes it is stored to.

        Errors: S042.
        """
        if value.lanes not in (1, lanes):
            raise ScheduleError(
                "S042",
                f"lanes of a vector loop store to one element of {buffer.name}",
                hint="vectorize a loop that the stage is indexed by",
            )

    def claim_register(self, buffer: Buffer, register: Register, lanes: int) -> Value | None:
        """Returns the current contents of a register that is about to be set, None if it is new.

        Errors: S041 if its elements are already in other registers.
        """
        old = self.registers.get(register)
        if old is not None:
            if old.lanes != lanes:
                raise unfit_register(buffer, "both in one lane and in many")
            return old
        owner, start = register
        extent = self.lane_index.extent if self.lane_index is not None and lanes > 1 else 1
        assert isinstance(extent, int)
        mask = mask_lanes(self.mask) if self.mask is not None and lanes > 1 else None
        width = extent if mask is None else mask.count(True)
        for other, first in self.registers:
            here = first < start + width and start < first + self._widths[other, first]
            if other == owner and here:
                raise unfit_register(buffer, "in lanes that overlap")
        self._widths[register] = width
        return None

    def read_register(self, buffer: Buffer, form: Linear) -> Value:
        """Returns the contents of a register, or one lane of it.

        Errors: S041 for an element that is in no register.
        """
        (owner, offset), lanes = self.register_of(buffer, form)
        found = self.registers.get((owner, offset))
        if found is not None and found.lanes == lanes:
            return found
        for (other, start), vector in self.registers.items():
            if other == owner and lanes == 1 and 0 <= offset - start < self._widths[other, start]:
                lane = offset - start
                return self.b.value(f"extractelement {vector.typed}, i64 {lane}", vector.dtype)
        raise unfit_register(buffer, "at other offsets than it is set at")


def unfit_register(buffer: Buffer, how: str) -> ScheduleError:
    """Returns the error for a register tile with mismatched accesses (S041)."""
    return ScheduleError(
        "S041",
        f"register tile {buffer.name} is used {how}",
        hint="vectorize the same axis where it is set and where it is read, by the same width",
    )
