"""Caches of functions' results that are bounded by bytes.

`functools.lru_cache` bounds the number of entries, which for names and types of models may be of
any size: a process that compiles many models would keep entries that no later model uses.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SHARED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
# Objects looked at to estimate an entry's bytes, and the bytes that others have at least.
_MOST_OBJECTS: Final = 256
_OBJECT_BYTES: Final = 64
# An estimate takes longer than many a function whose results are cached. It is made of the first
# entries, of those with long texts or arrays, and else of one entry in so many, which stands for
# the others. Objects that several entries share, such as the atoms of dimensions, count once:
# otherwise they would fill a cache that has few entries.
_FIRST_ENTRIES: Final = 16
_ONE_IN: Final = 64
_LONG_BYTES: Final = 4096


def bounded_cache(most_bytes: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for a function of hashable arguments: caches its results until they and their
    arguments take about `most_bytes`, and then begins again. A result that is found costs as much
    as with `functools.cache`.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        held = entries = 0
        counted: set[int] = set()

        def made(*args: P.args, **named: P.kwargs) -> T:
            nonlocal held, entries
            result = function(*args, **named)
            entries += 1
            if entries <= _FIRST_ENTRIES or _is_long(args, result):
                held += held_bytes(*args, *named.values(), result, counted=counted)
            elif entries % _ONE_IN == 0:
                held += _ONE_IN * held_bytes(*args, *named.values(), result, counted=counted)
            if held > most_bytes:
                cached.cache_clear()
                counted.clear()
                held = entries = 0
            return result

        cached: Any = functools.lru_cache(maxsize=None)(made)
        functools.update_wrapper(cached, function)
        found: Callable[P, T] = cached
        return found

    return decorated


def _is_long(args: tuple[object, ...], result: object) -> bool:
    """Whether a result or an argument of it has many bytes, apart from those that it refers to."""
    return sys.getsizeof(result) + sum(map(sys.getsizeof, args)) > _LONG_BYTES


def held_bytes(*values: Any, counted: set[int] | None = None) -> int:
    """Returns about how many bytes of memory values hold, without classes and functions. Objects
    whose ids are in `counted` are left out; those that were found are added to it.
    """
    total, stack, found = 0, [*values], 0
    seen = set[int]() if counted is None else counted
    while stack and found < _MOST_OBJECTS:
        one = stack.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        found += 1
        total += sys.getsizeof(one)
        stack += gc.get_referents(one)
    return total + _OBJECT_BYTES * len(stack)
