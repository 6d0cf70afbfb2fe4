"""Sessions: a model with state, whose outputs of one call are inputs of the next.

States that grow lie in buffers (`held.py`); a call writes its new elements behind the valid ones.
The arrays of other states are never written to: each call makes new ones, which replace the old
ones when it has succeeded. So copies of a session share both, and a failed call changes nothing.

States of fixed capacity are the exception: a call that replaces some of their elements writes to
the session's own arrays. If copies of the session, or arrays from `session.state`, share these,
they are copied first. A call that fails while it writes to the only ones loses the state (I377).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from clew.runtime.batch_rows import buffers_of, common_end, plain_rows
from clew.runtime.drawing import sizes_of
from clew.runtime.first_values import with_sizes
from clew.runtime.held import (
    Caches,
    HeldForm,
    Hold,
    Lengths,
    Row,
    make_caches,
    own_copy,
)
from clew.runtime.input_spec import InputSpec
from clew.runtime.native_call import NativeCall
from clew.runtime.native_call import State as NativeState
from clew.runtime.native_program import NativeForm
from clew.runtime.output_spec import OutputSpec
from clew.runtime.ownership import Held
from clew.runtime.state import StatePair, branch_input, first_value, growing_names
from clew.support.budgets import Budgets, check_run_bytes, in_force, out_of_memory
from clew.support.call_form import CallForm
from clew.support.calling import in_order, picker, plain_count
from clew.support.errors import InputError
from clew.support.locks import Turn
from clew.support.near import did_you_mean, listed
from clew.support.shown import Shown

Array: TypeAlias = "np.ndarray[Any, Any]"
State: TypeAlias = "Mapping[str, Array]"
_NOTHING: Final[Mapping[str, Any]] = {}


class Stateless(Protocol):
    """The model of a session."""

    budgets: Budgets | None

    @property
    def native(self) -> NativeForm | None:
        """The native form of a call like the latest one. None if there is none."""
        ...

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs in order."""
        ...

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in order."""
        ...

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The outputs in order."""
        ...

    def run_in_order(self, given: Sequence[Any], held: Held) -> list[Any]:
        """Returns the outputs for inputs in order; all but the held ones own their memory."""
        ...

    def served_for(self, checked: Sequence[Any]) -> Any:
        """Returns what serves a call with checked inputs: program, sizes, build, provider."""
        ...

    def run_checked(self, checked: Sequence[Any], held: Held, *, served: Any = None) -> list[Any]:
        """Returns the outputs for checked inputs; all but the held ones own their memory. `served`
        is what serves the call, if that is known.
        """
        ...


class _Now(NamedTuple):
    """The state of a session between two calls: whole arrays by input name, and the buffers of
    other states with the lengths of their valid parts. Calls may write to some of the whole arrays,
    as far as `hold` says.
    """

    state: State
    caches: Caches | None = None
    lengths: Lengths = MappingProxyType({})
    hold: Hold | None = None


class _Step(NamedTuple):
    """A prepared call: its inputs, what serves it, the buffers, the lengths after the call, and who
    may write to whole arrays.
    """

    given: list[Any]
    served: Any
    caches: Caches
    after: Lengths
    hold: Hold | None


class Session(Shown):
    """A model with state: some outputs of each call are inputs of the next one.

    ```python
    session = compiled.session(state={"past_k": "present_k", "past_v": "present_v"})
    logits = session(token)  # called like the model, without the state
    session.state["past_k"]  # the state after the call
    ```

    A session runs one call at a time: a call, `set` or `reset` during a call in another thread is
    an error (I374). Any number of sessions of one model may run at once. If a call fails, the state
    remains the one before the call.
    """

    def __init__(
        self,
        model: Stateless,
        pairs: Sequence[StatePair],
        initial: Mapping[str, Any] = _NOTHING,
        form: CallForm | None = None,
        held_form: HeldForm | None = None,
    ) -> None:
        """`form` is that of the model's calls, if inputs and outputs are parts of nested values.
        With `held_form`, growing states lie in buffers.
        """
        self._model = model
        self._pairs = tuple(pairs)
        self._specs = {pair.input.name: pair.input for pair in pairs}
        self._growing = growing_names(pairs)
        if held_form is not None:  # a merged decoder's output sizes are those of neither branch
            self._growing |= held_form.spares.keys()
        numbers = {o.name: n for n, o in enumerate(model.outputs)}
        self._kept = tuple(numbers[pair.output.name] for pair in pairs)
        self._given = tuple(i for i in model.inputs if i.name not in self._specs)
        self._given_names = tuple(i.name for i in self._given)
        self._pick = picker(self._given_names)
        self._whole_form = form
        states = [n for n, i in enumerate(model.inputs) if i.name in self._specs]
        self._held = Held(frozenset(states), frozenset(self._kept))
        self._form = None if form is None else form.without(states, self._kept)
        self._count = plain_count(len(self._given), self._form)
        self._defaults = {i.name: i.initial for i in self._given if i.initial is not None}
        self._maps = tuple(i.name for i in self._given if i.takes_mapping)
        shown = [n for n in range(len(model.outputs)) if n not in self._kept]
        self._shown_of, self._kept_of = picker(shown), picker(self._kept)
        self._shown_names = tuple(model.outputs[n].name for n in shown)
        self._initial: State = self._checked(initial)
        self._held_form = held_form
        # What served the latest call with buffers, and the form of that call.
        self._served: Any = None
        self._served_form: HeldForm | None = None
        flag = branch_input(self._given)
        self._flag = None if flag is None else self._given_names.index(flag)
        # The owner of the buffers that the session may write to.
        self._owner = object()
        # Without buffers, the only item has the values in the order of the pairs, None for those
        # that are not known. With buffers, it is unused.
        self._cell: list[list[Any]] = [[]]
        self._in_buffers = _Now({})
        self._now = _Now(self._in_order(self._initial))
        self._turn = Turn()
        self._always_fit = all(map(_always_fits, pairs))
        # The native form of a call, and that of the model that it was made from.
        self._native: NativeCall | None = None
        self._native_of: NativeForm | None = None
        self._states = tuple(model.input_names.index(name) for name in self._specs)
        # For each input of the model, its place among those of a call and the states behind them.
        names = [*self._given_names, *self._specs]
        self._arrange = picker([names.index(name) for name in model.input_names])

    def _about(self) -> str:
        inputs = listed(f"{i.name} {i.shown_type}" for i in self._given)
        outputs = listed(self._shown_names)
        state = listed(f"{p.input.name} <- {p.output.name}" for p in self._pairs)
        return f"{inputs or 'of no inputs'} -> {outputs or 'no outputs'}, state: {state or 'none'}"

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs of a call in order: those of the model without the state."""
        return self._given

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs of a call in order."""
        return self._given_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs of a call in order: those of the model without the state."""
        return self._shown_names

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state inputs in order."""
        return tuple(self._specs)

    @property
    def state(self) -> State:
        """The state after the last call, by input name; its arrays are read-only, and later calls
        do not change them. Before the first call it lacks the states whose sizes that call
        determines.
        """
        return MappingProxyType({n: _view(array) for n, array in self._whole().items()})

    @property
    def _now(self) -> _Now:
        """The state between two calls."""
        if self._held_form is not None:
            return self._in_buffers
        found = zip(self._specs, self._cell[0], strict=True)
        return _Now({name: array for name, array in found if array is not None})

    @_now.setter
    def _now(self, now: _Now) -> None:
        if self._held_form is not None:
            self._in_buffers = now
        else:
            self._cell[0] = [now.state.get(name) for name in self._specs]

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """Returns the output, or a tuple if there are none or several, and updates the state.

        Inputs are given as in a call of the model, without the state. A session of a PyTorch model
        takes and returns nested values, as the model does.

        Errors: those of a call of the model; I372 (an output that its input does not accept), I373
        (an unknown initial value), I374 (another call is running).
        """
        results = self._step(inputs, named)
        if self._form is not None:
            return self._form.results(results)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, /, *inputs: Any, **named: Any) -> dict[str, Any]:
        """Returns the outputs by name, and updates the state; inputs are given as in a call.

        Errors: those of a call.
        """
        results = self._step(inputs, named)
        if len(results) == 1:  # takes a fifth of the time
            return {self._shown_names[0]: results[0]}
        return dict(zip(self._shown_names, results, strict=True))

    def set(self, values: Mapping[str, Any] = _NOTHING, /, **named: Any) -> None:
        """Replaces states, by input name: `session.set(past_k=array)`, or a mapping for names that
        are not keywords. The arrays are copied. `reset` still returns to the initial state.

        Errors: I042 (shape), I043 (dtype), I371 (names), I374 (a call is running).
        """
        changed = self._checked({**values, **named})
        call = object()
        try:
            self._begin(call)
            self._now = _Now(self._in_order({**self._whole(), **changed}))
        finally:
            if 0 in self._turn.held and self._turn.held[0] is call:
                del self._turn.held[0]

    def reset(self) -> None:
        """Returns to the initial state. Sizes that the first call determines are open again.

        Errors: I374 (a call is running).
        """
        call = object()
        try:
            self._begin(call)
            self._now = _Now(self._in_order(self._initial))
        finally:
            if 0 in self._turn.held and self._turn.held[0] is call:
                del self._turn.held[0]

    def copy(self) -> Session:
        """Returns an independent session with the same state and initial state. No array is copied
        before the copy is called: then buffers with growing states are.
        """
        made = Session(self._model, self._pairs, form=self._whole_form, held_form=self._held_form)
        made._initial, made._now = self._initial, self._lent()
        return made

    @property
    def is_lost(self) -> bool:
        """Whether the session has lost its state: the last call failed while it wrote to states of
        fixed capacity (I377).
        """
        hold = self._now.hold
        return hold is not None and hold.is_torn and not self._turn.held

    @property
    def growing_axes(self) -> dict[str, int]:
        """The axes along which states grow, by input name, without states of fixed size."""
        return dict(self._places_of_length())

    @property
    def length(self) -> int:
        """The number of positions in the growing states, such as key-value caches: the size of the
        axis along which they grow; 0 before the first call.

        Errors: I375 if no state grows, or if states have different lengths.
        """
        now, places = self._now, self._places_of_length()
        found = {size for name, size in now.lengths.items() if name in self._growing}
        found |= {now.state[name].shape[axis] for name, axis in places if name in now.state}
        if not places or len(found) > 1:
            what = "no state grows" if not places else "its states have different lengths"
            raise InputError(
                "I375",
                f"the session has no length: {what}",
                hint="a state grows if its input has the size `past`, its output `past + seq`",
            )
        return found.pop() if found else 0

    def rewind(self, length: int) -> None:
        """Shortens the growing states to their first positions, so that the next call continues
        from there. States that do not grow remain as they are.

        Errors: I374 (a call is running), I375 (no length), I376 (there are fewer positions).
        """
        call = object()
        try:
            self._begin(call)
            most = self.length
            if not isinstance(length, (int, np.integer)) or not 0 <= length <= most:
                raise InputError(
                    "I376",
                    f"rewind to {length}, but the session has {most} positions",
                    hint=f"give a whole number from 0 to session.length, which is {most}",
                )
            length = int(length)
            now = self._now
            state = dict(now.state)
            for name, axis in self._places_of_length():
                if name in state:
                    first = state[name][(slice(None),) * axis + (slice(length),)]
                    state[name] = np.array(first, order="C")
            lengths = {n: length if n in self._growing else size for n, size in now.lengths.items()}
            self._now = _Now(state, now.caches, lengths, now.hold)
        finally:
            if 0 in self._turn.held and self._turn.held[0] is call:
                del self._turn.held[0]

    @property
    def nbytes(self) -> int:
        """The memory of the state in bytes; copies of the session may share it."""
        now = self._now
        own = sum(array.nbytes for array in now.state.values())
        return own + (0 if now.caches is None else now.caches.nbytes)

    def positions(self, begin: int, end: int) -> dict[str, Array]:
        """Returns copies of some positions of the growing states, by input name."""
        now, found = self._now, {}
        arrays = now.state if now.caches is None else {**now.state, **now.caches.arrays}
        for name, axis in self._places_of_length():
            found[name] = np.take(arrays[name], range(begin, end), axis)
        return found

    def take_rows(self, rows: Sequence[tuple[Session, int, int]], batch: Mapping[str, int]) -> int:
        """Replaces the sequences of this session by rows of sessions of the same model: each is a
        session, the number of a row of its states, and the number of its valid last positions. All
        end at the same position, which is returned; shorter ones have zeros before them. `batch`
        has the axis of sequences by state.

        Rows of this session that keep their number are not copied, if there is room.

        Errors: I374 (a call is running), I265 (bytes).
        """
        call = object()
        try:
            self._begin(call)
            is_own = any(session is self for session, *_ in rows)
            end = common_end([length for *_, length in rows], self._end if is_own else 0)
            found = []
            for number, (session, own, length) in enumerate(rows):
                at = session._now
                arrays = at.state if at.caches is None else {**at.state, **at.caches.arrays}
                stays = session is self and own == number and session._end == end
                found.append(Row(arrays, own, session._end, length, stays))
            with in_force(self._model.budgets):
                form, before, axes = self._held_form, self._now.caches, self.growing_axes
                caches = buffers_of(found, batch, end, form, before, self._owner)
                state = {
                    name: plain_rows(found, name, batch[name], axes.get(name, -1), end)
                    for name in found[0].arrays
                    if caches is None or name not in caches.arrays
                }
            ends = {} if caches is None else dict.fromkeys(caches.form.spares, end)
            self._now = _Now(state, caches, ends)
            return end
        except MemoryError as error:
            raise out_of_memory(error) from error
        finally:
            if 0 in self._turn.held and self._turn.held[0] is call:
                del self._turn.held[0]

    @property
    def _end(self) -> int:
        """The number of positions in the growing states; 0 if no state grows."""
        return self.length if self._places_of_length() else 0

    def _places_of_length(self) -> list[tuple[str, int]]:
        """Returns the growing states and their axes that grow."""
        return [
            (name, axis)
            for name, spec in self._specs.items()
            for axis, size in enumerate(spec.shape)
            if size in self._growing
        ]

    def _whole(self) -> State:
        """Returns all states as arrays, in order; buffers keep the elements that these show."""
        now = self._lent()
        caches, found = now.caches, dict(now.state)
        if caches is not None:
            found |= {name: caches.shown(name, now.lengths) for name in caches.arrays}
        return self._in_order(found)

    def _lent(self) -> _Now:
        """Returns the state between two calls, whose buffers keep its elements from now on."""
        while True:
            now = self._now
            is_whole = now.hold is None or now.hold.lend()
            if now.caches is not None:
                now.caches.lend(now.lengths)
            # Another thread may have made a call, or rewound the session, just before.
            if self._held_form is not None and self._now is not now:
                continue
            if is_whole:
                return now
            if self._turn.held:
                raise _is_running()
            if self._now is now and now.hold is not None and now.hold.is_torn:
                raise _is_torn()

    def _begin(self, call: object) -> None:
        """Errors: I374 if another call is running."""
        if not self._turn.begin(call):
            raise _is_running()

    def _step(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the outputs of a call that are not state."""
        if self._native is not None and not named:
            results: Sequence[Any] | None = self._native(given)
            if results is not None:
                return results
        if named or len(given) != self._count or type(given[0]) is not np.ndarray:
            given = with_sizes(self._given, self._arranged(given, named))
        call = object()
        try:
            if not self._turn.begin(call):
                raise _is_running()
            if self._held_form is not None:
                given = list(map(InputSpec.check, self._given, given))
                return self._held_step(self._held_form, given)
            state = self._cell[0]
            if any(value is None for value in state):
                given = list(map(InputSpec.check, self._given, given))
                state = list(self._completed(given).values())
            results = self._model.run_in_order(self._arrange((*given, *state)), self._held)
            self._cell[0] = self._next_state(self._kept_of(results))
            self._prepare_native()
            return self._shown_of(results)
        except MemoryError as error:
            raise out_of_memory(error) from error
        finally:
            if 0 in self._turn.held and self._turn.held[0] is call:
                del self._turn.held[0]

    def next_call(self, /, *inputs: Any, **named: Any) -> tuple[Any, list[Any]]:
        """Returns what would serve a call with these inputs (program, sizes, build, provider), and
        the checked inputs of the program, including the states. The caller can thus time the
        program, which may write to the session's arrays: call this on a copy of the session, and
        use the copy for nothing else.

        Errors: those of a call.
        """
        given = with_sizes(self._given, self._arranged(inputs, named))
        given = list(map(InputSpec.check, self._given, given))
        if self._held_form is not None:
            step = self._prepared(self._held_form, given)
            return step.served, step.given
        whole = self._arrange([*given, *self._completed(given).values()])
        return self._model.served_for(whole), list(whole)

    def _prepared(self, form: HeldForm, arrays: Sequence[Any]) -> _Step:
        """Returns the next call, prepared: growing states lie in buffers with room for it."""
        now = self._now
        if form.begins is not None and self._flag is not None and not arrays[self._flag].any():
            form, now = form.begins, self._emptied(now, arrays)
        if now.hold is not None and now.hold.is_torn:
            raise _is_torn()
        whole: State = now.state if now.caches is None else {**now.state, **now.caches.arrays}
        if len(whole) < len(self._specs):
            whole = self._completed(arrays)
        given = list(self._arrange([*arrays, *(whole[name] for name in self._specs)]))
        if now.caches is None:
            now = _Now(whole, None, form.lengths_of(given), now.hold)
        added = form.added(given, now.lengths)
        caches = now.caches
        with in_force(self._model.budgets):
            is_new = caches is None or not caches.admits(self._owner, now.lengths, added)
            if caches is None or is_new:
                caches = make_caches(form, self._valid(form, now), now.lengths, added, self._owner)
            for name, state in form.states.items():
                given[state.position] = caches.arrays[name]
            given += caches.given(now.lengths, added)
            before = self._served if self._served_form is form else None
            served = self._served = form.serve(given, before)
            self._served_form = form
            taken = served.program.borders.of(self._held).taken
            hold = self._begun(form, taken, now.hold, given, is_new=is_new)
        after = {name: length + max(added[name], 0) for name, length in now.lengths.items()}
        return _Step(given, served, caches, after, hold)

    def _held_step(self, form: HeldForm, arrays: Sequence[Any]) -> Sequence[Any]:
        """Returns the outputs of a call that are not state, with growing states in buffers."""
        given, served, caches, after, hold = self._prepared(form, arrays)
        results = self._model.run_checked(given, self._held, served=served)
        kept = dict(zip(self._specs, self._kept_of(results), strict=True))
        caches = caches.after({name: kept.pop(name) for name in caches.arrays})
        self._now = _Now(self._next_plain(kept), caches, after, hold)
        if hold is not None:
            hold.is_torn = False
        return self._shown_of(results)

    def _emptied(self, now: _Now, arrays: Sequence[Any]) -> _Now:
        """Returns the state for a call that begins a sequence and reads no state: without elements
        in growing states, whose buffers it keeps if their other sizes are those of the call. Sizes
        that the call does not give are 1.

        Errors: I265.
        """
        named = {d for spec in self._specs.values() for d in spec.shape if isinstance(d, str)}
        known = sizes_of(self._model.inputs, dict(zip(self._given_names, arrays, strict=True)))
        sizes = {**dict.fromkeys(named, 1), **known, **dict.fromkeys(self._growing, 0)}
        with in_force(self._model.budgets):
            first = {name: first_value(s, sizes, self._growing) for name, s in self._specs.items()}
        grows, caches = dict(self._places_of_length()), now.caches
        is_torn = now.hold is not None and now.hold.is_torn
        if is_torn or caches is None:
            return _Now(first)
        if not all(
            _are_equal_but(grows[name], array.shape, first[name].shape)
            for name, array in caches.arrays.items()
        ):
            return _Now(first)
        left = {name: array for name, array in first.items() if name not in caches.arrays}
        return now._replace(state=left, lengths=dict.fromkeys(now.lengths, 0))

    def _begun(
        self,
        form: HeldForm,
        taken: Sequence[int],
        hold: Hold | None,
        given: list[Any],
        *,
        is_new: bool,
    ) -> Hold | None:
        """Returns who may write to the arrays of the inputs `taken` in the call that begins. If
        that is not the session, they are copied, except those of states to which calls append, and
        buffers that are new.
        """
        anywhere = [n for n in taken if n not in form.appended]
        if not anywhere or (hold is not None and hold.begin(self._owner)):
            return hold
        new = {state.position for state in form.states.values()} if is_new else set()
        for n in anywhere:
            if n in new:
                continue
            check_run_bytes(f"state {self._model.input_names[n]!r}", given[n].nbytes)
            given[n] = own_copy(given[n])
        return Hold(self._owner)

    def _valid(self, form: HeldForm, now: _Now) -> State:
        """Returns the valid parts of the states that lie in buffers."""
        caches = now.caches
        if caches is None:
            return {name: now.state[name] for name in form.states}
        return {name: caches.shown(name, now.lengths) for name in form.states}

    def _next_plain(self, values: Mapping[str, Any]) -> State:
        """Errors: I372 for a value that its input does not accept."""
        if self._always_fit:
            return dict(values)
        pairs = {pair.input.name: pair for pair in self._pairs}
        return {name: _next_value(pairs[name], value) for name, value in values.items()}

    def _prepare_native(self) -> None:
        """Makes the native form of the next call, if the model has one and values of its outputs
        need no check.
        """
        native = self._model.native if self._always_fit else None
        if native is not self._native_of:
            self._native_of, made = native, None
            if native is not None and self._count > 0:
                state = NativeState(self._cell, self._turn.held, self._states)
                made = native.with_state(state, self._kept)
            self._native = made

    def _next_state(self, values: Sequence[Any]) -> list[Any]:
        """Errors: I372 for a value that its input does not accept."""
        return list(values if self._always_fit else map(_next_value, self._pairs, values))

    def _in_order(self, state: State) -> State:
        return {name: state[name] for name in self._specs if name in state}

    def _arranged(self, given: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the inputs of a call in order."""
        plain = self._form is None and not self._maps and not named and len(given) == 1
        if plain and type(given[0]) is dict and len(given[0]) == len(self._given_names):
            try:
                return self._pick(given[0])
            except KeyError:  # reported below
                pass
        by_name = given[0] if len(given) == 1 and isinstance(given[0], Mapping) else _NOTHING
        own = [n for n in self._specs if n in named or (n in by_name and not self._maps)]
        if own:
            raise InputError(
                "I041",
                f"input {own[0]!r} is a state of the session, which passes it itself",
                hint=f"session.set({{{own[0]!r}: ...}}) changes it",
            )
        if self._form is not None:
            # Inputs with a default value come last.
            nested = self._form.inputs(given, named, len(self._given) - len(self._defaults))
            if nested is not None:
                return [*nested, *self._defaults.values()]
        return in_order(
            self._given_names, given, named, maps=self._maps, defaults=self._defaults, of="session"
        )

    def _completed(self, arrays: Sequence[Any]) -> State:
        """Returns the state, with zeros for states that have no value yet.

        Errors: I373.
        """
        state = self._now.state
        known = dict(zip(self._given_names, arrays, strict=True)) | dict(state)
        sizes = sizes_of(self._model.inputs, known)
        with in_force(self._model.budgets):
            return {
                name: state[name] if name in state else first_value(spec, sizes, self._growing)
                for name, spec in self._specs.items()
            }

    def _checked(self, values: Mapping[str, Any]) -> State:
        """Returns given states as arrays without other references.

        Errors: I042, I043, I371.
        """
        for name in values:
            if name not in self._specs:
                raise InputError(
                    "I371",
                    f"{name!r} is not a state of the session",
                    hint=did_you_mean(str(name), self._specs, "states"),
                )
        return {n: np.array(self._specs[n].check(v), order="C") for n, v in values.items()}


def _is_running() -> InputError:
    return InputError(
        "I374",
        "the session is already running a call",
        hint="use a session for each thread: model.session(), or session.copy()",
    )


def _are_equal_but(axis: int, a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes of equal rank are equal, apart from an axis."""
    return all(n == axis or left == right for n, (left, right) in enumerate(zip(a, b, strict=True)))


def _is_torn() -> InputError:
    return InputError(
        "I377",
        "the session has lost its state: a call failed while it wrote to states of fixed capacity",
        hint="session.reset() starts again; a session.copy() made before the call still has the "
        "state",
    )


def _always_fits(pair: StatePair) -> bool:
    """Whether each value of the output is one that the input accepts, according to their types."""
    given, made = pair.input, pair.output
    if given.kind is not None or given.dtype is None or made.dtype != given.dtype:
        return False
    if given.takes_any_shape or not made.is_known or made.shape is None:
        return False
    return len(given.shape) == len(made.shape) and all(
        isinstance(wanted, str) or wanted == size
        for wanted, size in zip(given.shape, made.shape, strict=True)
    )


def _next_value(pair: StatePair, value: Any) -> Array:
    """Errors: I372 for a value that the input does not accept."""
    try:
        array: Array = pair.input.check(value)
    except InputError as error:
        raise InputError(
            "I372",
            f"output {pair.output.name!r} cannot be the next value of input "
            f"{pair.input.name!r}: {error.message}",
            hint="the state is the one before the call; state={input: output} names the pairs",
        ) from error
    return array


def _view(array: Array) -> Array:
    """Returns a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view
