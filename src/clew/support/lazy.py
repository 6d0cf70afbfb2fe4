"""Attributes computed on first access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """`functools.cached_property` as Python 3.12 has it, without a lock.

    Python 3.11's version has one lock for all instances of a class: compiling threads would wait
    for each other, and a child forked meanwhile would wait forever. Here two threads may both
    compute a value, but with equal results.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = self._function(instance)
        return instance.__dict__.setdefault(self._name, value)  # type: ignore[no-any-return]
