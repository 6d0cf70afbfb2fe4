"""`dataclasses.dataclass`, which compiles methods only when a class is first used.

The standard decorator compiles up to six methods for each class, which takes half of the time to
import the run time. This one writes `__init__` when the first object is made, and needs no code of
its own for the others. The classes are dataclasses: `fields`, `replace`, `asdict` and `match` work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final

_MISSING: Final = dataclasses.MISSING


class _Factory:
    """Stands for the value of a default factory in a signature."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


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
        # The standard decorator compares a class with its bases, and prepares slots for pickling.
        checked = frozen and (slots or any(map(dataclasses.is_dataclass, one.__mro__[1:])))
        made: Any = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=slots, frozen=checked
        )(one)
        parameters = made.__dataclass_params__
        parameters.init, parameters.repr, parameters.eq = True, repr, eq
        parameters.frozen = frozen
        fields = dataclasses.fields(made)
        if "__init__" not in one.__dict__:
            made.__init__ = _first_init(made, fields, frozen)
        if repr and "__repr__" not in one.__dict__:
            made.__repr__ = _repr(fields)
        if eq and "__eq__" not in one.__dict__:
            made.__eq__, hash_ = _comparison(fields)
            if "__hash__" not in one.__dict__ or one.__dict__["__hash__"] is None:
                made.__hash__ = hash_ if frozen else None
        if frozen:
            made.__setattr__, made.__delattr__ = _refused(made, fields)
        return made  # type: ignore[no-any-return]

    return make if cls is None else make(cls)


def _first_init(
    made: type[Any], fields: tuple[dataclasses.Field[Any], ...], frozen: bool
) -> Callable[..., None]:
    """Returns an `__init__` that replaces itself by one for the fields when it is first called."""

    def __init__(self: Any, /, *args: Any, **named: Any) -> None:
        init = _init(made, fields, frozen)
        made.__init__ = init
        init(self, *args, **named)

    __init__.__qualname__ = f"{made.__qualname__}.__init__"
    return __init__


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


def _refused(
    made: type[Any], fields: tuple[dataclasses.Field[Any], ...]
) -> tuple[Callable[..., None], Callable[..., None]]:
    names = frozenset(field.name for field in fields)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return __setattr__, __delattr__


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _made
