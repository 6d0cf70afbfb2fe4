"""Loads and stores of elements and vectors, contiguous, strided or in runs, and tracking of loads
that are still valid.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from clew.codegen import transpose, vectors
from clew.codegen.address import Bound, Place, element_bytes, memory_type, ramp, stored_dtype
from clew.codegen.ascending import follows_table, load_ascending
from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.registers import Registers
from clew.codegen.runs import Offset, masks_of_runs, read_runs, runs_of
from clew.codegen.vectors import active_lanes, mask_lanes
from clew.ir.dims import Dim, numeric_part
from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Buffer
from clew.te.expr import INDEX, MOST_SHORT, Checked, Load


class Accesses(Registers):
    """Reads and writes memory in the active lanes, and caches earlier reads."""

    def __init__(self, builder: Builder, simplifier: Simplifier) -> None:
        super().__init__(builder, simplifier)
        self.loads: dict[tuple[object, ...], Value] = {}
        self.anywhere = False
        # Masked loads are as fast as unmasked ones.
        self.masks_cheap = False

    @abstractmethod
    def index_sum(self, form: Linear) -> Value:
        """Returns the value of a sum over loop variables; implemented by the value emitter."""
        ...

    # --- lanes ---

    def widen(self, values: list[Value], lanes: int) -> list[Value]:
        """Returns the values in `lanes` lanes; earlier broadcasts are reused."""
        return [self.broadcast(v, lanes) for v in values]

    def broadcast(self, value: Value, lanes: int) -> Value:
        """Returns a value in all lanes."""
        if value.lanes == lanes:
            return value
        if not value.text.startswith("%"):
            known = _literal_splat(value, lanes)
            if known is not None:
                return known
        key = ("splat", value.text, lanes)
        found = self.loads.get(key)
        if found is None:
            found = self.loads[key] = self.b.splat(value, lanes)
        return found

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Returns the value of an operation, in as many lanes as the wider operand has."""
        lanes = max(a.lanes, b.lanes)
        return arith.binary(self.b, op, self.broadcast(a, lanes), self.broadcast(b, lanes))

    # --- memory ---

    def load(self, expr: Load) -> Value:
        """Returns the value of a load: from registers, or from memory, once while it stays
        valid.
        """
        buffer: Buffer = expr.source
        form = self.flat(expr, buffer, expr.indices)
        if buffer.scope == "register":
            return self.read_register(buffer, form)
        if self.anywhere:
            return self._read_inside(buffer, form)
        place = self.place(buffer, form)
        lanes = self.lanes if place.step or place.lane_parts else 1
        masked = self.mask is not None and lanes > 1
        key: tuple[object, ...] = (place.key, place.offset, place.step, lanes, id(buffer.root))
        if place.lane_parts or masked:
            parts = [(id(a), c, *self.numbers(a)) for a, c in place.lane_parts]
            key = (*key, self.mask and self.mask.text, *parts)
        found = self.loads.get(key)
        if found is None:
            safe = lanes == 1 and self.mask is not None and self._is_inside(expr)
            columns = self._turned(expr, form, place) or [
                self.read(buffer, place, lanes, safe=safe)
            ]
            for n, column in enumerate(columns):
                self.loads[key[0], place.offset + n, *key[2:]] = column
            found = columns[0]
        return found

    def _is_inside(self, expr: Load) -> bool:
        """Whether a load is certainly inside its buffer, even if no lane is active."""
        within = zip(expr.indices, expr.source.shape, strict=True)
        simple = self.simplifier
        return all(simple.never_below(i, 0) and simple.never_above(i, n - 1) for i, n in within)

    def _read_inside(self, buffer: Buffer, form: Linear) -> Value:
        """Returns the value of a load. A load that would read beyond its buffer reads another
        element instead; its value is not used then.
        """
        size, element = buffer.elements, memory_type(buffer.dtype)
        stored, align = stored_dtype(buffer.dtype), element_bytes(buffer.dtype)
        if size == 0:
            return literal(0, buffer.dtype)
        offset = self.binary("max", self.index_sum(form), literal(0, INDEX))
        offset = self.binary("min", offset, self.dim_value(size - 1))
        pointer = f"getelementptr {element}, ptr {self.base(buffer)}, {offset.typed}"
        pointer = self.b.pointer(pointer)
        if offset.lanes > 1:
            value = vectors.gather(self.b, stored, pointer, align, offset.lanes, None)
        else:
            value = self.b.value(f"load {element}, ptr {pointer}, align {align}", stored)
        return self._from_memory(buffer, value)

    def _turned(self, expr: Load, form: Linear, place: Place) -> list[Value]:
        """Returns the values of a load and of the next iterations of an unrolled loop, if they form
        a block.
        """
        active = active_lanes(self.mask, self.lanes)
        if active is None or not (place.step or place.lane_parts):
            return []
        step, offsets = self._distance(place), []
        if step == 0:
            offsets = self._offsets(place)
            if not offsets or runs_of(offsets) or self._are_near(offsets):
                return []
        elif isinstance(step, int) and step <= 2:
            return []  # stride 2 is faster from two vectors
        numbers = {key: b.const for key, b in self.bound.items() if b.const is not None}
        whole = self.simplifier.rebuild(form)
        inside = self.simplifier.within(whole, 0, expr.source.elements - 1)
        beside = transpose.unrolled_beside(expr, form, numbers, inside)
        if beside is None:
            return []
        number, extent = beside
        width = transpose.columns_at_once(expr.dtype, self.lanes)
        columns = min(width, extent - number)
        if number % width or columns < 2:
            return []
        if offsets:
            stored = stored_dtype(expr.dtype)
            bases = {
                base: self._moved(stored, place.pointer, base)
                for base in dict.fromkeys(o[0] for o in offsets if o)
            }
            rows = [
                (bases[o[0]], place.offset + o[1]) if o else (place.pointer, 0) for o in offsets
            ]
        elif isinstance(step, int):
            pointer = self.pointer_at(expr.source, place)
            rows = [(pointer, lane * step) for lane in range(self.lanes)]
        else:
            times = range(1, transpose.ROWS_OF_POINTER + 1)
            steps = [self.dim_value(n * step) for n in times]
            rows = transpose.rows_from(
                self.b, expr.source, place.pointer, place.offset, steps, self.lanes
            )
        found = transpose.turned(self.b, expr.source, rows, columns, active)
        return [self._from_memory(expr.source, value) for value in found]

    def _are_near(self, offsets: Sequence[Offset | None]) -> bool:
        """Whether lanes are within a few vectors' length."""
        numbers = [offset and offset[1] for offset in offsets]
        at_sizes = any(offset and offset[0] != 0 for offset in offsets)
        return not at_sizes and bool(vectors.near_starts(numbers, self.lanes))

    def _distance(self, place: Place) -> Dim:
        """Returns the distance between neighboring lanes in elements; 0 if it varies."""
        if not place.lane_parts:
            return place.step
        (atom, distance), *others = place.lane_parts
        return distance if atom is self.lane_index and not others and not place.step else 0

    def _from_memory(self, buffer: Buffer, value: Value) -> Value:
        """Returns a value in its register form: `bool` takes a byte in memory."""
        if buffer.dtype != "bool":
            return value
        return arith.binary(self.b, "ne", value, literal(0, value.dtype, value.lanes))

    def read(self, buffer: Buffer, place: Place, lanes: int, *, safe: bool = False) -> Value:
        """Returns the elements at a place in memory; of several lanes, only the active ones. `safe`
        states that the place is inside the buffer even if no lane is active.
        """
        pointer = self.pointer_at(buffer, place)
        element = memory_type(buffer.dtype)
        size = element_bytes(buffer.dtype)
        stored = stored_dtype(buffer.dtype)
        if lanes == 1:
            value = self._read_one(element, stored, pointer, size, safe)
        elif not place.lane_parts and place.step == 2 and self._loads_every_other(lanes):
            value = vectors.load_every_other(self.b, stored, pointer, size, lanes, self.mask)
        elif place.lane_parts or place.step != 1:
            known = self._known_lanes(stored, pointer, self._offsets(place), size)
            value = known or self._gather(element, stored, pointer, place, size)
        else:
            value = self.masked_load(stored, pointer, size)
        return self._from_memory(buffer, value)

    def _gather(self, element: str, stored: str, pointer: str, place: Place, size: int) -> Value:
        """Returns lanes at places that only a run knows."""
        parts, pointers = place.lane_parts, self.lane_pointers(element, pointer, place)
        if len(parts) == 1 and not place.step and parts[0][1] == 1 and follows_table(parts[0][0]):
            offsets = self.broadcast(self.load_value(parts[0][0]), self.lanes)
            near = load_ascending(self.b, stored, pointer, size, offsets, self.mask, pointers)
            if near is not None:
                return near
        return vectors.gather(self.b, stored, pointers, size, self.lanes, self.mask)

    def _loads_every_other(self, lanes: int) -> bool:
        """Whether lanes that are two elements apart are loaded as two vectors."""
        known = active_lanes(self.mask, lanes) is not None
        return known or (self.masks_cheap and bool(self.sizes))

    def _offsets(self, place: Place) -> list[Offset | None]:
        """Returns each lane's offset from the pointer, None for lanes known to be inactive; [] if
        it depends on more than sizes.
        """
        if self.lane_index is None:
            return []
        active = active_lanes(self.mask, self.lanes) or [True] * self.lanes
        before = self.bound[id(self.lane_index)]
        found: list[Offset | None] = []
        for lane, wanted in enumerate(active):
            self.bound[id(self.lane_index)] = Bound(const=lane)
            parts = [(self.constant_of(atom), c) for atom, c in place.lane_parts]
            known = [v * c for v, c in parts if v is not None]
            if len(known) < len(parts):
                break
            offset = sum(known, lane * place.step)
            number = numeric_part(offset)
            found.append((offset - number, number) if wanted else None)
        self.bound[id(self.lane_index)] = before
        return found if len(found) == len(active) else []

    def _known_lanes(
        self, stored: str, pointer: str, offsets: Sequence[Offset | None], size: int
    ) -> Value | None:
        """Returns lanes near each other or in a few runs; None if they are neither."""
        known = active_lanes(self.mask, self.lanes) is not None
        if known and self._are_near(offsets):
            numbers = [offset and offset[1] for offset in offsets]
            near = vectors.load_near(self.b, stored, pointer, size, self.lanes, numbers)
            if near is not None:
                return near
        runs = runs_of(offsets)
        if not runs:
            return None
        masks: list[Value | None] = [None] * len(runs)
        if not known:
            assert self.mask is not None
            masks = masks_of_runs(self.b, self.mask, offsets, runs)
            if not masks:
                return None
        pointers = [self._moved(stored, pointer, run.base) for run in runs]
        value = read_runs(self.b, stored, pointers, size, offsets, runs, masks)
        if not known and len(set(offsets)) < len(offsets):
            # An inactive lane has the element of an active one that it shares.
            assert self.mask is not None
            value = arith.select(self.b, self.mask, value, literal(0, stored, self.lanes))
        return value

    def _moved(self, stored: str, pointer: str, base: Dim) -> str:
        """Returns a pointer moved by a number of elements that only a run knows."""
        if base == 0:
            return pointer
        return self.b.pointer(
            f"getelementptr {llvm_type(stored)}, ptr {pointer}, {self.dim_value(base).typed}"
        )

    def _read_one(self, element: str, stored: str, pointer: str, size: int, safe: bool) -> Value:
        """Returns one element for all lanes; it is read only if that is safe or some lane is
        active.
        """
        known = None if self.mask is None else mask_lanes(self.mask)
        if safe or self.mask is None or (known is not None and any(known)):
            return self.b.value(f"load {element}, ptr {pointer}, align {size}", stored)
        active = self.some_active(self.mask, anew=True)
        then, join, before = self.b.label("some"), self.b.label("join"), self.b.block
        self.b.branch_if(active, then, join)
        self.b.start(then)
        value = self.b.value(f"load {element}, ptr {pointer}, align {size}", stored)
        self.b.branch(join)
        self.b.start(join)
        zero = literal(0, stored).text
        return self.b.value(
            f"phi {element} [ {value.text}, %{then} ], [ {zero}, %{before} ]", stored
        )

    def some_active(self, mask: Value, *, anew: bool = False) -> Value:
        """Returns whether any lane of a mask is active, cached unless `anew`."""
        key = ("some", mask.text)
        found = None if anew else self.loads.get(key)
        if found is None:
            found = self.b.call(f"llvm.vector.reduce.or.v{mask.lanes}i1", [mask], "bool")
            self.loads[key] = found
        return found

    def masked_load(self, stored: str, pointer: str, size: int) -> Value:
        """Returns the active lanes of a vector in memory, with zeros in the others."""
        return vectors.load_vector(self.b, stored, pointer, size, self.lanes, self.mask)

    def lane_pointers(self, element: str, pointer: str, place: Place) -> str:
        """Returns the vector of pointers of an access whose lanes are not contiguous."""
        offsets = self.binary("mul", ramp(self.lanes), literal(place.step, INDEX))
        for atom, coefficient in place.lane_parts:
            part = self.load_value(atom)
            if coefficient != 1 and isinstance(atom, Checked) and atom.is_short:
                # It has no more bits, which LLVM cannot infer; this makes one multiplication
                # suffice for three.
                part = self.binary("and", part, literal(MOST_SHORT, INDEX))
            part = self.binary("mul", part, self.dim_value(coefficient))
            offsets = self.binary("add", offsets, part)
        return self.b.pointer(f"getelementptr {element}, ptr {pointer}, {offsets.typed}")

    def write(
        self, buffer: Buffer, place: Place, value: Value, *, nontemporal: bool = False
    ) -> None:
        """Writes a value to memory in the active lanes. With `nontemporal`, whole vectors at
        addresses known to be multiples of their size bypass the caches.
        """
        pointer = self.pointer_at(buffer, place)
        size = element_bytes(buffer.dtype)
        if buffer.dtype == "bool":
            value = self.b.value(
                f"zext {value.typed} to {llvm_type('u8', value.lanes)}", "u8", value.lanes
            )
        lanes = self.lanes if place.step or place.lane_parts else 1
        if lanes == 1:
            self.check_lanes(buffer, value, lanes)
            self.b.emit(f"store {value.typed}, ptr {pointer}, align {size}")
        else:
            value = self.broadcast(value, lanes)
            if place.lane_parts or place.step != 1:
                pointers = self.lane_pointers(memory_type(buffer.dtype), pointer, place)
                vectors.scatter(self.b, value, pointers, size, self.mask)
            elif self.mask is None:
                hint = ""
                if nontemporal:
                    size, hint = size * lanes, self.b.module.nontemporal()
                self.b.emit(f"store {value.typed}, ptr {pointer}, align {size}{hint}")
            else:
                vectors.store_masked(self.b, value, pointer, size, self.mask)
        self.forget(buffer)

    def forget(self, buffer: Buffer) -> None:
        """Invalidates earlier loads from a buffer that is being written."""
        stale = [k for k in self.loads if len(k) > 4 and k[4] == id(buffer.root)]
        for key in stale:
            del self.loads[key]


def _literal_splat(value: Value, lanes: int) -> Value | None:
    """Returns a literal in all lanes, or None for other values."""
    if value.lanes != 1:
        return None
    return Value(f"splat ({value.typed})", value.dtype, lanes)
