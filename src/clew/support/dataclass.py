"""`dataclasses.dataclass`, which does its work when a class is first used.

The standard decorator examines every field of a class and compiles up to six methods, which takes
half of the time to import the run time. This one only notes the class: its first object, or the
first look at its fields, makes its `__init__` and all else. The classes are dataclasses: `fields`,
`replace`, `asdict` and `match` work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

from clew.support.locks import Lock

_MISSING: Final = dataclasses.MISSING


class _Factory:
    """Stands for the value of a default factory in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


# Held while a class is finished.
_LOCK: Final = Lock()
_LATER: Final = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")


def _made(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    slots: bool = False,
) -> Any:
    """Decorator: as `dataclasses.dataclass`."""

    def make(one: type[Any]) -> type[Any]:
        extends = any("__dataclass_fields__" in base.__dict__ for base in one.__mro__[1:])
        if slots or extends:
            # The standard decorator compares a class with its bases, and makes another class for
            # slots, which it prepares for pickling.
            made: Any = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, frozen=frozen
            )(one)
            _Unfinished(made, frozen, eq, repr).finish()
            return made  # type: ignore[no-any-return]
        _Unfinished(one, frozen, eq, repr).defer()
        return one

    return make if cls is None else make(cls)


class _Unfinished:
    """A class whose methods are not made yet."""

    def __init__(self, made: Any, frozen: bool, eq: bool, repr: bool) -> None:
        self._made = made
        self._frozen = frozen
        own = made.__dict__
        self._given = {n: v for n, v in own.items() if isinstance(v, dataclasses.Field)}
        self._asked = repr, eq
        self._methods = [] if "__init__" in own else ["__init__"]
        if repr and "__repr__" not in own:
            self._methods.append("__repr__")
        if eq and "__eq__" not in own:
            self._methods.append("__eq__")
            if own.get("__hash__") is None:
                self._methods.append("__hash__")
        self._is_finished = False

    def defer(self) -> None:
        """Makes the first use finish the class."""
        made = self._made
        for name, field in self._given.items():
            if field.default is _MISSING:
                delattr(made, name)
            else:
                setattr(made, name, field.default)
        for name in _LATER:
            setattr(made, name, _Later(name, self))
        for name in self._methods:
            setattr(made, name, self._first_call(name))
        self._set_fixed()

    def _set_fixed(self) -> None:
        if self._frozen:
            self._made.__setattr__, self._made.__delattr__ = _refused(self._made)
        elif "__hash__" in self._methods:
            self._made.__hash__ = None

    def _first_call(self, name: str) -> Callable[..., Any]:
        def call(self: Any, /, *args: Any, **named: Any) -> Any:
            finish()
            return getattr(made, name)(self, *args, **named)

        made, finish = self._made, self.complete
        call.__name__, call.__qualname__ = name, f"{made.__qualname__}.{name}"
        return call

    def complete(self) -> None:
        """Finishes a deferred class."""
        with _LOCK:
            if self._is_finished:
                return
            for name, field in self._given.items():
                setattr(self._made, name, field)
            if "__match_args__" in self._made.__dict__:  # not in a second attempt
                del self._made.__match_args__
            dataclasses.dataclass(init=False, repr=False, eq=False)(self._made)
            self.finish()
            self._is_finished = True

    def finish(self) -> None:
        """Makes the methods of a class with fields."""
        made = self._made
        parameters = made.__dataclass_params__
        parameters.init, parameters.frozen = True, self._frozen
        parameters.repr, parameters.eq = self._asked
        fields = dataclasses.fields(made)
        if "__init__" in self._methods:
            made.__init__ = _init(made, fields, self._frozen)
        if "__repr__" in self._methods:
            made.__repr__ = _repr(fields)
        if "__eq__" in self._methods:
            made.__eq__, hash_ = _comparison(fields)
            if "__hash__" in self._methods:
                made.__hash__ = hash_
        self._set_fixed()


class _Later:
    """An attribute of a class that exists once the class is finished."""

    def __init__(self, name: str, unfinished: _Unfinished) -> None:
        self._name = name
        self._unfinished = unfinished

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        self._unfinished.complete()
        return getattr(owner, self._name)


def _init(
    made: type[Any], fields: tuple[dataclasses.Field[Any], ...], frozen: bool
) -> Callable[..., None]:
    values: dict[str, Any] = {"_factory": _FACTORY, "_set": object.__setattr__}
    plain: list[str] = []
    named: list[str] = []
    body = []
    for number, field in enumerate(fields):
        value = name = field.name
        shown = name
        if field.default_factory is not _MISSING:
            values[f"_d{number}"] = field.default_factory
            shown = f"{name}=_factory"
            value = (
                f"_d{number}() if {name} is _factory else {name}"
                if field.init
                else (f"_d{number}()")
            )
        elif field.default is not _MISSING:
            values[f"_d{number}"] = field.default
            shown = f"{name}=_d{number}"
            value = name if field.init else f"_d{number}"
        elif not field.init:
            continue
        if field.init:
            (named if field.kw_only else plain).append(shown)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    signature = ", ".join(["self", *plain, *(["*", *named] if named else [])])
    exec(f"def __init__({signature}):\n  " + "\n  ".join(body or ["pass"]), values)
    init: Callable[..., None] = values["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return init


def _repr(fields: tuple[dataclasses.Field[Any], ...]) -> Callable[[Any], str]:
    names = [field.name for field in fields if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _comparison(
    fields: tuple[dataclasses.Field[Any], ...],
) -> tuple[Callable[..., Any], Callable[..., int]]:
    compared = [field for field in fields if field.compare]
    hashed = [f for f in fields if (f.compare if f.hash is None else f.hash)]
    key, hash_key = _key(compared), _key(hashed)

    def __eq__(self: Any, other: Any) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return key(self) == key(other)

    def __hash__(self: Any) -> int:
        return hash(hash_key(self))

    return __eq__, __hash__


def _key(fields: list[dataclasses.Field[Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns the function that gives an object's fields as a tuple."""
    names = [field.name for field in fields]
    if not names:
        return lambda one: ()
    if len(names) == 1:
        first = attrgetter(names[0])
        return lambda one: (first(one),)
    return attrgetter(*names)


def _refused(made: type[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    def has(self: Any, name: str) -> bool:
        return type(self) is made or any(f.name == name for f in dataclasses.fields(made))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if has(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if has(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return __setattr__, __delattr__


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _made
