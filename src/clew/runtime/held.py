"""Buffers for the states of sessions: key-value caches with spare room, and states of fixed
capacity.

A session runs the form of its model that overwrites a part of a buffer (`passes/hold_states.py`).
A call may replace any element of a state of fixed capacity. The arrays belong to one session
(`Hold`), which copies them before a write if they are shared.

The valid elements of a growing state are the first ones along the axis that grows. A call writes
behind them, so a failed call changes no valid element.

Several sessions, and arrays from `session.state`, may share the first elements of buffers. The
buffers belong to one session, and `lent` is the number of shared elements. The owner writes behind
these. Any other write requires a copy of the buffers first.

Buffers may also have room for more sequences: the session runs on the first rows of `whole`.
Sequences join and leave without a copy of those that remain (`take_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from clew.ir.dim_places import size_places
from clew.ir.dims import Dim, SymDim, value_at
from clew.runtime.input_spec import InputSpec, bound_sizes, elements
from clew.runtime.program import Program, RunSegment
from clew.runtime.segment import NativeSegment
from clew.support.arrays import aligned_empty
from clew.support.budgets import check_run_bytes
from clew.support.dataclass import dataclass
from clew.support.locks import Lock

Array: TypeAlias = "np.ndarray[Any, Any]"
Lengths: TypeAlias = "Mapping[str, int]"

# The fewest positions by which buffers grow.
_LEAST_ROOM: Final = 64
# Sets of sizes whose new elements are remembered.
_KEPT_SIZES: Final = 64
# Guards the numbers of shared elements: several threads may share elements of the same buffers.
_LENDING: Final = Lock()


class HeldModel(Protocol):
    """The chain of a model with states in buffers."""

    @property
    def interface(self) -> Any:
        """Its inputs: those of the model, then one for each length and each room."""
        ...

    def serve(self, arrays: Sequence[Any]) -> Any:
        """Returns what serves a call with checked inputs."""
        ...

    def known(self, given: Sequence[Any]) -> Any:
        """Returns what serves a call, if an earlier call had its sizes."""
        ...

    def served_again(self, before: Any, arrays: Sequence[Any], sizes: Lengths) -> Any:
        """Returns what serves a call by the build that served another one; None if that is not
        possible.
        """
        ...

    def forget(self, served: Any) -> None:
        """Does not keep what serves some calls."""
        ...


@dataclass(frozen=True)
class _Held:
    """A state in a buffer: its position among the inputs, the axis along which it grows, and the
    names of the length and of the room there. `needed` is the size of its next value.
    """

    name: str
    position: int
    axis: int
    length: str
    needed: Dim

    @property
    def appends(self) -> bool:
        """Whether calls write behind the valid elements only; else to any place, up to a total."""
        return isinstance(self.needed, SymDim) and self.length in self.needed.symbols


class HeldForm:
    """The form of a model that a session runs: which states lie in buffers, and how they grow."""

    def __init__(
        self, model: HeldModel, inputs: Sequence[InputSpec], first: HeldForm | None = None
    ) -> None:
        """`inputs` are those of the model without buffers. `first` is the form for calls that begin
        a sequence, if these run a separate branch of the model.
        """
        self.model = model
        self.begins = first
        self.specs: tuple[InputSpec, ...] = model.interface.inputs
        self._inputs = tuple(inputs)
        counts = [str(spec.shape[0]) for spec in self.specs[len(inputs) :]]
        # By length: the name of the room.
        self.spares = dict(zip(counts[::2], counts[1::2], strict=True))
        self.states = {
            spec.name: _Held(spec.name, position, axis, length, dim - SymDim.symbol(spare, 0))
            for position, spec in enumerate(self.specs[: len(inputs)])
            for axis, dim in spec.expressions.items()
            for length, spare in self.spares.items()
            if spare in dim.symbols
        }
        # One state for each length; all others of the length grow with it.
        self.first = {state.length: state for state in reversed(self.states.values())}
        # By length: the number of new elements, and the places of the sizes that it consists of.
        self._more: dict[str, Dim] = {
            name: state.needed - SymDim.symbol(name, 0) for name, state in self.first.items()
        }
        held = {state.position for state in self.states.values()}
        # Those of which a call writes only elements that nobody else sees.
        self.appended = frozenset(s.position for s in self.states.values() if s.appends)
        dims = [() if n in held else spec.dims for n, spec in enumerate(inputs)]
        wanted = {n for dim in self._more.values() for n in getattr(dim, "symbols", ())}
        self._places = [place for place in size_places(dims) if place.name in wanted]
        self._needs_lengths = bool(wanted & self.spares.keys())
        self._added: dict[tuple[Any, ...], dict[str, int]] = {}

    def serve(self, arrays: Sequence[Any], before: Any) -> Any:
        """Returns what serves a call with checked inputs. `before` is what served the latest call
        of the session. If only lengths have changed since, they seldom return: then its memory
        serves later ones.
        """
        count = len(self._inputs)
        shapes = [getattr(array, "shape", None) for array in arrays]
        alone = before is not None and tuple(shapes[:count]) == before.key[0][:count]
        served = self.model.known(arrays)
        if served is None and alone:
            # The other sizes are those of the call before, and were checked then.
            names = (name for pair in self.spares.items() for name in pair)
            counts = {n: shape[0] for n, shape in zip(names, shapes[count:], strict=True) if shape}
            served = self.model.served_again(before, arrays, {**before.sizes, **counts})
        if served is None:
            served = self.model.serve(arrays)
        if alone and served is not before:
            self.model.forget(before)
            _retire(before.program)
        return served

    def lengths_of(self, arrays: Sequence[Any]) -> Lengths:
        """Returns the lengths of states that are whole arrays, given all inputs of the model.

        Errors: I042 if they contradict each other.
        """
        sizes = bound_sizes(self._inputs, arrays)
        return {length: sizes[length] for length in self.spares}

    def added(self, arrays: Sequence[Any], lengths: Lengths) -> Mapping[str, int]:
        """Returns, for each length, how many elements a call adds, fewer than 0 if the total is
        below the length. `arrays` are all inputs of the model; those of held states do not matter.
        """
        known = tuple([arrays[p.argument].shape[p.axis] for p in self._places])
        key = (known, *lengths.values()) if self._needs_lengths else known
        found = self._added.get(key)
        if found is None:
            sizes = dict(lengths)
            for place, elements_ in zip(self._places, known, strict=True):
                sizes.setdefault(place.name, place.size(elements_))
            found = {name: value_at(dim, sizes) for name, dim in self._more.items()}
            if len(self._added) >= _KEPT_SIZES:
                self._added.clear()
            self._added[key] = found
        return found


class Hold:
    """Write permission for the arrays of states of fixed capacity: only `owner` has it, while the
    arrays are not shared. They are torn while a call writes to them, and remain so if it fails.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._is_lent = False
        self.is_torn = False

    def begin(self, owner: object) -> bool:
        """Returns whether the owner may write to the arrays; if so, they are torn from now on."""
        with _LENDING:
            if self._owner is not owner or self._is_lent:
                return False
            self.is_torn = True
            return True

    def lend(self) -> bool:
        """Marks the arrays as shared: the owner no longer writes to them. Returns whether they are
        not torn.
        """
        with _LENDING:
            self._is_lent = True
            return not self.is_torn


class Caches:
    """The buffers of held states, by name. `owner` writes behind the first `lent` elements, which
    are shared.
    """

    def __init__(self, form: HeldForm, arrays: dict[str, Array], owner: object) -> None:
        self.form = form
        self.arrays = arrays
        self.owner = owner
        # The memory of arrays that are its first rows, by name.
        self._whole: dict[str, Array] = {}
        self.lent = dict.fromkeys(form.spares, 0)

    def capacity(self, length: str) -> int:
        """Returns the number of elements for which the buffers of a length have room."""
        state = self.form.first[length]
        return int(self.arrays[state.name].shape[state.axis])

    @property
    def nbytes(self) -> int:
        """The memory of the buffers in bytes."""
        return sum(self.whole(name).nbytes for name in self.arrays)

    def rows(self, batch: Mapping[str, int]) -> int:
        """Returns the number of sequences for which there is room."""
        return min(int(self.whole(name).shape[batch[name]]) for name in self.arrays)

    def whole(self, name: str) -> Array:
        """Returns a buffer with the rows behind those in use."""
        array, whole = self.arrays[name], self._whole.get(name)
        is_in_place = whole is not None and whole.ctypes.data == array.ctypes.data
        return whole if whole is not None and is_in_place else array

    def with_rows(self, wholes: dict[str, Array], batch: Mapping[str, int], count: int) -> Caches:
        """Returns buffers of which the first rows are used."""
        arrays = {name: _first_of(whole, batch[name], count) for name, whole in wholes.items()}
        made = Caches(self.form, arrays, self.owner)
        made._whole = wholes
        return made

    def after(self, arrays: dict[str, Array]) -> Caches:
        """Returns the buffers after a call. Copies of the session still have those before it, since
        the call may have written to a copy.
        """
        made = Caches(self.form, arrays, self.owner)
        made._whole, made.lent = self._whole, self.lent
        return made

    def takes_rows(self, owner: object, batch: Mapping[str, int], count: int, end: int) -> bool:
        """Whether a session may rearrange the rows in place: `count` of them, up to position `end`.
        The first rows of a buffer are contiguous only if the batch is its first axis.
        """
        return (
            self.owner is owner
            and not any(self.lent.values())
            and all(batch[name] == 0 for name in self.arrays)
            and all(self.whole(name).shape[0] >= count for name in self.arrays)
            and all(end <= self.capacity(length) for length in self.lent)
        )

    def lend(self, lengths: Lengths) -> None:
        """Marks the first elements as shared: the owner no longer changes them."""
        with _LENDING:
            for name, length in lengths.items():
                self.lent[name] = max(self.lent[name], length)

    def shown(self, name: str, lengths: Lengths) -> Array:
        """Returns the valid part of a state, as a view."""
        state = self.form.states[name]
        return _first_of(self.arrays[name], state.axis, lengths[state.length])

    def admits(self, owner: object, lengths: Lengths, added: Lengths) -> bool:
        """Whether a session may write so many new elements behind the valid ones."""
        return self.owner is owner and all(
            length >= self.lent[name] and length + added[name] <= self.capacity(name)
            for name, length in lengths.items()
        )

    def given(self, lengths: Lengths, added: Lengths) -> list[Array]:
        """Returns the inputs whose sizes are the lengths and the room behind the new elements."""
        counts = []
        for name, length in lengths.items():
            spare = self.capacity(name) - length - added[name]
            counts += [elements(length), elements(spare)]
        return counts


@dataclass(frozen=True, eq=False)
class Row:
    """A sequence in states: row `number` of arrays by name. Growing states hold its elements at the
    `length` positions before `end`. `stays`: the row is in its place already.
    """

    arrays: Mapping[str, Array]
    number: int
    end: int
    length: int
    stays: bool = False

    def elements(self, name: str, batch: int, axis: int) -> Array:
        """Returns the elements of the sequence in a state as a view. `batch` is the axis of
        sequences, and `axis` the one along which the state grows (-1: none).
        """
        found = _between(self.arrays[name], batch, self.number, self.number + 1)
        return found if axis < 0 else _between(found, axis, self.end - self.length, self.end)


def put_rows(
    target: Array, rows: Sequence[Row], name: str, batch: int, axis: int, end: int
) -> None:
    """Writes the elements of rows into a state; in a growing state, they end at position `end`,
    with zeros before them. Rows that stay are not written.
    """
    moved = [(n, row.elements(name, batch, axis)) for n, row in enumerate(rows) if not row.stays]
    # Elements from the same memory are read before any is overwritten.
    moved = [(n, x.copy() if np.may_share_memory(x, target) else x) for n, x in moved]
    for number, values in moved:
        own = _between(target, batch, number, number + 1)
        if axis < 0:
            own[...] = values
            continue
        begin = end - values.shape[axis]
        _between(own, axis, 0, begin)[...] = 0
        _between(own, axis, begin, end)[...] = values


def take_rows(
    target: Caches,
    rows: Sequence[Row],
    batch: Mapping[str, int],
    end: int,
    room: int,
) -> Caches:
    """Returns buffers that hold rows up to position `end`: new ones with room for `room` rows, or
    those of `target` if `room` is 0. `batch` has the axis of sequences by state.

    Errors: I265 (bytes).
    """
    wholes: dict[str, Array] = {}
    for name, state in target.form.states.items():
        if room:
            like = rows[0].arrays[name]
            shape = list(like.shape)
            shape[batch[name]], shape[state.axis] = room, end + max(end, _LEAST_ROOM)
            wholes[name] = aligned_empty(tuple(shape), like.dtype)
            check_run_bytes(f"state {name!r}", wholes[name].nbytes)
        else:
            wholes[name] = target.whole(name)
        put_rows(wholes[name], rows, name, batch[name], state.axis, end)
    return target.with_rows(wholes, batch, len(rows))


def make_caches(
    form: HeldForm,
    values: Mapping[str, Array],
    lengths: Lengths,
    added: Lengths,
    owner: object,
) -> Caches:
    """Returns buffers with room for new elements, and for as many again.

    `values` are the valid parts of the states.

    Errors: I265 (bytes).
    """
    arrays = {}
    for name, value in values.items():
        state = form.states[name]
        needed = lengths[state.length] + added[state.length]
        shape = list(value.shape)
        shape[state.axis] = needed + max(needed, _LEAST_ROOM)
        whole = aligned_empty(tuple(shape), value.dtype)
        check_run_bytes(f"state {name!r}", whole.nbytes)
        if not state.appends:  # rows of a batch may leave places below the total unwritten
            whole.reshape(-1).view(np.uint8)[...] = 0
        _first_of(whole, state.axis, value.shape[state.axis])[...] = value
        arrays[name] = whole
    return Caches(form, arrays, owner)


def own_copy(array: Array) -> Array:
    """Returns a copy of an array, on memory of its own."""
    made = aligned_empty(array.shape, array.dtype)
    made[...] = array
    return made


def _retire(program: Program) -> None:
    """Leaves the tables of a program to those at other lengths, of which each is the next once."""
    for instruction in program.instructions:
        segment = instruction.segment if isinstance(instruction, RunSegment) else None
        if isinstance(segment, NativeSegment):
            segment.retire()


def _first_of(array: Array, axis: int, count: int) -> Array:
    return _between(array, axis, 0, count)


def _between(array: Array, axis: int, begin: int, end: int) -> Array:
    return array[(slice(None),) * axis + (slice(begin, end),)]
