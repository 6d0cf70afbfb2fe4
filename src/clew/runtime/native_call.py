"""The native form of a call: what Python calls to check inputs, allocate results and run a segment.

`native_call` returns a built-in function of a tuple of inputs. It returns a list of new arrays, or
None, which leaves the call to Python (`codegen.driver.call` names the cases). It answers only what
fits exactly; all messages, conversions and copies are in Python.

The function reads the fields of arrays in place. They are compared with real arrays when it is
first needed; where they differ, without a GIL, or on another implementation of Python, there is no
native form.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from clew.codegen.driver import call as native
from clew.codegen.driver import driver as driver_native
from clew.runtime.driver import driver
from clew.support.addresses import address_of
from clew.support.arrays import ALIGNMENT_BYTES
from clew.support.budgets import DEFAULT_LOOP_STEPS, IN_FORCE
from clew.support.locks import once

NativeCall: TypeAlias = "Any"
"""A function of a tuple of arrays, which returns a list of arrays or None."""

# The shortest of so many runs decides whether a segment keeps the GIL: if it takes less than this.
# Handing the GIL to another thread and back takes about as long.
_TIMED_RUNS: Final = 16
_KEPT_GIL_NS: Final = 10_000
_ENDLESS: Final = 1 << 62
_ONE_ARGUMENT: Final = 8  # METH_O
_WORD: Final = ctypes.c_int64
Words: TypeAlias = "ctypes.Array[ctypes.c_int64]"


class Input(NamedTuple):
    """An input of a call. `base` is the position of its address among those of a segment's inputs
    and outputs; -1 if no kernel reads it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    base: int


class Result(NamedTuple):
    """A result of a call: its shape and dtype, and the position of its address (see `Input`)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    base: int

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


class Block(NamedTuple):
    """Results that share memory: the bytes of that memory, and for each result its number among
    those of the call and its offset.
    """

    size_bytes: int
    results: Sequence[tuple[int, int]]


class State(NamedTuple):
    """The state of a session: the list whose only item is the list of its values, the dict of its
    turn, and the numbers of the model's inputs that are states, in their order.
    """

    cell: list[Any]
    turn: dict[int, object]
    inputs: Sequence[int]


class Running(NamedTuple):
    """What a call runs: the lists of idle contexts and of idle working memory (None: none needed),
    the most entries of both, the bytes of working memory that a run needs, the size from which
    memory is left to Python, and the cell of a pool (None: one thread). `owners` keeps everything
    alive that contexts refer to. `watch` is the address of what times the steps. `has_loops` says
    whether runs may reach the budget of iterations, and `varies` whether data decide how many
    iterations they take.
    """

    contexts: list[Any]
    memories: list[Any] | None
    most: tuple[int, int]
    working_bytes: int
    spare_bytes: int
    pool: Words | None
    owners: object
    watch: int | None = None
    has_loops: bool = False
    varies: bool = False


class Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def new_function(method: Method, own: tuple[Any, ...]) -> Any:
    """Returns the built-in function of a method, whose `self` is `own`. That must keep the method
    alive: functions read it when they are deleted.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = ctypes.POINTER(Method), ctypes.py_object, ctypes.c_void_p
    return new(ctypes.byref(method), own, None)


def native_call(
    inputs: Sequence[Input],
    results: Sequence[Result],
    blocks: Sequence[Block],
    running: Running,
    ahead: ctypes.c_int64 | None = None,
    state: State | None = None,
) -> NativeCall | None:
    """Returns the native form of a call; None if there is none on this platform, or if a value
    holds objects, whose elements have to be checked.

    `ahead` is the number of calls that it may answer, which each call decrements; None for all.
    With `state`, inputs include the states, the last results are their next values, and calls take
    the other inputs and return the other results.
    """
    make = _maker()
    if make is None or _hold_objects([*inputs, *results]):
        return None
    return make.call(inputs, results, blocks, running, ahead, state)


def _hold_objects(values: Sequence[Input | Result]) -> bool:
    return any(value.dtype.hasobject for value in values)


class _Maker:
    """Makes functions over the native code, which is never unloaded."""

    def __init__(self, address: int) -> None:
        self._method = Method(b"call", address, _ONE_ARGUMENT, b"Runs a compiled model.")

    def call(
        self,
        inputs: Sequence[Input],
        results: Sequence[Result],
        blocks: Sequence[Block],
        running: Running,
        ahead: ctypes.c_int64 | None = None,
        state: State | None = None,
    ) -> NativeCall:
        """Returns a function for these tables."""
        owners: list[object] = [running.owners, running.pool, ahead, inputs, results]

        def table(words: Sequence[int]) -> int:
            kept = (_WORD * max(1, len(words)))(*words)
            owners.append(kept)
            return ctypes.addressof(kept)

        states = () if state is None else state.inputs
        order = [*(n for n in range(len(inputs)) if n not in states), *states]
        rows = [
            word
            for number, (shape, dtype, base) in enumerate(inputs)
            for word in (id(dtype), len(shape), table(shape), base, order.index(number))
        ]
        made: list[int] = []
        for block in blocks:
            words: list[int] = []
            for number, offset in block.results:
                found = results[number]
                words += (id(found.dtype), len(found.shape), table(found.shape))
                words += (offset, found.base, number)
            made += (block.size_bytes + ALIGNMENT_BYTES, len(block.results), table(words))
        record = [
            *(id(tuple), id(np.ndarray), id(_BYTES), id(None)),
            *(len(inputs), table(rows), len(blocks), table(made)),
            0 if running.pool is None else ctypes.addressof(running.pool),
            0 if ahead is None else ctypes.addressof(ahead),
            *(running.working_bytes, running.spare_bytes, *running.most),
            *(0, 0 if running.varies else _TIMED_RUNS, _ENDLESS, _KEPT_GIL_NS),
            *(len(results), ctypes.addressof(DEFAULT_LOOP_STEPS) if running.has_loops else 0),
            *(len(inputs) - len(states), len(results) - len(states), int(state is not None)),
            running.watch or 0,
        ]
        assert 8 * len(record) == native.CALL_RECORD_BYTES
        session = () if state is None else (state.cell, state.turn, 0, object())
        # Functions read their method when they are deleted, maybe after the modules of clew. Python
        # clears lists in cycles before that, but not tuples.
        kept = owners, self._method, DEFAULT_LOOP_STEPS
        own = table(record), running.contexts, running.memories, IN_FORCE, *session, kept
        function: NativeCall = new_function(self._method, own)
        return function


_BYTES: Final = np.dtype(np.uint8)


@once
def _maker() -> _Maker | None:
    """Returns what makes native calls; None if this interpreter or NumPy has another layout."""
    address = driver().call_address
    if address is None:
        return None
    made = _Maker(address)
    return made if _answers(made) else None


def _answers(maker: _Maker) -> bool:
    """Whether a call of a segment without steps returns right arrays, and references of all objects
    are counted.
    """
    segment = (_WORD * (driver_native.SEGMENT_BYTES // 8))()
    bases = (_WORD * 3)()
    words = (_WORD * (native.CONTEXT_BYTES // 8))(
        ctypes.addressof(segment), ctypes.addressof(bases)
    )
    # Objects of no other thread, whose references nobody else counts meanwhile.
    dtypes = [np.dtype(kind, metadata={"of": "clew"}) for kind in (np.float32, np.int64)]
    inputs = [Input((2, 3), dtypes[0], 0)]
    results = [Result((3, 2), dtypes[0], 1), Result((), dtypes[1], 2)]
    contexts = [(ctypes.addressof(words),)]
    running = Running(contexts, None, (1, 1), 0, 0, None, (segment, bases, words))
    call = maker.call(inputs, results, [Block(128, [(0, 0), (1, 64)])], running)
    given = np.zeros((2, 3), dtypes[0])
    watched = given, *dtypes, contexts[0]
    call((given,))
    counts = list(map(sys.getrefcount, watched))
    found = call((given,))
    refused = call((given.T,)), call((given[:1],)), call([given]), call((given, given))
    is_right = (
        type(found) is list
        and [(type(y), y.shape, id(y.dtype)) for y in found]
        == [(np.ndarray, r.shape, id(r.dtype)) for r in results]
        and all(y.flags.carray and not y.flags.owndata for y in found)
        and found[0].base is found[1].base
        and list(bases) == [address_of(a) for a in (given, *found)]
        and refused == (None,) * 4
        and len(contexts) == 1
    )
    del found, refused
    return is_right and list(map(sys.getrefcount, watched)) == counts
